"""Stores the records of any reader as a table of Arrow in files, which are mapped into memory.

Each record is decoded once. Records of `tf.train.Example` or columns do not become Python objects.
Mapped data needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elasticdl import _core
from elasticdl.data.base import DataReader, Records, chunks_of
from elasticdl.data.in_order import in_order
from elasticdl.data.parquet import import_pyarrow
from elasticdl.data.strings import Column, Strings
from elasticdl.errors import ConfigError, DataError
from elasticdl.packages.data_tools.example import decode_example

if TYPE_CHECKING:
    import pyarrow


ROW = "number of the row, by elasticdl"
"""A name that no column of the data has."""
ColumnsOf = Callable[[Records, str], Mapping[str, object]]
_EMPTY_EXAMPLES = (b"", b"\n\0")


def spool(
    reader: DataReader, folder: Path, num_threads: int, columns_of: ColumnsOf | None = None
) -> pyarrow.Table:
    """Return a table of all records, with the number of each in the column `ROW`.

    A feature of `tf.train.Example` becomes a column of values if no record has several; a record
    without the feature has null. Else it becomes a column of lists.

    Args:
        reader: Has the records.
        folder: Gets the files, which must stay as long as the table.
        num_threads: The number of threads that decode.
        columns_of: Makes columns of records that are bytes; without it they are `tf.train.Example`.

    Raises:
        ConfigError: The records have no columns.
        DataError: The records cannot be read, or a column has values of several types.
    """
    arrow, _ = import_pyarrow("statistics")
    parts = _Parts(arrow, folder)

    def features(records: Records, source: str) -> Mapping[str, object]:
        return _features(arrow, records, source)

    def table_of(chunk: tuple[Records, str]) -> pyarrow.Table:
        return _table(arrow, *chunk, columns_of or features)

    with ThreadPoolExecutor(num_threads, "decode") as pool:
        for table in in_order(pool, table_of, chunks_of(reader)):
            parts.add(table)
    return parts.read()


class _Parts:
    """Files with one schema each; a new file begins if a column is new or becomes lists."""

    def __init__(self, arrow: ModuleType, folder: Path) -> None:
        self._arrow = arrow
        self._folder = folder
        self._files: list[Path] = []
        self._writer: pyarrow.RecordBatchFileWriter | None = None
        self._schema: pyarrow.Schema = arrow.schema([])
        self._num_rows = 0

    def add(self, table: pyarrow.Table) -> None:
        """Write rows behind the earlier ones."""
        # An Arrow file has one schema, and only later records show all columns.
        schema = self._joined(table.schema)
        if self._writer is None or schema != self._schema:
            self._close()
            self._schema = schema
            self._files.append(self._folder / f"part-{len(self._files)}.arrow")
            self._writer = self._arrow.ipc.new_file(str(self._files[-1]), schema)
        numbers = np.arange(self._num_rows, self._num_rows + table.num_rows)
        self._num_rows += table.num_rows
        self._writer.write_table(_fitted(self._arrow, table, schema, numbers))

    def read(self) -> pyarrow.Table:
        """Return all rows, with the columns of the last schema, which has those of all parts."""
        self._close()
        tables = [
            self._arrow.ipc.open_file(self._arrow.memory_map(str(path))).read_all()
            for path in self._files
        ]
        return self._arrow.concat_tables(
            [_fitted(self._arrow, table, self._schema) for table in tables]
        )

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _joined(self, new: pyarrow.Schema) -> pyarrow.Schema:
        """Return the schema of the rows so far together with more rows."""
        fields = {field.name: field.type for field in self._schema}
        for field in new:
            fields[field.name] = _common(self._arrow, field, fields.get(field.name, field.type))
        fields.setdefault(ROW, self._arrow.int64())
        return self._arrow.schema(list(fields.items()))


def _common(arrow: ModuleType, field: pyarrow.Field, known: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type for values of two types; lists of it, if either has lists."""
    types, new = arrow.types, field.type
    if new == known or types.is_null(new):
        return known
    if types.is_null(known):
        return new
    is_list = types.is_list(new) or types.is_list(known)
    new, known = (kind.value_type if types.is_list(kind) else kind for kind in (new, known))
    if types.is_null(new) or types.is_null(known) or new == known:
        value = known if types.is_null(new) else new
    elif types.is_integer(new) and types.is_integer(known):
        value = arrow.int64()
    elif all(types.is_integer(kind) or types.is_floating(kind) for kind in (new, known)):
        value = arrow.float64()
    else:
        raise DataError(
            f"column {field.name!r} has values of the types {known} and {new}; expected one type"
        )
    return arrow.list_(value) if is_list else value


def _fitted(
    arrow: ModuleType,
    table: pyarrow.Table,
    schema: pyarrow.Schema,
    numbers: pyarrow.Array | None = None,
) -> pyarrow.Table:
    """Return a table with the columns and types of a schema."""
    columns = []
    for field in schema:
        if field.name == ROW and numbers is not None:
            columns.append(arrow.chunked_array([numbers]))
        elif field.name not in table.column_names:
            columns.append(arrow.nulls(table.num_rows, field.type))
        else:
            columns.append(_as_type(arrow, table.column(field.name), field.type))
    return arrow.table(columns, schema=schema)


def _as_type(
    arrow: ModuleType, column: pyarrow.ChunkedArray, kind: pyarrow.DataType
) -> pyarrow.ChunkedArray:
    if column.type == kind:
        return column
    if arrow.types.is_list(kind) and not arrow.types.is_list(column.type):
        return arrow.chunked_array(
            [_one_each(arrow, chunk.cast(kind.value_type)) for chunk in column.chunks], kind
        )
    return column.cast(kind)


def _one_each(arrow: ModuleType, values: pyarrow.Array) -> pyarrow.Array:
    """Return a list for each value, an empty list for null."""
    ends = np.cumsum(np.asarray(values.is_valid()), dtype=np.int32)
    return arrow.ListArray.from_arrays(np.concatenate([[0], ends]).astype("i4"), values.drop_null())


def _table(
    arrow: ModuleType, records: Records, source: str, columns_of: ColumnsOf
) -> pyarrow.Table:
    arrays = {}
    for name, column in (records.columns or columns_of(records, source)).items():
        try:
            arrays[name] = _as_arrow(arrow, column)
        except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError) as error:
            raise DataError(
                f"{source}: records {records.start} to {records.start + len(records) - 1}: column "
                f"{name!r} has values of several types, or numbers that int64 does not hold; "
                f"expected one type: {error}"
            ) from error
    return arrow.table(arrays)


def _as_arrow(arrow: ModuleType, column: Column | pyarrow.Array) -> pyarrow.Array:
    if isinstance(column, arrow.Array):
        return column
    if isinstance(column, Strings):
        return column.to_arrow()
    is_plain = isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "biufmM"
    return arrow.array(column if is_plain else list(column))


def _features(arrow: ModuleType, records: Records, source: str) -> dict[str, object]:
    """Return a column for each feature of the records; of lists if a record has several values."""
    try:
        columns = _core.decode_examples(records.values)
    except ValueError:  # of another kind, or torn: protobuf tells which
        return dict(_features_one_by_one(records, source))
    if not columns and not set(records.values).issubset(_EMPTY_EXAMPLES):
        return dict(_features_one_by_one(records, source))
    return {
        name: _column(arrow, _values(arrow, values), splits)
        for name, values, splits in sorted(columns, key=itemgetter(0))
    }


def _column(arrow: ModuleType, values: pyarrow.Array, splits: NDArray[np.int64]) -> pyarrow.Array:
    counts = np.diff(splits)
    if counts.max(initial=0) > 1:
        return arrow.ListArray.from_arrays(splits.astype("int32"), values)
    if len(values) == len(counts):
        return values
    return values.take(arrow.array(splits[:-1], mask=counts == 0))


def _values(arrow: ModuleType, values: pyarrow.Array) -> pyarrow.Array:
    if not isinstance(values, tuple):
        return arrow.array(values)
    data, offsets = values
    buffers = [None, arrow.py_buffer(offsets.astype("int32")), arrow.py_buffer(data)]
    return arrow.Array.from_buffers(arrow.binary(), len(offsets) - 1, buffers)


def _features_one_by_one(records: Records, source: str) -> Iterator[tuple[str, list[object]]]:
    decoded: list[dict[str, list[object]]] = []
    for number, value in enumerate(records.values, records.start):
        example = {} if value in _EMPTY_EXAMPLES else decode_example(value)
        if example is None:
            raise ConfigError(
                f"{source}: record {number} is not a tf.train.Example, so the data has no columns "
                "for statistics"
            )
        decoded.append(example)
    for name in sorted({name for example in decoded for name in example}):
        yield name, [example.get(name, []) for example in decoded]
