"""A column of text or bytes in Arrow, which is cut and permuted without Python objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import keys_of_strings
from elasticdl.errors import DataError


class Strings:
    """Many strings of text or of bytes; used in place of an array of objects.

    Slices and selections are `Strings` again; `numpy.asarray` gives an array of objects.

    Args:
        array: An array of Arrow, of strings or binary, without null.
    """

    dtype = np.dtype(object)
    ndim = 1

    def __init__(self, array: Any) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    @property
    def shape(self) -> tuple[int]:
        """The shape, as of an array."""
        return (len(self),)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return Strings(self._array[key])
        if isinstance(key, np.ndarray):
            return Strings(self._array.take(key) if key.dtype != bool else self._array.filter(key))
        return self._array[int(key)].as_py()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._array.to_pylist())

    def tolist(self) -> list[Any]:
        """Return a list of `str` or `bytes`."""
        found: list[Any] = self._array.to_pylist()
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.tolist()
        out = np.empty(len(values), dtype=object)
        out[:] = values
        return out if dtype is None else out.astype(dtype)

    def to_arrow(self) -> Any:
        """Return the array of Arrow."""
        return self._array

    def as_bytes(self) -> NDArray[Any]:
        """Return an array of `bytes`, text as UTF-8, made by Arrow."""
        import pyarrow

        array = self._array.cast(pyarrow.binary())
        if not len(array):
            return np.empty(0, dtype=np.bytes_)
        return np.asarray(array.to_numpy(zero_copy_only=False))

    @classmethod
    def of_nullable(cls, array: Any, null: str | bytes) -> Strings:
        """Return the strings of an Arrow array of any string type; null becomes `null`."""
        import pyarrow

        array = array.cast(pyarrow.string() if isinstance(null, str) else pyarrow.binary())
        return cls(array.fill_null(null) if array.null_count else array)


Array: TypeAlias = NDArray[Any]
"""An array of any dtype that a column, a feature or a variable has."""

Column = Array | Strings


def ids_of_strings(strings: Any) -> NDArray[np.int64]:
    """Return ids for an `Embedding` without `num_embeddings` (Keras: `input_dim`).

    The id of a string is FarmHash's Fingerprint64 of its UTF-8 bytes, modulo 2**63 - 1. It is the
    same on every machine and in every version. Keras' `Embedding` gives a string the same id.

    Args:
        strings: A column of strings, or an array or list of `str` or `bytes`, of any shape.

    Returns:
        Ids of the same shape, from 0 to 2**63 - 2.

    Raises:
        DataError: A value is neither str nor bytes.
    """
    array = np.asarray(strings) if isinstance(strings, Strings) else _array_of(strings)
    values = array.ravel().tolist()
    try:
        return keys_of_strings(values).reshape(array.shape)
    except TypeError:
        place, found = next(
            (k, value) for k, value in enumerate(values) if not isinstance(value, str | bytes)
        )
        raise DataError(
            f"ids_of_strings: expected str or bytes, found {type(found).__name__} "
            f"({found!r}) as number {place}; numbers are ids as they are, and a missing value "
            'needs a string of its own, like ""'
        ) from None


def _array_of(strings: Any) -> NDArray[Any]:
    """Return an array of objects: NumPy's own strings would lose zero bytes at their ends."""
    if isinstance(strings, np.ndarray):
        return strings
    return np.array(strings, dtype=object)


def concatenate(parts: Sequence[Column]) -> Column:
    """Join columns of one kind.

    Raises:
        DataError: The joined type could not hold some of the numbers exactly.
    """
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Strings) for part in parts):
        import pyarrow

        return Strings(pyarrow.concat_arrays([p._array for p in parts if isinstance(p, Strings)]))
    arrays = [np.asarray(part) for part in parts]
    joined = np.concatenate(arrays)
    if joined.dtype.kind == "f":
        # NumPy joins int64 and float64 as float64, without an error for large numbers.
        for array in arrays:
            _require_exact(array, joined.dtype)
    return joined


def _require_exact(array: Array, kind: np.dtype[Any]) -> None:
    """Refuse whole numbers that would become equal because a reader changes the type."""
    if array.dtype.kind in "iu" and array.size:
        largest = max(abs(int(array.min())), abs(int(array.max())))
        if largest > 2 ** (np.finfo(kind).nmant + 1):
            raise DataError(
                f"a column is {array.dtype} in some records, {largest} among them, and of another "
                f"type in others, so that all are {kind}, in which several numbers are one: "
                "expected one type, such as np.asarray(values, np.int64)"
            )
