"""Turns columns of Arrow into arrays of NumPy, for Parquet files and for answers of servers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.strings import Array, Column, Strings
from elasticdl.errors import DataError

if TYPE_CHECKING:
    import pyarrow


_NOT_COMPRESSED = -1  # in place of the length of a buffer of Arrow
Convert = Callable[["pyarrow.Array"], Column]
TEXTS = ("arrow.json", "arrow.uuid")
"""Types that Arrow has as extensions, and that are text here."""
WHOLE_BELOW = 2.0**53
"""Above this, float64 cannot tell all whole numbers apart."""


def column_converter(
    arrow: ModuleType, field: pyarrow.Field, has_nulls: bool, keeps_missing: bool = False
) -> tuple[Convert, np.dtype[np.generic]]:
    """Return a function from an Arrow array of this type to a NumPy array, and the array's type.

    Args:
        arrow: The module `pyarrow`.
        field: Name and type of the column.
        has_nulls: Whether any chunk of the column may have null.
        keeps_missing: Numbers with null become objects with None, not float64 with NaN.
    """
    types, kind = arrow.types, field.type
    # A column without any value has no type. Its missing values are read as missing numbers.
    if types.is_null(kind):
        field = arrow.field(field.name, arrow.float64())
        plain, dtype = column_converter(arrow, field, True, keeps_missing)
        return (lambda array: plain(array.cast(field.type))), dtype
    if types.is_dictionary(kind):
        plain, dtype = column_converter(
            arrow, arrow.field(field.name, kind.value_type), has_nulls, keeps_missing
        )
        return (lambda array: plain(array.dictionary_decode())), dtype
    if types.is_decimal(kind):
        as_numbers = _whole if kind.scale <= 0 else _nearest
        number = arrow.int64() if kind.scale <= 0 else arrow.float64()
        field = arrow.field(field.name, number)
        plain, dtype = column_converter(arrow, field, has_nulls, keeps_missing)
        return (lambda array: plain(as_numbers(arrow, field.name, array))), dtype
    is_whole = types.is_boolean(kind) or types.is_integer(kind)
    # NaN could not be told from a missing number.
    if has_nulls and keeps_missing and (is_whole or types.is_floating(kind)):
        return _with_none, np.dtype(object)
    if is_whole and has_nulls:
        return _with_nan(arrow, field), np.dtype(np.float64)
    if is_whole or types.is_floating(kind):
        return _to_numpy, np.dtype(kind.to_pandas_dtype())
    if types.is_time(kind) or getattr(kind, "extension_name", "") in TEXTS:
        return _words(arrow), np.dtype(object)
    if types.is_temporal(kind):
        unit = "D" if types.is_date(kind) else kind.unit
        name = "timedelta64" if types.is_duration(kind) else "datetime64"
        dtype = np.dtype(f"{name}[{unit}]")
        return (lambda array: _to_numpy(array).astype(dtype)), dtype
    return _object_converter(arrow, field)


def joined_kind(
    arrow: ModuleType, one: pyarrow.DataType, other: pyarrow.DataType
) -> pyarrow.DataType | None:
    """Return the type that holds the values of two; None if there is none.

    A column that is all null in one file has no type there. Text is the same text in each form in
    which Arrow keeps it. The wider of two types of numbers or times holds both.
    """
    kinds = [_plain(arrow, kind) for kind in (one, other)]
    if arrow.null() not in kinds and kinds.count(arrow.string()) == 1:
        return None  # bytes are no words
    is_decimal, is_whole = arrow.types.is_decimal, arrow.types.is_integer
    scales = [kind.scale for kind in kinds if is_decimal(kind)]
    if scales and all(is_decimal(kind) or is_whole(kind) for kind in kinds):
        # Arrow's own choice for decimals and whole numbers is too narrow for some of them.
        return arrow.decimal256(76, max(0, *scales))
    schemas = [arrow.schema([("x", kind)]) for kind in kinds]
    try:
        return arrow.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (arrow.ArrowTypeError, arrow.ArrowInvalid):
        return None


def as_kind(
    arrow: ModuleType, name: str, array: pyarrow.Array, kind: pyarrow.DataType
) -> pyarrow.Array:
    """Return an array in the type that the column has over all files.

    Raises:
        DataError: The type cannot hold a value.
    """
    if array.type == kind:
        return array
    # Arrow may refuse the cast between the types, although there is no value to change.
    if array.null_count == len(array):
        return arrow.nulls(len(array), kind)
    if arrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        return array.cast(kind)
    except arrow.ArrowInvalid as error:
        raise DataError(
            f"column {name!r} is {array.type} here, and {kind} with the other files, which does "
            f"not hold all values ({error}); write the files with one type"
        ) from error


def _plain(arrow: ModuleType, kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type of the values, without the form in which Arrow keeps them."""
    types = arrow.types
    if types.is_dictionary(kind):
        return _plain(arrow, kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return arrow.string()
    if types.is_binary_view(kind):
        return arrow.binary()
    return arrow.timestamp(kind.unit, "UTC") if types.is_timestamp(kind) and kind.tz else kind


def _object_converter(
    arrow: ModuleType, field: pyarrow.Field
) -> tuple[Convert, np.dtype[np.generic]]:
    types, kind = arrow.types, field.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _texts(arrow, field), np.dtype(object)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    if is_bytes or types.is_fixed_size_binary(kind):
        return (lambda array: Strings.of_nullable(array, b"")), np.dtype(object)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        if not types.is_nested(inner):
            values, dtype = column_converter(arrow, arrow.field(field.name, inner), has_nulls=False)
            if types.is_fixed_size_list(kind) and types.is_primitive(inner) and dtype.kind != "O":
                return _vectors(field, values, dtype), dtype
            return _lists(field, values), np.dtype(object)
    raise DataError(
        f"column {field.name!r} has the type {kind}, which has no array; "
        "leave it out with --data_reader_params=columns=..."
    )


def column_kind(arrow: ModuleType, kind: pyarrow.DataType) -> str | None:
    """Return the kind of values of an Arrow type, as in `Metadata.column_kinds`."""
    types = arrow.types
    if types.is_dictionary(kind):
        return column_kind(arrow, kind.value_type)
    if types.is_boolean(kind):
        return "truth"
    if types.is_integer(kind) or (types.is_decimal(kind) and kind.scale <= 0):
        return "whole"
    if types.is_decimal(kind):
        return f"decimal {kind.scale}"
    if types.is_date(kind):
        return "date"
    if types.is_timestamp(kind):
        return "timestamp UTC" if kind.tz else "timestamp"
    return None


def _whole(arrow: ModuleType, name: str, decimals: pyarrow.Array) -> pyarrow.Array:
    """Return decimals without decimal places as whole numbers."""
    try:
        return decimals.cast(arrow.int64())
    except arrow.ArrowInvalid as error:
        raise DataError(
            f"column {name!r} ({decimals.type}) is whole numbers, and has one that int64 does not "
            f"hold ({error}); write it as text to use it as an id, or as float64"
        ) from error


def _nearest(arrow: ModuleType, name: str, decimals: pyarrow.Array) -> pyarrow.Array:
    """Return decimals as the nearest float64; Arrow's own cast may miss it by a digit.

    A value is refused if float64 would make it equal to another one.
    """
    numbers = decimals.cast(arrow.string()).cast(arrow.float64())
    values = numbers.to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(np.abs(values) >= WHOLE_BELOW).tolist():
        value = decimals[row].as_py()
        if value != float(values[row]):
            raise DataError(
                f"column {name!r} ({decimals.type}) is read as float64, and has {value}, which "
                f"float64 turns into {values[row]:.1f}; write it as text, or as int64",
                row,
            )
    return numbers


def _with_nan(arrow: ModuleType, field: pyarrow.Field) -> Convert:
    """Return a function that makes float64 of whole numbers with nulls, if it holds them."""

    def convert(array: pyarrow.Array) -> Column:
        try:
            return np.asarray(array.cast(arrow.float64()).to_numpy(zero_copy_only=False))
        except arrow.ArrowInvalid as error:
            raise DataError(
                f"column {field.name!r} ({field.type}) has null, so it is read as float64. It has "
                f"numbers above 2^53, which would not stay different ({error}); fill the nulls"
            ) from error

    return convert


def _texts(arrow: ModuleType, field: pyarrow.Field) -> Convert:
    """Return a function that makes `Strings` of text, and refuses bytes that are not UTF-8."""

    def convert(array: pyarrow.Array) -> Column:
        try:
            # Arrow does not check text when it reads it. An invalid byte would fail much later, in
            # the user's code.
            array.validate(full=True)
        except arrow.ArrowInvalid:
            row, found = _first_no_text(array.cast(arrow.large_binary()).to_pylist())
            raise DataError(
                f"column {field.name!r} is text, and has {found[:40]!r}, which is not UTF-8; "
                "write the column as binary, or correct the text",
                row,
            ) from None
        return Strings.of_nullable(array, "")

    return convert


def _words(arrow: ModuleType) -> Convert:
    """Return a function that writes values as text, as `str` and CSV do; null as ""."""

    def convert(array: pyarrow.Array) -> Column:
        words = ["" if value is None else str(value) for value in array.to_pylist()]
        return Strings(arrow.array(words, arrow.string()))

    return convert


def _first_no_text(values: list[bytes | None]) -> tuple[int, bytes]:
    for row, value in enumerate(values):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            assert value is not None
            return row, value
    raise AssertionError("Arrow found one")


def _to_numpy(array: pyarrow.Array) -> Array:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _with_none(array: pyarrow.Array) -> NDArray[np.object_]:
    out = np.empty(len(array), dtype=object)
    out[:] = array.to_pylist()
    return out


def _vectors(field: pyarrow.Field, values: Convert, dtype: np.dtype[np.generic]) -> Convert:
    """Return a function that makes a matrix of vectors of one length."""

    def convert(array: pyarrow.Array) -> Column:
        if array.null_count:
            raise DataError(
                f"column {field.name!r} ({field.type}) has null instead of a vector; fill it, or "
                "write the column as lists of any length, in which null is an empty list"
            )
        flat = array.flatten()
        if flat.null_count and dtype.kind != "f":
            raise DataError(
                f"column {field.name!r} ({field.type}) has null in a vector, which whole numbers "
                "and truth values have no place for; fill it, or write the vectors as floats"
            )
        return np.asarray(values(flat)).reshape(len(array), field.type.list_size)

    return convert


def _lists(field: pyarrow.Field, values: Convert) -> Convert:
    """Return a function that makes an array of each list, all of one type; of null an empty one."""

    def convert(array: pyarrow.Array) -> Column:
        flat = array.flatten()  # without those of null
        kind = values(flat[:0]).dtype.kind
        if flat.null_count and kind not in "fO":  # NaN stands for null, and empty text
            raise DataError(
                f"column {field.name!r} ({field.type}) has null in a list; expected values: "
                "leave them out of the lists, or fill them"
            )
        lengths = [0 if length is None else length for length in _lengths(array)]
        try:
            flat_values = np.asarray(values(flat))
        except DataError as error:
            raise DataError(str(error)) from error  # not of the record of its number
        rows = np.split(flat_values, np.cumsum(lengths[:-1], dtype=np.int64))
        out = np.empty(len(array), dtype=object)
        for number in range(len(array)):
            out[number] = rows[number]
        return out

    return convert


def _lengths(array: pyarrow.Array) -> list[int | None]:
    import pyarrow.compute

    found: list[int | None] = pyarrow.compute.list_value_length(array).to_pylist()
    return found


def read_stream(content: bytes) -> pyarrow.Table:
    """Return the rows of a stream of Arrow's record batches, as a table that is sound.

    Raises:
        DataError: The bytes are not such a stream.
    """
    import pyarrow as arrow

    # They come from anybody, such as who may write to a topic, so nothing in them is trusted.
    source = arrow.BufferReader(content)
    try:
        with arrow.ipc.open_stream(source) as reader:
            found = reader.read_all()
            left = len(content) - source.tell()
        found.validate(full=True)  # else what it says of lengths and places is believed
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"not an Arrow stream: {error}") from error
    if left:
        raise DataError(f"not an Arrow stream: {left} bytes follow after its end")
    return found


def measure_stream(content: bytes) -> tuple[pyarrow.Schema, int, int]:
    """Return the schema of a stream, its records, and the bytes to which it unpacks.

    Only the heads of its messages are read: a small stream can unpack to many gigabytes.

    Raises:
        DataError: The bytes are not such a stream.
    """
    import pyarrow as arrow

    num_bytes = num_records = 0
    try:
        reader = arrow.ipc.MessageReader.open_stream(arrow.BufferReader(content))
        first = _next(reader)
        if first is None or first.type != "schema":
            raise DataError("not an Arrow stream: expected a schema first")
        while (message := _next(reader)) is not None:
            if message.type not in ("record batch", "dictionary"):
                raise DataError(f"not an Arrow stream: found a message {message.type!r}")
            records, unpacked = _measured(message)
            num_bytes += unpacked
            num_records += records if message.type == "record batch" else 0
        return arrow.ipc.read_schema(first), num_records, num_bytes
    except DataError:
        raise
    except Exception as error:  # Arrow raises what it likes for what it cannot read
        words = " ".join(str(error).split())[:300]
        raise DataError(f"not an Arrow stream: {words}") from error


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
