"""Tables of MaxCompute (ODPS), through pyodps: its download tunnel sends them as Arrow."""

from __future__ import annotations

import fnmatch
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.arrow_columns import Convert, column_converter, column_kind
from elasticdl.data.base import Metadata, Records
from elasticdl.data.files import CHUNK_RECORDS
from elasticdl.data.params import Params
from elasticdl.data.strings import Column, Strings
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard
from elasticdl.settings.reader_params import FLAG

if TYPE_CHECKING:
    import odps
    import pyarrow


SCHEME = "odps://"
TRIES = 6
TIMEOUT_SECONDS = 30
_FIRST_WAIT_SECONDS = 0.25
_PLACE = re.compile(r"odps://(?P<project>\w+)/tables/(?P<table>\w+)(?:/(?P<partition>[^,]+))?")
_ENVIRONMENT = {
    "access_id": "MAXCOMPUTE_AK",
    "access_key": "MAXCOMPUTE_SK",
    "endpoint": "MAXCOMPUTE_ENDPOINT",
}


@dataclass(frozen=True, slots=True)
class Login:
    """The account, and the address of the servers; an empty `tunnel_endpoint` is asked for."""

    access_id: str
    access_key: str = field(repr=False)
    endpoint: str
    tunnel_endpoint: str = ""
    security_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A table without partitions, or one partition: `key=value/key=value`."""

    project: str
    table: str
    partition: str = ""

    def __str__(self) -> str:
        place = f"{SCHEME}{self.project}/tables/{self.table}"
        return f"{place}/{self.partition}" if self.partition else place

    @property
    def values(self) -> dict[str, str]:
        """The values of the keys by which the table is partitioned."""
        words = (word.partition("=") for word in self.partition.split("/") if word)
        return {key: value for key, _, value in words}


class MaxComputeReader:
    """Reads tables and partitions by ranges of rows.

    A shard is a partition, or a table without partitions. Opening a download session tells its
    number of rows without reading them. The rows must not change while a job runs.

    Columns are arrays as those of Parquet files. The server does not tell which columns have null.
    So whole numbers and truth values must have none, unless they are `nullable`.

    Args:
        places: `odps://PROJECT/tables/TABLE`, each perhaps with `/key=value/...` of a partition.
        columns: The columns to read, in this order; they may name keys of partitions. The default
            is all columns.
        partition: The partitions of tables whose place names none; `*` matches any text.
        nullable: Whole numbers and truth values that are read as float64, null as NaN; `*` is all.
    """

    def __init__(
        self,
        places: Sequence[str],
        login: Login,
        columns: Sequence[str] = (),
        partition: str = "",
        nullable: Sequence[str] = (),
    ) -> None:
        self._places = [_parse(place) for place in places]
        self._partition = partition
        self._tunnel = _Tunnel(login)
        self._columns = tuple(columns)
        self._nullable = tuple(nullable)

    @classmethod
    def from_params(cls, place: str, params: Params) -> MaxComputeReader:
        """Make a reader from `--data_reader_params` and, for missing settings, the environment.

        Raises:
            ConfigError: The account or the address of the server is missing.
        """
        found = {name: params.text(name, "") for name in _ENVIRONMENT}
        for name, variable in _ENVIRONMENT.items():
            found[name] = found[name] or os.environ.get(variable, "")
            if not found[name]:
                raise ConfigError(
                    f"{FLAG}: MaxCompute: expected {name}=..., or the environment variable "
                    f"{variable}, found neither"
                )
        tunnel = params.text("tunnel_endpoint", "") or os.environ.get(
            "MAXCOMPUTE_TUNNEL_ENDPOINT", ""
        )
        login = Login(
            **found, tunnel_endpoint=tunnel, security_token=params.text("security_token", "")
        )
        places = [part.strip() for part in place.split(",") if part.strip()]
        names, partition = params.names("columns"), params.text("partition", "")
        return cls(places, login, names, partition, params.names("nullable"))

    @property
    def metadata(self) -> Metadata:
        """The columns and the types of their arrays."""
        dtypes = {name: dtype for name, (_, dtype) in self._converters.items()}
        return Metadata(tuple(dtypes), dtypes, column_kinds=self._kinds)

    def shards(self) -> list[Shard]:
        """List partitions with their numbers of rows, as the server reports them."""
        counts = {str(part): self._tunnel.count(part) for part in self._parts()}
        return [Shard(name, 0, count) for name, count in counts.items() if count]

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the rows of a range; after a break, ask again from there."""
        if shard.num_records == 0:
            return
        part = _parse(shard.name)
        if all(place.table != part.table for place in self._places):
            raise DataError(f"{shard.name}: not in the tables that this reader was given")
        at, failures = shard.start, 0
        while at < shard.end:
            try:
                for batch in self._tunnel.batches(part, at, shard.end, self._sent):
                    for start in range(0, batch.num_rows, CHUNK_RECORDS):
                        rows = batch.slice(start, CHUNK_RECORDS)
                        yield Records(at, columns=self._to_columns(rows, part, at))
                        at += rows.num_rows
                        failures = 0
            except _Interrupted as error:
                failures += 1
                if failures == TRIES:
                    raise DataError(f"{error} ({TRIES} times in a row)") from error
                # The session itself may be the reason, so the next attempt opens another one.
                self._tunnel.forget(part)  # a session ends by itself, after a day at most
                time.sleep(_FIRST_WAIT_SECONDS * 2 ** (failures - 1))

    def _parts(self) -> list[Part]:
        found = [part for place in self._places for part in self._partitions(place)]
        return list(dict.fromkeys(found))  # two places may name one partition

    def _partitions(self, place: Part) -> list[Part]:
        _, keys = self._tunnel.schema(place)
        wanted = place.partition or self._partition
        if not keys:
            if wanted:
                raise DataError(f"{place}: partition {wanted}: the table has no partitions")
            return [place]
        if set(place.values) == set(keys) and "*" not in place.partition:
            return [place]
        names = self._tunnel.partitions(place)
        chosen = fnmatch.filter(names, wanted) if wanted else names
        if not chosen:
            has = ", ".join(names[:5]) or "none"
            raise DataError(
                f"{place}: no partition {wanted or 'at all'}: expected {'=.../'.join(keys)}=..., "
                f"in which * matches any text; it has {has}{', ...' if names[5:] else ''}"
            )
        return [Part(place.project, place.table, name) for name in chosen]

    @cached_property
    def _converters(self) -> dict[str, tuple[Convert | None, np.dtype[np.generic]]]:
        """The converter of each column; None for the key of a partition, which is text."""
        schema, keys = self._tunnel.schema(self._places[0])
        for place in self._places[1:]:
            other, _ = self._tunnel.schema(place)
            if other != schema:
                raise DataError(
                    f"{place} has the columns {_said(other)}; {self._places[0]} has "
                    f"{_said(schema)}; expected the same"
                )
        for name in (*self._columns, *(name for name in self._nullable if name != "*")):
            if name not in schema.names and name not in keys:
                raise ConfigError(
                    f"{FLAG}: column {name}: {self._places[0]} has "
                    f"{', '.join([*schema.names, *keys])}"
                )
        found: dict[str, tuple[Convert | None, np.dtype[np.generic]]] = {}
        for name in self._columns or schema.names:
            if name in keys:
                found[name] = None, np.dtype(object)
            else:
                found[name] = column_converter(
                    self._tunnel.arrow, schema.field(name), self._may_be_null(name)
                )
        if not any(convert for convert, _ in found.values()):
            raise ConfigError(f"{FLAG}: columns={','.join(found)}: expected one that has data")
        return found

    @property
    def _kinds(self) -> dict[str, str]:
        schema, _ = self._tunnel.schema(self._places[0])
        found = {n: column_kind(self._tunnel.arrow, schema.field(n).type) for n in self._sent}
        return {name: kind for name, kind in found.items() if kind}

    @property
    def _sent(self) -> list[str]:
        return [name for name, (convert, _) in self._converters.items() if convert]

    def _may_be_null(self, name: str) -> bool:
        return name in self._nullable or "*" in self._nullable

    def _to_columns(self, rows: pyarrow.Table, part: Part, first: int) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name, (convert, dtype) in self._converters.items():
            if convert is None:
                columns[name] = self._constant(part.values[name], len(rows))
                continue
            array = self._checked(rows.column(name), name, dtype, part, first)
            try:
                columns[name] = convert(array)
            except DataError as error:
                row = None if error.record is None else first + error.record
                where = f"rows [{first}, {first + len(rows)})" if row is None else f"row {row}"
                raise DataError(f"{part}: {where}: {error}", row, is_certain=True) from error
        return columns

    def _checked(
        self, array: pyarrow.Array, name: str, dtype: np.dtype[np.generic], part: Part, first: int
    ) -> pyarrow.Array:
        if array.null_count and dtype.kind in "iub":
            row = first + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(
                f"{part}: row {row} has null in column {name!r}, which is {array.type}: give "
                f"{FLAG}=nullable={name} to read it as float64 with NaN"
            )
        return array

    def _constant(self, value: str, count: int) -> Strings:
        return Strings(self._tunnel.arrow.array([value] * count))


def is_maxcompute(place: str) -> bool:
    """Tell whether a place is a table of MaxCompute."""
    return place.startswith(SCHEME)


def _parse(place: str) -> Part:
    found = _PLACE.fullmatch(place)
    partition = (found["partition"] or "") if found else ""
    if not found or not all("=" in word or "*" in word for word in partition.split("/") if word):
        raise ConfigError(
            f"{place}: expected odps://PROJECT/tables/TABLE, or "
            "odps://PROJECT/tables/TABLE/key=value for one partition"
        )
    return Part(found["project"], found["table"], partition.strip("/"))


def _said(schema: pyarrow.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


class _Interrupted(DataError):
    """An error after which another attempt may succeed."""


class _Tunnel:
    """The used part of pyodps, with its errors turned into ours."""

    def __init__(self, login: Login) -> None:
        self._odps = _import_pyodps()
        import pyarrow

        self.arrow = pyarrow
        self._login = login
        account = self._odps.accounts.AliyunAccount(login.access_id, login.access_key)
        if login.security_token:
            account = self._odps.accounts.StsAccount(
                login.access_id, login.access_key, login.security_token
            )
        self._account = account
        self._sessions: dict[Part, odps.tunnel.TableDownloadSession] = {}
        self._schemas: dict[tuple[str, str], tuple[pyarrow.Schema, tuple[str, ...]]] = {}

    def schema(self, part: Part) -> tuple[pyarrow.Schema, tuple[str, ...]]:
        """Return the columns of a table with their Arrow types, and the keys of its partitions."""
        from odps.tunnel.io.types import odps_schema_to_arrow_schema

        known = part.project, part.table
        if known not in self._schemas:
            with self._calling(part):
                found = self._entry(part).get_table(part.table).table_schema
                keys = tuple(str(key.name) for key in found.partitions)
                self._schemas[known] = odps_schema_to_arrow_schema(found), keys
        return self._schemas[known]

    def partitions(self, part: Part) -> list[str]:
        """Return the names of a table's partitions."""
        with self._calling(part):
            found = self._entry(part).get_table(part.table).partitions
            specs = [partition.partition_spec.items() for partition in found]
        return sorted("/".join(f"{key}={value}" for key, value in spec) for spec in specs)

    def count(self, part: Part) -> int:
        """Return the number of rows."""
        return int(self._session(part).count)

    def forget(self, part: Part) -> None:
        """Make the next call open a new session."""
        self._sessions.pop(part, None)

    def batches(
        self, part: Part, start: int, end: int, columns: list[str]
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of a range as record batches of Arrow.

        Raises:
            _Interrupted: The rows broke off; those that were yielded are whole.
        """
        count = self.count(part)
        if end > count:
            raise DataError(
                f"{part}: rows [{start}, {end}) were asked for, but it has {count}; has the "
                "table changed since its rows were counted?"
            )
        with self._calling(part, start):
            reader = self._session(part).open_arrow_reader(start, end - start, columns=columns)
        at = start
        try:
            while at < end:
                with self._calling(part, at):
                    batch = reader.read_next_batch()
                if batch is None or at + batch.num_rows > end:
                    came = at - start + (batch.num_rows if batch is not None else 0)
                    raise _Interrupted(f"{part}: row {start}: {came} of {end - start} rows came")
                yield batch
                at += batch.num_rows
        finally:
            reader.close()  # also if the caller stops before the end

    def _session(self, part: Part) -> odps.tunnel.TableDownloadSession:
        # All ranges of a part are read through one session: opening one is a call to the server.
        if part not in self._sessions:
            spec = part.partition.replace("/", ",") or None  # the form of pyodps
            with self._calling(part):
                tunnel = self._odps.tunnel.TableTunnel(
                    self._entry(part), endpoint=self._login.tunnel_endpoint or None
                )
                self._sessions[part] = tunnel.create_download_session(
                    part.table, partition_spec=spec, timeout=TIMEOUT_SECONDS
                )
        return self._sessions[part]

    def _entry(self, part: Part) -> odps.ODPS:
        return self._odps.ODPS(
            account=self._account, project=part.project, endpoint=self._login.endpoint
        )

    @contextmanager
    def _calling(self, part: Part, row: int | None = None) -> Iterator[None]:
        """Set a time-out, and describe errors; while rows are read, the caller tries again."""
        where = str(part) if row is None else f"{part}: row {row}"
        settings = {
            "connect_timeout": TIMEOUT_SECONDS,
            "read_timeout": TIMEOUT_SECONDS,
            "local_timezone": False,  # times are UTC on every machine
        }
        import requests
        import urllib3

        with self._odps.config.option_context() as options:
            for name, value in settings.items():
                setattr(options, name, value)
            # The reader tries again itself, from the row that it has reached. So pyodps need not
            # try again.
            if row is not None:
                options.retry_times = 0
            try:
                yield
            except self._odps.errors.BaseODPSError as error:
                raise self._told(where, error) from error
            except requests.RequestException as error:
                raise _Interrupted(
                    f"{where}: {self._login.endpoint} does not answer: {_first_line(error)}"
                ) from error
            except (OSError, urllib3.exceptions.HTTPError, self.arrow.ArrowException) as error:
                raise _Interrupted(f"{where}: broke off: {_first_line(error)}") from error

    def _told(self, where: str, error: odps.errors.BaseODPSError) -> DataError:
        errors = self._odps.errors
        what = f"{where}: {str(error.args[0]).partition(chr(10))[0]}"
        if error.code == "NoSuchDownload":  # the session has ended
            return _Interrupted(what)
        if isinstance(error, errors.NoSuchObject):
            return DataError(what)
        if error.status_code in (401, 403) or isinstance(error, errors.NoPermission):
            return DataError(
                f"{what}; may {self._login.access_id} read it, and are access_id and access_key "
                "those of the project?"
            )
        # The request itself is wrong, so another try would get the same answer.
        if error.status_code is not None and 400 <= error.status_code < 500:
            return DataError(what)
        return _Interrupted(what)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


def _import_pyodps() -> ModuleType:
    try:
        import odps
        import odps.tunnel
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tables of MaxCompute need pyodps, which is not installed: {install('maxcompute')}"
        ) from error
    # At DEBUG, pyodps logs the headers of requests, which have signatures and tokens.
    logging.getLogger("odps").setLevel(logging.WARNING)
    module: ModuleType = odps
    return module
