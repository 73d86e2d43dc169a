"""`tf.train.Example` records without TensorFlow: Rust encodes them, protobuf decodes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError, Message
from numpy.typing import ArrayLike, NDArray

from elasticdl import _core
from elasticdl.data.strings import Array
from elasticdl.errors import DataError

Values = NDArray[np.int64] | NDArray[np.float32] | tuple[bytes, NDArray[np.int64]]
_Columns = Mapping[str, ArrayLike]
_KINDS = {"int64": "int64", "float32": "float"}


def encode_examples(columns: _Columns, nearest: Collection[str] = ()) -> list[bytes]:
    """Encode columns as serialised `tf.train.Example` messages, one for each record.

    Features are in the order of their names, so equal columns give equal bytes.

    Args:
        columns: Name -> array whose first axis is the record; further axes are flattened. Whole
            numbers and truth values become int64 features, real numbers float. Text (as UTF-8) and
            bytes become bytes. In an array or list of objects, each object is one value or a
            sequence of values. None, or NaN among text, leaves the feature out of that record.
        nearest: Columns of real numbers that are rounded to the nearest float32, without a check.

    Raises:
        ValueError: Columns differ in length, a type has no feature, or float32 does not hold a
            number that may be an id or a time; names the column.
    """
    if not columns:
        return []
    encoded = [
        (name, *_encode_column(name, columns[name], name in nearest)) for name in sorted(columns)
    ]
    return _core.encode_examples(encoded, len(encoded[0][2]) - 1)


def decode_example(record: bytes) -> dict[str, list[object]] | None:
    """Decode a serialised `tf.train.Example`; None if the bytes are not one with features."""
    message = _example_class()()
    try:
        message.ParseFromString(record)
    except DecodeError:
        return None
    features = message.features.feature  # type: ignore[attr-defined]
    # protobuf keeps unknown fields silently. Other bytes can look like an empty message.
    if not features or message.ByteSize() != len(record):
        return None
    return {name: _feature_values(features[name]) for name in sorted(features)}


def decode_examples(
    records: Sequence[bytes], columns: Mapping[str, tuple[tuple[int, ...], str]]
) -> dict[str, Array]:
    """Decode serialised `tf.train.Example` messages that all have the same features.

    Args:
        records: One message each.
        columns: Name of a feature -> (shape of its values in one record, "int64" or "float32").

    Returns:
        Name -> array whose first axis is the record.

    Raises:
        DataError: A record is not such a message, lacks a feature, or has another number of values;
            names record and feature.
    """
    for name, (_, dtype) in columns.items():
        if dtype not in _KINDS:
            raise DataError(f"feature {name!r}: expected int64 or float32, found {dtype!r}")
    wanted = [
        (name, _KINDS[dtype], int(np.prod(shape, dtype=np.int64)), None)
        for name, (shape, dtype) in columns.items()
    ]
    try:
        found = _core.decode_examples(records, wanted)
    except ValueError as error:
        raise DataError(f"of {len(records)} records, {error}") from error
    return {
        name: np.asarray(values).reshape(len(records), *columns[name][0])
        for name, values, _ in found
    }


def _feature_values(feature: Any) -> list[object]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def _encode_column(
    name: str, column: ArrayLike, takes_nearest: bool
) -> tuple[Values, NDArray[np.int64]]:
    """Return a column's values in one array, and the offset of each record in it."""
    array = _as_array(column)
    if array.ndim == 0:
        raise ValueError(f"column {name!r}: expected one value for each record, found a scalar")
    if array.dtype == object:
        return _encode_objects(name, array, takes_nearest)
    width = int(np.prod(array.shape[1:], dtype=np.int64))
    splits = np.arange(len(array) + 1, dtype=np.int64) * width
    return _encode_values(name, array.reshape(-1), takes_nearest), splits


def _as_array(column: ArrayLike) -> Array:
    """Return a column as an array; lists of text, bytes or sequences become objects."""
    if isinstance(column, list | tuple) and not all(
        isinstance(value, bool | int | float | np.number | np.bool) for value in column
    ):
        return _objects(column)
    return np.asarray(column)


def _objects(values: Sequence[object]) -> Array:
    out = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        out[number] = value
    return out


def _encode_values(name: str, values: Array, takes_nearest: bool) -> Values:
    match values.dtype.kind:
        case "b" | "i":
            return np.ascontiguousarray(values, dtype=np.int64)
        case "u":
            if len(values) and values.max() > np.iinfo(np.int64).max:
                raise ValueError(f"column {name!r}: {values.max()} does not fit an int64 feature")
            return np.ascontiguousarray(values, dtype=np.int64)
        case "f":
            return _narrowed(name, values, takes_nearest)
        case "U" | "S":
            return _join(values.tolist())
        case _:
            raise ValueError(
                f"column {name!r}: {values.dtype} has no tf.train.Example feature; "
                "convert it to numbers or text"
            )


def _narrowed(name: str, values: Array, takes_nearest: bool) -> NDArray[np.float32]:
    """Return numbers as float32; refuse a number that becomes infinite or another whole number."""
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(values, dtype=np.float32)
    if values.dtype.itemsize <= narrow.itemsize:
        return narrow
    size = np.abs(values)
    is_lost = np.isinf(narrow) & (size < np.inf)
    if not takes_nearest:  # above 2^24 several whole numbers are one float32
        is_lost |= (size > 2.0**24) & (size < 2.0**63) & (narrow != values)
    if not is_lost.any():
        return narrow
    first = int(np.argmax(is_lost))
    remedy = f"write whole numbers as int64 by --types={name}=int64, or take the nearest float32 "
    remedy += f"by --types={name}=float"
    raise ValueError(
        f"column {name!r} has {float(values[first])!r}, which a float feature turns into "
        f"{float(narrow[first])!r}: "
        + ("leave the record out" if np.isinf(narrow[first]) else remedy)
    )


def _join(values: Sequence[str | bytes]) -> tuple[bytes, NDArray[np.int64]]:
    encoded = [v.encode() if isinstance(v, str) else v for v in values]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(value) for value in encoded], out=offsets[1:])
    return b"".join(encoded), offsets


def _encode_objects(
    name: str, array: Array, takes_nearest: bool
) -> tuple[Values, NDArray[np.int64]]:
    values = array.tolist()
    if all(isinstance(value, str | bytes) for value in values):
        return _join(values), np.arange(len(values) + 1, dtype=np.int64)
    rows = [_values_of(value) for value in values]
    splits = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=splits[1:])
    values = list(chain.from_iterable(rows))
    if all(isinstance(value, str | bytes) for value in values):
        return _join(values), splits
    numbers = np.asarray(values)
    if numbers.ndim != 1 or numbers.dtype.kind in "OUS":
        kinds = sorted({type(value).__name__ for value in values})
        raise ValueError(f"column {name!r}: expected values of one kind, found {', '.join(kinds)}")
    return _encode_values(name, numbers, takes_nearest), splits


def _values_of(value: object) -> Sequence[object]:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ()
    if isinstance(value, np.ndarray):
        flat: list[object] = value.reshape(-1).tolist()
        return flat
    if isinstance(value, list | tuple):
        return value
    return (value,)


# tensorflow/core/example/{example,feature}.proto, in a pool of their own: TensorFlow registers
# messages of these names in the default one.
_PROTO = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".tensorflow.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
            type_name: ".tensorflow.Feature" } }
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: ".tensorflow.Features.FeatureEntry" } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".tensorflow.Features" } }
"""


@cache
def _example_class() -> type[Message]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
