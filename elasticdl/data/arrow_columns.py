"""How columns of Arrow become arrays of NumPy: of Parquet files, and of what servers send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.strings import Column, Strings
from elasticdl.errors import DataError

Convert = Callable[[Any], Column]


def column_converter(arrow: Any, field: Any, has_nulls: bool) -> tuple[Convert, np.dtype[Any]]:
    """Return how an Arrow array of this type becomes a NumPy array, and of which type that is."""
    types, kind = arrow.types, field.type
    if types.is_dictionary(kind):
        plain, dtype = column_converter(arrow, arrow.field(field.name, kind.value_type), has_nulls)
        return (lambda array: plain(array.dictionary_decode())), dtype
    if types.is_boolean(kind) or types.is_integer(kind):
        if has_nulls:
            return (
                lambda array: np.asarray(array.cast(arrow.float64(), safe=False).to_numpy(False))
            ), np.dtype(np.float64)
        return _to_numpy, np.dtype(kind.to_pandas_dtype())
    if types.is_floating(kind):
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
    if types.is_fixed_size_list(kind) and arrow.types.is_primitive(kind.value_type):
        size = kind.list_size
        return (lambda array: _to_numpy(array.flatten()).reshape(len(array), size)), np.dtype(
            kind.value_type.to_pandas_dtype()
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists, np.dtype(object)
    raise DataError(
        f"column {field.name!r} has the type {kind}, which has no array; "
        "leave it out with --data_reader_params=columns=..."
    )


def _to_numpy(array: Any) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _lists(array: Any) -> NDArray[Any]:
    out = np.empty(len(array), dtype=object)
    for number, value in enumerate(array.to_pylist()):
        out[number] = np.asarray([] if value is None else value)
    return out
