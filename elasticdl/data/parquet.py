"""Parquet files: records as columns. Needs pyarrow, which is imported when first used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from elasticdl import _core
from elasticdl.data import remote
from elasticdl.data.arrow_columns import Convert, column_converter, column_kind
from elasticdl.data.base import Metadata, Records
from elasticdl.data.files import CHUNK_RECORDS
from elasticdl.data.strings import Column
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard
from elasticdl.settings.reader_params import FLAG

if TYPE_CHECKING:
    import pyarrow


SHARD_ROWS = 8192
"""Row groups that are smaller are joined, so that tasks are not."""
MAX_SHARDS = 100_000
_END_BYTES = 8


class ParquetReader:
    """Reads Parquet files by row groups.

    Columns become NumPy arrays whose type depends on the files' schema and statistics alone, so
    every chunk has the same: numbers their own type, but float64 with NaN where whole numbers or
    truth values have nulls; text and binary `Strings`, null as empty;
    fixed-size lists of numbers a further axis; other lists one array a record, as objects.

    Args:
        paths: The files; a shard is one or more row groups of a file.
        columns: Which columns to read, in this order; all without it.
        keeps_missing: Numbers with null are arrays of objects instead, with None.
    """

    def __init__(
        self, paths: Sequence[str], columns: Sequence[str] = (), *, keeps_missing: bool = False
    ) -> None:
        self._arrow, self._parquet = import_pyarrow()
        self._keeps_missing = keeps_missing
        self._paths = tuple(paths)
        read_footer(self._paths[0])
        self._schema = self._open(self._paths[0]).schema_arrow
        self._columns = tuple(columns) or tuple(self._schema.names)
        missing = [name for name in self._columns if name not in self._schema.names]
        if missing:
            raise ConfigError(
                f"{FLAG}: columns={missing[0]}: {self._paths[0]} has "
                f"{', '.join(self._schema.names)}"
            )
        for name in self._columns:
            if self._schema.names.count(name) > 1:
                raise DataError(
                    f"{self._paths[0]}: several columns are called {name!r}; rename them, or "
                    "choose others by --data_reader_params=columns=..."
                )
        self._cached_converters: dict[str, tuple[Convert, np.dtype[np.generic]]] = {}

    def keeping_missing(self) -> ParquetReader:
        """Return a reader of the same columns that has None where a number is null."""
        return ParquetReader(self._paths, self._columns, keeps_missing=True)

    @property
    def file_columns(self) -> tuple[str, ...]:
        """All columns that the files have."""
        return tuple(self._schema.names)

    @property
    def metadata(self) -> Metadata:
        """The columns and the types of their arrays."""
        dtypes = {name: dtype for name, (_, dtype) in self._converters().items()}
        found = {n: column_kind(self._arrow, self._schema.field(n).type) for n in self._columns}
        kinds = {name: kind for name, kind in found.items() if kind}
        return Metadata(self._columns, dtypes, column_kinds=kinds)

    def shards(self) -> list[Shard]:
        """List ranges of row groups by what the footers say, so that tasks end where these do."""
        self._converters()  # compares the files' schemas
        footers = [(path, self._open(path).metadata) for path in self._paths]
        least = max(SHARD_ROWS, sum(footer.num_rows for _, footer in footers) // MAX_SHARDS)
        return [shard for path, footer in footers for shard in _ranges(path, footer, least)]

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the rows of a shard; only the row groups that it touches are read."""
        if shard.name not in self._paths:
            raise DataError(
                f"{shard.name}: not one of the {len(self._paths)} files of this reader, "
                f"of which the first is {self._paths[0]}; do all processes see the same files?"
            )
        file = self._open(shard.name)
        num_rows = file.metadata.num_rows
        if shard.end > num_rows:
            raise DataError(
                f"{shard.name}: rows [{shard.start}, {shard.end}) were asked for, but it has "
                f"{num_rows}; has the file changed since its rows were counted?"
            )
        try:
            yield from self._read_rows(file, shard)
        except (self._arrow.ArrowException, OSError) as error:
            said = " ".join(str(error).split())
            is_local = not remote.is_url(shard.name)
            raise DataError(
                f"{shard.name}: rows [{shard.start}, {shard.end}){self._damaged(file, shard)} "
                f"cannot be read: {said}",
                is_certain=is_local,
            ) from error

    def _damaged(self, file: pyarrow.parquet.ParquetFile, shard: Shard) -> str:
        """Say which column cannot be decoded, and in which row group; nothing if it is not one."""
        groups, _ = _groups_of(file.metadata, shard)
        for group in groups:
            for name in self._columns:
                try:
                    file.read_row_group(group, columns=[name])
                except (self._arrow.ArrowException, OSError):
                    return f", column {name!r} in row group {group}"
        return ""

    def _read_rows(self, file: pyarrow.parquet.ParquetFile, shard: Shard) -> Iterator[Records]:
        groups, row = _groups_of(file.metadata, shard)
        batches = file.iter_batches(CHUNK_RECORDS, row_groups=groups, columns=list(self._columns))
        for batch in batches:
            start, end = max(shard.start, row), min(shard.end, row + batch.num_rows)
            if start < end:
                part = batch.slice(start - row, end - start)
                yield Records(start, columns=self._to_columns(part, shard.name, start))
            row += batch.num_rows
            if row >= shard.end:
                return  # the rest of the row group is not decoded

    def _to_columns(self, rows: pyarrow.Table, path: str, first: int) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name, (convert, _) in self._converters().items():
            try:
                columns[name] = convert(rows.column(name))
            except DataError as error:
                raise DataError(
                    f"{path}: {error} (rows [{first}, {first + len(rows)}))",
                    None if error.record is None else first + error.record,
                    is_certain=True,
                ) from error
        return columns

    def _open(self, path: str) -> pyarrow.parquet.ParquetFile:
        try:
            if remote.is_url(path):  # no other bytes are fetched than those of its columns
                file = self._arrow.PythonFile(remote.RangeFile(path), mode="r")
                return self._parquet.ParquetFile(file, pre_buffer=True)
            return self._parquet.ParquetFile(path)
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not a Parquet file that can be read: {error}") from error

    def _converters(self) -> dict[str, tuple[Convert, np.dtype[np.generic]]]:
        """How each column becomes an array; made once, since it looks at every file's footer."""
        if not self._cached_converters:
            nullable = self._columns_with_nulls()
            self._cached_converters = {
                name: self._converter(name, name in nullable) for name in self._columns
            }
        return self._cached_converters

    def _converter(self, name: str, has_nulls: bool) -> tuple[Convert, np.dtype[np.generic]]:
        field = self._schema.field(name)
        try:
            return column_converter(self._arrow, field, has_nulls, self._keeps_missing)
        except DataError as error:
            raise DataError(f"{self._paths[0]}: {error}") from error

    def _columns_with_nulls(self) -> set[str]:
        names: set[str] = set()
        for path in self._paths:
            leaves = read_footer(path)
            schema = self._open(path).schema_arrow
            self._check_types(path, schema)
            for leaf, may_be_null in leaves:
                if may_be_null:
                    names.update(_top_level(leaf, schema.names))
        return names

    def _check_types(self, path: str, schema: pyarrow.Schema) -> None:
        for name in self._columns:
            index = schema.get_field_index(name)
            found = schema.field(index).type if index >= 0 else "missing"
            if found != self._schema.field(name).type:
                raise DataError(
                    f"{path}: column {name!r} is {found}, in {self._paths[0]} it is "
                    f"{self._schema.field(name).type}; files of one data set have the same columns"
                )


def import_pyarrow(what: str = "Parquet files") -> tuple[ModuleType, ModuleType]:
    """Import pyarrow and its Parquet part, which are an extra.

    Raises:
        ConfigError: They are not installed; `what` is said to need them.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what} need pyarrow, which is not installed: {install('parquet')}"
        ) from error
    return pyarrow, pyarrow.parquet


def _ranges(path: str, metadata: pyarrow.parquet.FileMetaData, least: int) -> Iterator[Shard]:
    """Yield the rows of row groups that follow each other: one large group, or several small."""
    start = end = 0
    for group in range(metadata.num_row_groups):
        end += metadata.row_group(group).num_rows
        if end - start >= least:
            yield Shard(path, start, end)
            start = end
    if start < end:
        yield Shard(path, start, end)


def _groups_of(metadata: pyarrow.parquet.FileMetaData, shard: Shard) -> tuple[list[int], int]:
    """The row groups that a shard touches, and the number of the first row of the first."""
    groups: list[int] = []
    first_row = row = 0
    for group in range(metadata.num_row_groups):
        end = row + metadata.row_group(group).num_rows
        if row < shard.end and end > shard.start:
            if not groups:
                first_row = row
            groups.append(group)
        row = end
    return groups, first_row


def read_footer(path: str) -> list[tuple[str, bool]]:
    """Return the path of each column of a file, and whether it may have nulls.

    The library that decodes ends the process when it meets some footers, and believes what they
    say; so each is read here first.

    Raises:
        DataError: It is no Parquet file, damaged or encrypted; names the column.
    """
    try:
        size, read = _bytes_of(path)
        end = read(max(0, size - _END_BYTES), size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if end.endswith(b"PARE"):
        raise DataError(
            f"{path}: it is encrypted, and elasticdl has no keys; write it without encryption",
            is_certain=True,
        )
    num_bytes = int.from_bytes(end[:4], "little")
    if len(end) < _END_BYTES or not end.endswith(b"PAR1") or num_bytes + 12 > size:
        raise DataError(
            f"{path}: not a Parquet file, or cut short: its end is {end!r}, expected the length "
            "of the footer and PAR1",
            is_certain=True,
        )
    try:
        return _core.parquet_footer(read(size - _END_BYTES - num_bytes, size - _END_BYTES))
    except ValueError as error:
        raise DataError(f"{path}: {error}", is_certain=True) from None


def _bytes_of(path: str) -> tuple[int, Callable[[int, int], bytes]]:
    """Return the size of a file, and what reads a range of its bytes."""
    if remote.is_url(path):
        return remote.size_of(path), lambda start, end: remote.read_range(path, start, end)

    def read(start: int, end: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    return os.path.getsize(path), read


def _top_level(path: str, columns: Sequence[str]) -> list[str]:
    """Return the column that a path is in; the names of columns may have dots, as paths have."""
    return [name for name in columns if path == name or path.startswith(f"{name}.")]
