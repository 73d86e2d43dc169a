"""Requests in Arrow: streams of strangers, which are measured before they are unpacked."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.backends.served import FeatureSpec
from elasticdl.data.arrow_columns import read_stream
from elasticdl.distribution import install, is_missing
from elasticdl.errors import ConfigError, DataError, RequestTooLargeError

if TYPE_CHECKING:
    import pyarrow

_NOT_COMPRESSED = -1


def read_columns(
    content: bytes, specs: Sequence[FeatureSpec], most_bytes: int, most_records: int
) -> dict[str, NDArray[Any]]:
    """Return the column of each feature as an array, the records first.

    Args:
        content: The stream.
        specs: The features.
        most_bytes: The largest number of bytes after unpacking.
        most_records: The largest number of records.

    Raises:
        RequestTooLargeError: The stream has more bytes or records. DataError: The content is not a
            stream of Arrow, or has other columns, types or shapes. ConfigError: pyarrow is missing.
    """
    if is_missing("pyarrow"):
        raise ConfigError(f"this server cannot read Arrow without pyarrow: {install('parquet')}")
    try:
        schema = _check_size(content, most_bytes, most_records)
        _check_schema(schema, specs)
        table = read_stream(content)
    except DataError:
        raise
    except Exception as error:  # Arrow raises any error for unreadable input
        words = " ".join(str(error).split())[:300]
        raise DataError(f"not an Arrow stream: {words}") from error
    try:
        return {spec.name: _array(spec, table.column(spec.name), most_bytes) for spec in specs}
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"not an Arrow stream: {' '.join(str(error).split())[:300]}") from error


# --- before it is unpacked -----------------------------------------------------------------------


def _check_size(content: bytes, most_bytes: int, most_records: int) -> pyarrow.Schema:
    """Return the schema, if the stream does not unpack to too many bytes."""
    import pyarrow as pa

    num_bytes = num_records = 0
    source = pa.BufferReader(content)
    reader = pa.ipc.MessageReader.open_stream(source)
    first = _next(reader)
    if first is None or first.type != "schema":
        raise DataError("not an Arrow stream: expected a schema first")
    # Only the heads of the messages are read here: a small stream can unpack to many gigabytes.
    while (message := _next(reader)) is not None:
        if message.type not in ("record batch", "dictionary"):
            raise DataError(f"not an Arrow stream: found a message {message.type!r}")
        records, unpacked = _measured(message)
        num_bytes += unpacked
        num_records += records if message.type == "record batch" else 0
        if num_bytes > most_bytes:
            raise RequestTooLargeError(
                f"expected at most {most_bytes:,} bytes (--max_request_bytes), found a request "
                "that unpacks to more"
            )
        if num_records > most_records:
            raise RequestTooLargeError(
                f"expected at most {most_records:,} records in a request, found more"
            )
    return pa.ipc.read_schema(first)


def _next(reader: Any) -> Any:
    try:
        return reader.read_next_message()
    except StopIteration:
        return None


def _measured(message: Any) -> tuple[int, int]:
    """Return the rows that a batch declares, and the bytes to which its buffers unpack."""
    flat, body = _Flat(message.metadata.to_pybytes()), message.body
    batch = flat.table(flat.root(), 2)  # Message: version, header_type, header, bodyLength
    if message.type == "dictionary":
        batch = flat.table(batch, 1)  # DictionaryBatch: id, data, isDelta
    rows = flat.number(batch, 0, "<q")  # RecordBatch: length, nodes, buffers, compression
    is_compressed = flat.field(batch, 3) is not None
    total = 0
    for offset, length in flat.pairs(batch, 2):
        if min(offset, length) < 0 or offset + length > (0 if body is None else body.size):
            raise DataError("not an Arrow stream: a buffer lies outside of its message")
        unpacked = length
        if is_compressed and length >= 8:
            (said,) = struct.unpack("<q", body.slice(offset, 8).to_pybytes())
            unpacked = length - 8 if said == _NOT_COMPRESSED else said
        if rows < 0 or unpacked < 0:
            raise DataError("not an Arrow stream: a length is negative")
        total += unpacked
    return rows, total


class _Flat:
    """Reads tables of FlatBuffers, which PyArrow does not expose."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def root(self) -> int:
        return self._at(0, "<I")

    def field(self, table: int, number: int) -> int | None:
        """Return the place of a field of a table; None if the table does not have it."""
        fields = table - self._at(table, "<i")
        if 4 + 2 * number >= self._at(fields, "<H"):
            return None
        offset = self._at(fields + 4 + 2 * number, "<H")
        return table + offset if offset else None

    def number(self, table: int, number: int, kind: str) -> int:
        place = self.field(table, number)
        return 0 if place is None else self._at(place, kind)

    def table(self, table: int, number: int) -> int:
        place = self.field(table, number)
        if place is None:
            raise DataError("not an Arrow stream: a message has no content")
        return place + self._at(place, "<I")

    def pairs(self, table: int, number: int) -> Iterator[tuple[int, int]]:
        """Yield the structs of a vector, which have two int64 each."""
        place = self.field(table, number)
        if place is None:
            return
        vector = place + self._at(place, "<I")
        count = self._at(vector, "<I")
        if vector + 4 + 16 * count > len(self._content):
            raise DataError("not an Arrow stream: a message is shorter than it says")
        yield from struct.iter_unpack("<qq", self._content[vector + 4 : vector + 4 + 16 * count])

    def _at(self, place: int, kind: str) -> int:
        (found,) = struct.unpack_from(kind, self._content, place)
        return int(found)


def _check_schema(schema: pyarrow.Schema, specs: Sequence[FeatureSpec]) -> None:
    """Refuse columns that are not features, and types that the features cannot have."""
    known = ", ".join(spec.name for spec in specs)
    for name in sorted(set(schema.names)):
        if name not in {spec.name for spec in specs}:
            raise DataError(f"there is no feature {name[:100]!r}; the model takes {known}")
        if schema.names.count(name) > 1:
            raise DataError(f"feature {name!r} is given twice")
    for spec in specs:
        if spec.name not in schema.names:
            raise DataError(f"feature {spec.name!r} is missing; the model takes {known}")
        kind, depth = schema.field(spec.name).type, 0
        while (inner := _item(kind)) is not None and depth <= len(spec.shape):
            kind, depth = inner, depth + 1
        if depth != len(spec.shape) and not (depth == 0 and spec.shape == (1,)):
            wanted = ["n", *("any" if n is None else n for n in spec.shape)]
            raise DataError(
                f"feature {spec.name!r}: expected the shape {wanted}, found lists {depth} deep"
            )
        if not _is_of(kind, spec.dtype):
            what = "integers" if np.dtype(_dtype(spec)).kind in "iu" else spec.dtype
            raise DataError(f"feature {spec.name!r}: expected {what}, found {str(kind)[:100]}")


def _dtype(spec: FeatureSpec) -> str:
    return "O" if spec.dtype == "str" else spec.dtype


def _item(kind: pyarrow.DataType) -> pyarrow.DataType | None:
    """Return the type of the items of lists; None if the type is not a list."""
    import pyarrow as pa

    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return kind.value_type
    return None


def _is_of(kind: pyarrow.DataType, dtype: str) -> bool:
    """Return whether a column's values fit a feature; the rule is the same as in training."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if dtype == "str":
        return bool(
            types.is_string(kind)
            or types.is_large_string(kind)
            or types.is_string_view(kind)
            or types.is_binary(kind)
            or types.is_large_binary(kind)
            or types.is_binary_view(kind)
        )
    if dtype == "bool":
        return bool(types.is_boolean(kind))
    is_whole = bool(types.is_integer(kind))
    return is_whole or (np.dtype(dtype).kind == "f" and bool(types.is_floating(kind)))


# --- unpacked ------------------------------------------------------------------------------------


def _array(spec: FeatureSpec, chunks: pyarrow.ChunkedArray, most_bytes: int) -> NDArray[Any]:
    import pyarrow as pa

    column = chunks.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no chunk
        column = pa.array([], chunks.type)
    shape = [len(column)]
    for axis, wanted in enumerate(spec.shape if _item(column.type) is not None else ()):
        _check_no_null(spec, column, shape)
        length = _list_length(spec, column, wanted, axis, shape)
        shape.append(length)
        column = column.flatten()
    _check_no_null(spec, column, shape)
    if pa.types.is_dictionary(column.type):
        values = _plain(spec, column.dictionary, most_bytes)
        places = column.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        # A dictionary is small even if many rows name the same long text, so the rows' text is
        # counted.
        if spec.dtype == "str" and len(places):
            lengths = np.array([len(value) for value in values], np.int64)
            _check_text(spec, int(lengths[places].sum()), most_bytes)
        found = values[places] if len(places) else values[:0]
    else:
        found = _plain(spec, column, most_bytes)
    if len(shape) == 1 and spec.shape == (1,):
        shape.append(1)
    return found.reshape(shape)


def _plain(spec: FeatureSpec, column: pyarrow.Array, most_bytes: int) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise DataError(f"feature {spec.name!r}: expected no nulls, found {column.null_count}")
    if spec.dtype == "str":
        types = pa.types
        if types.is_string_view(column.type) or types.is_binary_view(column.type):
            # A view has 16 bytes for any length of text, and many views may show the same text.
            shown = column.view(pa.binary_view()) if types.is_string_view(column.type) else column
            _check_text(spec, sum(len(value.as_buffer()) for value in shown), most_bytes)
        else:
            _check_text(spec, pc.sum(pc.binary_length(column)).as_py() or 0, most_bytes)
        found: NDArray[Any] = np.empty(len(column), object)
        found[:] = column.to_pylist()
        return found
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _check_text(spec: FeatureSpec, num_bytes: int, most_bytes: int) -> None:
    if num_bytes > most_bytes:
        raise RequestTooLargeError(
            f"feature {spec.name!r}: expected at most {most_bytes:,} bytes of text "
            f"(--max_request_bytes), found {num_bytes:,}"
        )


def _check_no_null(spec: FeatureSpec, column: pyarrow.Array, shape: list[int]) -> None:
    if not column.null_count:
        return
    first = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
    record = first // max(1, int(np.prod(shape[1:], dtype=np.int64)))
    raise DataError(
        f"record {record}, feature {spec.name!r}: expected no nulls, found {column.null_count}"
    )


def _list_length(
    spec: FeatureSpec, column: pyarrow.Array, wanted: int | None, axis: int, shape: list[int]
) -> int:
    """Return the common length of all lists of a column."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        length = int(column.type.list_size)
        lengths = np.array([length])
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        length = int(lengths[0]) if wanted is None and len(lengths) else int(wanted or 0)
    expected = length if wanted is None else wanted
    if len(column) and (lengths != expected).any():
        first = int(np.argmax(lengths != expected))
        record = first // max(1, int(np.prod(shape[1:], dtype=np.int64)))
        raise DataError(
            f"record {record}, feature {spec.name!r}: expected lists of one length, {expected} "
            f"values, found {lengths[first]}"
        )
    return expected
