"""Requests in Arrow: streams of strangers, which are measured before they are unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.backends.served import FeatureSpec
from elasticdl.data.arrow_columns import measure_stream, read_stream
from elasticdl.distribution import install, is_missing
from elasticdl.errors import ConfigError, DataError, RequestTooLargeError

if TYPE_CHECKING:
    import pyarrow


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
    schema, num_records, num_bytes = measure_stream(content)
    if num_bytes > most_bytes:
        raise RequestTooLargeError(
            f"expected at most {most_bytes:,} bytes (--max_request_bytes), found a request that "
            "unpacks to more"
        )
    if num_records > most_records:
        raise RequestTooLargeError(
            f"expected at most {most_records:,} records in a request, found more"
        )
    return schema


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
