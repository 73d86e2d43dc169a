"""Messages that are streams of Arrow's record batches: each message has many records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.arrow_columns import measure_stream, read_stream
from elasticdl.data.parquet import import_pyarrow
from elasticdl.data.strings import Column, Strings
from elasticdl.errors import DataError

if TYPE_CHECKING:
    import pyarrow


Table = tuple[Mapping[str, Column], Mapping[int, str], list[int], list[object]]
"""Columns of all readable messages; why the others are not readable, by their place; the number of
rows of each readable message; and the event time of each row, if it is asked for.
"""


_MOST_BYTES = 256 << 20
_MOST_ROWS = 1 << 24
_COMPRESSED = (b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd")
"""The bytes with which a buffer begins that is compressed by LZ4 or Zstandard."""


def parser(kinds: Mapping[str, str], event_time: str = "") -> Callable[[Sequence[bytes]], Table]:
    """Return a function that makes columns of messages, with given kinds (`csv_columns.KINDS`).

    Raises:
        ConfigError: pyarrow is not installed.
    """
    arrow, _ = import_pyarrow("messages in Arrow's format")
    types = {"int64": arrow.int64(), "float": arrow.float64(), "bytes": arrow.string()}
    schema = arrow.schema([(name, types[kind]) for name, kind in kinds.items()])

    def parse(values: Sequence[bytes]) -> Table:
        tables, times, why = [], [], {}
        for place, value in enumerate(values):
            try:
                found = _read(value)
                # The times are read before the table is kept: a message with a bad time is set
                # aside as a whole.
                table = _table(arrow, schema, found)
                times += _times(arrow, _only(found, event_time)) if event_time else []
                tables.append(table)
            except DataError as error:
                why[place] = " ".join(str(error).split())
        rows = arrow.concat_tables(tables) if tables else schema.empty_table()
        columns: dict[str, Column] = {}
        for name, kind in kinds.items():
            array = rows.column(name).combine_chunks()
            columns[name] = Strings(array) if kind == "bytes" else np.asarray(array)
        return columns, why, [table.num_rows for table in tables], times

    return parse


def _read(value: bytes) -> pyarrow.Table:
    """Return the rows of a message, which anybody may have sent who may write to the topic.

    Raises:
        DataError: It is not an Arrow stream, or would fill the memory.
    """
    if any(begin in value for begin in _COMPRESSED):  # to measure takes as long as to read
        _, _, num_bytes = measure_stream(value)
        if num_bytes > _MOST_BYTES:
            raise DataError(
                f"expected a message that unpacks to {_MOST_BYTES:,} bytes at the most, found "
                f"{num_bytes:,}"
            )
    found = read_stream(value)
    if found.num_rows > _MOST_ROWS:
        raise DataError(f"expected at most {_MOST_ROWS:,} rows, found {found.num_rows:,}")
    return found


def _table(arrow: ModuleType, schema: pyarrow.Schema, found: pyarrow.Table) -> pyarrow.Table:
    """Return the rows of a message, with the columns and types of a schema.

    Raises:
        DataError: It is not such a message.
    """
    columns = []
    for field in schema:
        column = _only(found, field.name)
        try:
            columns.append(_typed(arrow, column, field.type))
        except (arrow.ArrowException, DataError) as error:
            raise DataError(f"{field.name!r}: {error}") from error
    return arrow.Table.from_arrays(columns, schema=schema)


def _only(found: pyarrow.Table, name: str) -> pyarrow.Array:
    """Return a column of a message.

    Raises:
        DataError: The message has no such column, or several.
    """
    if (count := found.column_names.count(name)) != 1:
        has = ", ".join(found.column_names)
        raise DataError(f"{name!r}: expected one such column, found {count}, of: {has}")
    return found.column(name)


def _times(arrow: ModuleType, column: pyarrow.Array) -> list[object]:
    """Return the times in a column: numbers, text, or the seconds of its time stamps.

    Raises:
        DataError: A value has no object of Python.
    """
    if arrow.types.is_timestamp(column.type):
        micros = column.cast(arrow.timestamp("us", column.type.tz), safe=False).cast(arrow.int64())
        return [None if value is None else value / 1e6 for value in micros.to_pylist()]
    try:
        found: list[object] = column.to_pylist()
    except (OverflowError, ValueError) as error:  # such as a date beyond the year 9999
        raise DataError(f"expected an event time, found {column.type}: {error}") from error
    return found


def _typed(arrow: ModuleType, column: pyarrow.Array, wanted: pyarrow.DataType) -> pyarrow.Array:
    """Return a column in a type, by the same rule as for JSON."""
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    is_number = types.is_integer(kind) or types.is_floating(kind)
    if types.is_int64(wanted):
        if column.null_count:
            raise DataError("expected a whole number of int64, found none")
        if not types.is_integer(kind) and len(column):
            raise DataError(f"expected a whole number of int64, found {kind}")
        return column.cast(wanted)
    if types.is_float64(wanted):
        if types.is_decimal(kind):  # a cast by itself misses the nearest by a digit
            column = column.cast(arrow.string())
        elif not is_number and not types.is_null(kind):
            raise DataError(f"expected a number of float64, found {kind}")
        return column.cast(wanted, safe=False).fill_null(float("nan"))
    if is_number or types.is_boolean(kind):
        words = ["" if value is None else str(value) for value in column.to_pylist()]
        return arrow.array(words, wanted)
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    if not (is_text or is_bytes or types.is_null(kind)):
        raise DataError(f"expected text, found {kind}")
    return column.cast(wanted).fill_null("")
