"""A column of text or bytes as Arrow has it, which is cut and permuted without Python objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Strings:
    """Many strings of text or of bytes; stands where an array of objects stands.

    Slices and chosen places are `Strings` again; `numpy.asarray` gives an array of objects.

    Args:
        array: Of Arrow, of strings or binary, without null.
    """

    dtype = np.dtype(object)
    ndim = 1

    def __init__(self, array: Any) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    @property
    def shape(self) -> tuple[int]:
        """As of an array."""
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
        """Return the strings of an Arrow array of any type of strings; null stands for `null`."""
        import pyarrow

        array = array.cast(pyarrow.string() if isinstance(null, str) else pyarrow.binary())
        return cls(array.fill_null(null) if array.null_count else array)


Column = NDArray[Any] | Strings


def concatenate(parts: Sequence[Column]) -> Column:
    """Join columns of one kind."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Strings) for part in parts):
        import pyarrow

        return Strings(pyarrow.concat_arrays([p._array for p in parts if isinstance(p, Strings)]))
    return np.concatenate([np.asarray(part) for part in parts])
