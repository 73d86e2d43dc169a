"""How columns of Arrow become arrays of NumPy: of Parquet files, and of what servers send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.strings import Column, Strings
from elasticdl.errors import DataError

Convert = Callable[[Any], Column]


def column_converter(
    arrow: Any, field: Any, has_nulls: bool, keeps_missing: bool = False
) -> tuple[Convert, np.dtype[Any]]:
    """Return how an Arrow array of this type becomes a NumPy array, and of which type that is.

    Args:
        arrow: The module `pyarrow`.
        field: Name and type of the column.
        has_nulls: Whether any chunk of the column may have null.
        keeps_missing: Numbers with null become objects with None, not float64 with NaN.
    """
    types, kind = arrow.types, field.type
    if types.is_dictionary(kind):
        plain, dtype = column_converter(
            arrow, arrow.field(field.name, kind.value_type), has_nulls, keeps_missing
        )
        return (lambda array: plain(array.dictionary_decode())), dtype
    is_whole = types.is_boolean(kind) or types.is_integer(kind)
    if has_nulls and keeps_missing and (is_whole or types.is_floating(kind)):
        return _with_none, np.dtype(object)
    if has_nulls and keeps_missing and types.is_decimal(kind):
        return (lambda array: _with_none(array.cast(arrow.float64()))), np.dtype(object)
    if is_whole and has_nulls:
        return (
            lambda array: np.asarray(array.cast(arrow.float64(), safe=False).to_numpy(False))
        ), np.dtype(np.float64)
    if is_whole or types.is_floating(kind):
        return _to_numpy, np.dtype(kind.to_pandas_dtype())
    if types.is_decimal(kind):
        return (lambda array: _to_numpy(array.cast(arrow.float64()))), np.dtype(np.float64)
    if types.is_temporal(kind) and not types.is_time(kind):
        unit = "D" if types.is_date(kind) else kind.unit
        name = "timedelta64" if types.is_duration(kind) else "datetime64"
        dtype = np.dtype(f"{name}[{unit}]")
        return (lambda array: _to_numpy(array).astype(dtype)), dtype
    return _object_converter(arrow, field)


def _object_converter(arrow: Any, field: Any) -> tuple[Convert, np.dtype[Any]]:
    types, kind = arrow.types, field.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return (lambda array: Strings.of_nullable(array, "")), np.dtype(object)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return (lambda array: Strings.of_nullable(array, b"")), np.dtype(object)
    if types.is_fixed_size_list(kind) and types.is_primitive(kind.value_type):
        return _vectors(field), np.dtype(kind.value_type.to_pandas_dtype())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        if not types.is_nested(inner) and not types.is_null(inner):
            values, _ = column_converter(arrow, arrow.field(field.name, inner), has_nulls=False)
            return _lists(field, values), np.dtype(object)
    raise DataError(
        f"column {field.name!r} has the type {kind}, which has no array; "
        "leave it out with --data_reader_params=columns=..."
    )


def _to_numpy(array: Any) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _with_none(array: Any) -> NDArray[np.object_]:
    out = np.empty(len(array), dtype=object)
    out[:] = array.to_pylist()
    return out


def _vectors(field: Any) -> Convert:
    """Return what makes vectors of one length a matrix."""

    def convert(array: Any) -> Column:
        if array.null_count:
            raise DataError(
                f"column {field.name!r} ({field.type}) has null in place of a vector; fill it, or "
                "write the column as lists of any length, of which null is an empty one"
            )
        return _to_numpy(array.flatten()).reshape(len(array), field.type.list_size)

    return convert


def _lists(field: Any, values: Convert) -> Convert:
    """Return what makes an array of each list, all of one type; of null an empty one."""

    def convert(array: Any) -> Column:
        flat = array.flatten()  # without those of null
        kind = values(flat[:0]).dtype.kind
        if flat.null_count and kind not in "fO":  # NaN stands for null, and empty text
            raise DataError(
                f"column {field.name!r} ({field.type}) has null in a list; expected values: "
                "leave them out of the lists, or fill them"
            )
        lengths = [0 if length is None else length for length in _lengths(array)]
        rows = np.split(np.asarray(values(flat)), np.cumsum(lengths[:-1], dtype=np.int64))
        out = np.empty(len(array), dtype=object)
        for number in range(len(array)):
            out[number] = rows[number]
        return out

    return convert


def _lengths(array: Any) -> list[int | None]:
    import pyarrow.compute

    found: list[int | None] = pyarrow.compute.list_value_length(array).to_pylist()
    return found
