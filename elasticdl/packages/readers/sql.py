"""Tables of a database, through SQLAlchemy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.base import Metadata, Records
from elasticdl.data.files import CHUNK_RECORDS
from elasticdl.data.params import Params
from elasticdl.data.strings import Array, Column
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard
from elasticdl.settings.reader_params import FLAG, without_password

if TYPE_CHECKING:
    import sqlalchemy


ROWS_PER_SHARD = 100_000
_NOT_OF_TYPE = (TypeError, ValueError, LookupError)
"""Raised by SQLAlchemy for a value of another type than its column has: SQLite stores any value."""


Key: TypeAlias = "int | float | str | None"
"""A value of a table's key, as JSON holds it."""

_PLAIN = (str, bytes, bool, int, float, Decimal, list)
"""The types that values of a column of objects keep; a list is an array of the database."""


class SqlReader:
    """Reads the rows of tables in the order of a key.

    A shard is a range of keys, which may have holes. One scan of the keys finds where each range
    begins and ends, and how many rows it has. The shard's name contains the range, so a worker
    needs no scan. The rows must not change while a job runs.

    Args:
        url: A URL of SQLAlchemy, such as `sqlite:///clicks.db` or `postgresql+psycopg://host/db`.
        tables: Tables with the same columns.
        key: A column without null whose values are all different; without it, the primary key.
        columns: The columns to read, in this order; without it, all are read.
        rows_per_shard: The largest number of rows of a range.
        login: `username` and `password`, if the URL has none.
    """

    def __init__(
        self,
        url: str,
        tables: Sequence[str],
        key: str = "",
        columns: Sequence[str] = (),
        rows_per_shard: int = ROWS_PER_SHARD,
        login: Mapping[str, str] | None = None,
    ) -> None:
        self._alchemy = _import_sqlalchemy()
        self._rows_per_shard = rows_per_shard
        self._keeps_missing = False
        try:
            given = {name: word for name, word in (login or {}).items() if word}
            address = self._alchemy.make_url(url).set(**given)
            self._engine = self._alchemy.create_engine(
                address, poolclass=self._alchemy.pool.NullPool
            )
            self._place = without_password(self._engine.url.render_as_string(hide_password=True))
        except (self._alchemy.exc.SQLAlchemyError, ImportError) as error:
            raise ConfigError(f"{url.partition('://')[0]}://...: {_said(error)}") from error
        _require_file(self._engine.url)
        self._tables = {name: self._reflect(name) for name in tables}
        self._key_name = key
        self._columns = tuple(columns)
        for name, table in self._tables.items():
            self._check(name, table, next(iter(self._tables.values())))

    @classmethod
    def from_params(cls, url: str, params: Params) -> SqlReader:
        """Make a reader from `--data_reader_params`.

        Raises:
            ConfigError: No table is named.
        """
        tables = params.names("table")
        if not tables:
            raise ConfigError(f"{FLAG}: expected table=NAME, which table of the database to read")
        login = {"username": params.text("user", ""), "password": params.text("password", "")}
        rows = params.number("rows_per_shard", ROWS_PER_SHARD)
        return cls(url, tables, params.text("key", ""), params.names("columns"), rows, login)

    def keeping_missing(self) -> SqlReader:
        """Return a reader of the same columns that has None for a number that is null."""
        reader = copy(self)
        reader.__dict__.pop("_dtypes", None)
        reader._keeps_missing = True
        return reader

    @property
    def metadata(self) -> Metadata:
        """The columns and the types of their arrays."""
        found = {name: self._kind(self._types[name]) for name in self._dtypes}
        kinds = {name: kind for name, kind in found.items() if kind}
        return Metadata(tuple(self._dtypes), self._dtypes, column_kinds=kinds)

    def _kind(self, of: sqlalchemy.types.TypeEngine) -> str | None:
        """Return the kind of values of a type, as in `Metadata.column_kinds`."""
        types = self._alchemy.types
        if isinstance(of, types.Boolean):
            return "truth"
        if self._is_whole(of):
            return "whole"
        if isinstance(of, types.DateTime):
            return "timestamp UTC" if of.timezone else "timestamp"
        if isinstance(of, types.Date):
            return "date"
        if isinstance(of, types.Numeric) and of.asdecimal and of.scale is not None:
            return f"decimal {of.scale}"
        return None

    def _is_whole(self, of: sqlalchemy.types.TypeEngine) -> bool:
        """Return whether a type has only whole numbers; NUMERIC without decimal places does."""
        types = self._alchemy.types
        is_decimal = isinstance(of, types.Numeric) and of.asdecimal
        return isinstance(of, types.Integer) or (is_decimal and of.scale == 0)

    def _asked(self, column: sqlalchemy.Column) -> sqlalchemy.ColumnElement[Any]:
        """Return the expression to select: decimals and truth values in the driver's own form.

        For a driver without decimals a whole number would become a float. For one without truth
        values the text "false" would become true.
        """
        types, dialect = self._alchemy.types, self._engine.dialect
        has_decimals = dialect.supports_native_decimal or not isinstance(column.type, types.Numeric)
        has_truth = dialect.supports_native_boolean or not isinstance(column.type, types.Boolean)
        if not (has_decimals and has_truth):
            return self._alchemy.type_coerce(column, types.NullType()).label(column.name)
        return column

    def shards(self) -> list[Shard]:
        """List ranges of keys with their numbers of rows; reads only the keys, once."""
        return [shard for name in self._tables for shard in self._ranges(name)]

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the rows of a range."""
        if shard.num_records == 0:
            return
        name, first, last = self._parse_name(shard.name)
        table = self._tables[name]
        key = self._key(table)
        query = (
            self._alchemy.select(*(self._asked(table.c[column]) for column in self._dtypes))
            .where(key >= first, key <= last)
            .order_by(key)  # otherwise a database may give its rows in any order
            .offset(shard.start)
            .limit(shard.num_records)
        )
        start = shard.start
        for rows in self._chunks(query):
            yield Records(start, columns=self._to_columns(rows, shard.name))
            start += len(rows)
        if start != shard.end:
            raise DataError(
                f"{self._place}: {shard.name}: rows [{shard.start}, {shard.end}) were asked for, "
                f"but they end at {start}; has the table changed since they were counted?"
            )

    def _chunks(self, query: sqlalchemy.Select) -> Iterator[Sequence[sqlalchemy.Row]]:
        try:
            with self._engine.connect() as connection:
                # Without `yield_per` the driver would hold all rows of the query in memory.
                result = connection.execution_options(yield_per=CHUNK_RECORDS).execute(query)
                yield from result.partitions()
        except self._alchemy.exc.SQLAlchemyError as error:
            raise DataError(f"{self._place}: cannot be read: {_said(error)}") from error
        except _NOT_OF_TYPE as error:
            raise DataError(
                f"{self._place}: {self._which_is_wrong(query)}has a value of another type "
                f"({_said(error)}); correct it, or leave the column out by {FLAG}=columns=..."
            ) from error

    def _which_is_wrong(self, query: sqlalchemy.Select) -> str:
        """Return the column whose values are not of its type; "" if it cannot be found."""
        for column in query.selected_columns:
            try:
                with self._engine.connect() as connection:
                    result = connection.execution_options(yield_per=CHUNK_RECORDS)
                    for _ in result.execute(query.with_only_columns(column)).partitions():
                        pass
            except self._alchemy.exc.SQLAlchemyError:
                return ""
            except _NOT_OF_TYPE:
                return f"column {column.name!r} ({column.type}) "
        return ""

    def _reflect(self, name: str) -> sqlalchemy.Table:
        schema, _, table = name.rpartition(".")
        metadata = self._alchemy.MetaData()
        try:
            return self._alchemy.Table(
                table, metadata, schema=schema or None, autoload_with=self._engine
            )
        except self._alchemy.exc.NoSuchTableError as error:
            names = ", ".join(self._alchemy.inspect(self._engine).get_table_names()) or "none"
            raise DataError(f"{self._place}: no table {name!r}; it has {names}") from error
        except self._alchemy.exc.SQLAlchemyError as error:
            raise DataError(f"{self._place}: cannot be read: {_said(error)}") from error

    def _check(self, name: str, table: sqlalchemy.Table, first: sqlalchemy.Table) -> None:
        self._key(table)
        for column in self._columns:
            if column not in table.c:
                raise ConfigError(
                    f"{FLAG}: columns={column}: table {name} has {', '.join(table.c.keys())}"
                )
        if table.c.keys() != first.c.keys():
            raise DataError(
                f"{self._place}: table {name} has the columns {', '.join(table.c.keys())}, "
                f"{first.name} has {', '.join(first.c.keys())}; expected the same"
            )

    def _key(self, table: sqlalchemy.Table) -> sqlalchemy.Column:
        if self._key_name:
            if self._key_name not in table.c:
                raise ConfigError(
                    f"{FLAG}: key={self._key_name}: table {table.name} has "
                    f"{', '.join(table.c.keys())}"
                )
            return table.c[self._key_name]
        if len(table.primary_key.columns) != 1:
            raise ConfigError(
                f"{FLAG}: table {table.name} has no primary key of one column: give key=COLUMN, a "
                "column with unique values and without null"
            )
        return next(iter(table.primary_key.columns))

    def _ranges(self, name: str) -> Iterator[Shard]:
        table = self._tables[name]
        key = self._key(table)
        first = last = None
        count = 0
        for rows in self._chunks(self._alchemy.select(key).order_by(key)):
            for (value,) in rows:
                # A range with equal keys could not be cut, and rows without a key are in no range.
                if value is None or (count and value == last):
                    raise DataError(
                        f"{self._place}: table {name}: key {key.name} is {value!r} "
                        f"{'in a row' if value is None else 'in two rows'}; expected a column "
                        "with unique values and without null"
                    )
                if count == self._rows_per_shard:
                    yield _shard(name, first, last, count)
                    count = 0
                if count == 0:
                    first = value
                last = value
                count += 1
        if count:
            yield _shard(name, first, last, count)

    def _parse_name(self, name: str) -> tuple[str, Key, Key]:
        # The name has the form of `_shard`; a table may have blanks in its name.
        table = next((table for table in self._tables if name.startswith(f"{table} [")), "")
        try:
            first, last = json.loads(name[len(table) :])
        except (ValueError, TypeError):
            first = last = None
        if not table or first is None:
            raise DataError(
                f"{name}: not a range of {', '.join(self._tables)}; do all processes read the same "
                "tables?"
            )
        return table, first, last

    @cached_property
    def _dtypes(self) -> dict[str, np.dtype[np.generic]]:
        """The types, which are the same for every chunk: whole numbers with null are float64."""
        return {name: self._dtype(name, kind) for name, kind in self._types.items()}

    @cached_property
    def _types(self) -> dict[str, sqlalchemy.types.TypeEngine]:
        first = next(iter(self._tables.values()))
        names = self._columns or tuple(first.c.keys())
        return {name: self._type(name, first.c[name].type) for name in names}

    def _type(
        self, name: str, declared: sqlalchemy.types.TypeEngine
    ) -> sqlalchemy.types.TypeEngine:
        """Return the type of a column; where SQLite knows none, that of its values.

        It knows none of an expression in a view, and takes a word that it does not know, such as
        STRING, for NUMERIC.
        """
        types = self._alchemy.types
        is_known = not isinstance(declared, types.NullType) and type(declared) is not types.NUMERIC
        if is_known or self._engine.dialect.name != "sqlite":
            return declared
        found = set()
        for table in self._tables.values():
            kinds = self._alchemy.select(self._alchemy.func.typeof(table.c[name])).distinct()
            found |= {kind for rows in self._chunks(kinds) for (kind,) in rows}
        found -= {"null"}
        if found in ({"text"}, {"blob"}):
            return types.Text() if found == {"text"} else types.LargeBinary()
        if isinstance(declared, types.NullType) and found <= {"integer", "real"}:
            return types.BigInteger() if found == {"integer"} else types.Float()
        return declared

    def _dtype(self, name: str, kind: sqlalchemy.types.TypeEngine) -> np.dtype[np.generic]:
        types = self._alchemy.types
        if self._is_whole(kind) or isinstance(kind, types.Boolean):
            has_null = any(
                table.c[name].nullable and self._has_null(name, table)
                for table in self._tables.values()
            )
            return np.dtype(np.float64 if has_null else np.int64)
        if isinstance(kind, types.Numeric | types.Float):
            return np.dtype(np.float64)
        if isinstance(kind, types.DateTime):
            return np.dtype("datetime64[us]")
        if isinstance(kind, types.Date):
            return np.dtype("datetime64[D]")
        return np.dtype("timedelta64[us]" if _is_duration(kind) else object)

    def _has_null(self, name: str, table: sqlalchemy.Table) -> bool:
        query = self._alchemy.select(table.c[name]).where(table.c[name].is_(None)).limit(1)
        return any(len(rows) > 0 for rows in self._chunks(query))

    def _array(self, name: str, values: Sequence[Any], dtype: np.dtype[np.generic]) -> Array:
        types = self._alchemy.types
        kind = self._types[name]
        is_truth = isinstance(kind, types.Boolean)
        is_whole = self._is_whole(kind) or is_truth
        if is_truth:  # a driver without truth values may give any number
            values = [v != 0 if isinstance(v, int) else v for v in values]
        if is_whole:
            values = [int(v) if isinstance(v, Decimal) and v == int(v) else v for v in values]
            _require_whole(values, may_be_null=dtype.kind == "f")
        if isinstance(kind, types.JSON):
            values = [None if value is None else _as_json(value) for value in values]
        if not self._keeps_missing or dtype.kind != "f":
            if dtype.kind == "f":
                _require_exact(values, is_whole)
            return _array(values, dtype, self._empty(kind))
        out = np.empty(len(values), dtype=object)
        numbers = (value if is_whole or value is None else float(value) for value in values)
        out[:] = list(numbers)
        return out

    def _empty(self, of: sqlalchemy.types.TypeEngine) -> str | bytes | list[object]:
        """Return the value that stands for null in a column of objects."""
        types = self._alchemy.types
        if isinstance(of, types.ARRAY):
            return []
        is_binary = isinstance(of, types.LargeBinary | types.BINARY | types.VARBINARY)
        return b"" if is_binary else ""

    def _to_columns(self, rows: Sequence[sqlalchemy.Row], shard: str) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for (name, dtype), values in zip(
            self._dtypes.items(), zip(*rows, strict=True), strict=True
        ):
            try:
                columns[name] = self._array(name, values, dtype)
            except (TypeError, ValueError, ArithmeticError) as error:
                raise DataError(
                    f"{self._place}: {shard}: column {name!r}: expected {dtype}: {error}"
                ) from error
        return columns


def is_database(place: str) -> bool:
    """Return whether a place is a database: a URL whose scheme is a dialect of SQLAlchemy."""
    scheme, colon, _ = place.partition("://")
    dialects = ("sqlite", "postgresql", "mysql", "mariadb", "oracle", "mssql")
    return colon != "" and scheme.partition("+")[0] in dialects


def _require_file(url: sqlalchemy.URL) -> None:
    """Refuse a file of SQLite that does not exist: SQLite would create it."""
    path = url.database or ":memory:"
    is_file = url.get_backend_name() == "sqlite" and not path.startswith((":memory:", "file:"))
    if is_file and not os.path.exists(path):
        raise DataError(f"{path}: no such file (working folder: {os.getcwd()})")


def _array(values: Sequence[Any], dtype: np.dtype[np.generic], empty: object) -> Array:
    """Return values as an array; `empty` stands for null among objects."""
    if dtype.kind == "O":
        out = np.empty(len(values), dtype=object)
        out[:] = [copy(empty) if value is None else _plain(value) for value in values]
        return out
    if dtype.kind == "f":
        return np.array([np.nan if value is None else value for value in values], dtype=dtype)
    if dtype.kind == "M":
        return np.array([_in_utc(value) for value in values], dtype=dtype)
    return np.array(values, dtype=dtype)


def _plain(value: object) -> object:
    """Return a value of no type of NumPy, such as a time of day, a UUID or an address, as text."""
    if isinstance(value, dict):  # of HSTORE
        return _as_json(value)
    return value if isinstance(value, _PLAIN) else str(value)


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_duration(of: sqlalchemy.types.TypeEngine) -> bool:
    try:
        return issubclass(of.python_type, timedelta)
    except NotImplementedError:  # nobody knows the type
        return False


def _in_utc(value: datetime | date) -> datetime | date:
    """Return a time with a zone as UTC without a zone, since NumPy has no zones."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return value
    return value.astimezone(UTC).replace(tzinfo=None)


def _require_whole(values: Sequence[object], may_be_null: bool) -> None:
    """Refuse text, and numbers with decimal places, in a column of whole numbers."""
    for value in values:
        if not isinstance(value, int) and not (may_be_null and value is None):
            raise ValueError(f"found {value!r}")


def _require_exact(values: Sequence[object], is_whole: bool) -> None:
    """Refuse numbers that float64 cannot tell apart."""
    for value in values:
        if not isinstance(value, int | Decimal) or not _is_large(value):
            continue
        if not is_whole and float(value) != value:
            raise ValueError(
                f"found {value}, which float64 turns into {float(value):.1f}; cast it to BIGINT "
                "or text in the database"
            )
        if is_whole:
            raise ValueError(
                f"found {value}: the column has null, so it is float64, which holds whole numbers "
                "up to 2^53; fill the nulls"
            )


def _is_large(value: int | Decimal) -> bool:
    is_number = isinstance(value, int) or value.is_finite()
    return is_number and not -(2**53) <= value <= 2**53


def _shard(table: str, first: Key, last: Key, count: int) -> Shard:
    try:
        return Shard(f"{table} {json.dumps([first, last])}", 0, count)
    except TypeError as error:
        raise ConfigError(
            f"{FLAG}: the keys of {table} are {type(first).__name__}; expected whole numbers or "
            "text: give key=COLUMN"
        ) from error


def _said(error: BaseException) -> str:
    """Return the driver's own words, which have no address and no password."""
    cause = getattr(error, "orig", None) or error
    return str(cause).partition("\n")[0]


def _import_sqlalchemy() -> ModuleType:
    try:
        import sqlalchemy
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tables of a database need SQLAlchemy, which is not installed: {install('sql')}"
        ) from error
    module: ModuleType = sqlalchemy
    return module
