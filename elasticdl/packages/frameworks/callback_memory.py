"""The memory of a callback between calls, as JSON: any worker may make the next call."""

from __future__ import annotations

import json
import math

import numpy as np

from elasticdl.errors import ModelError


class CallbackMemory:
    """Reads and sets what callbacks of one framework remember.

    Args:
        not_remembered: Attributes that the framework or the job sets for each call.
    """

    def __init__(self, *not_remembered: str) -> None:
        self._not_remembered = not_remembered

    def of(self, callback: object) -> dict[str, object]:
        """Return what a callback remembers, as far as JSON knows it."""
        found = {}
        for name, value in vars(callback).items():
            if name in self._not_remembered:
                continue
            try:
                found[name] = _plain(value)
            except TypeError:
                continue
        return found

    def remind(self, callback: object, state: dict[str, object]) -> None:
        """Give a callback its attributes back."""
        for name, value in state.items():
            setattr(callback, name, _decoded(value))

    def unknown(self, callback: object) -> dict[str, object]:
        """Return the attributes that JSON does not know."""
        known = self.of(callback)
        return {
            name: value
            for name, value in vars(callback).items()
            if name not in known and name not in self._not_remembered
        }

    def refuse_what_is_forgotten(self, callback: object, before: dict[str, object]) -> None:
        """Refuse a value that JSON does not know and that was set since.

        Args:
            callback: It was called.
            before: Its `unknown` attributes before that.

        Raises:
            ModelError: There is one; names it.
        """
        for name, value in self.unknown(callback).items():
            if name not in before or before[name] is not value:
                raise ModelError(
                    f"callback {type(callback).__name__} sets {name} to a {type(value).__name__}, "
                    "which the next worker that calls it cannot be given; remember numbers, "
                    "strings, arrays, lists and dicts"
                )


def _plain(value: object) -> object:
    """Return a value as JSON has it.

    Raises:
        TypeError: JSON has no such value.
    """
    if isinstance(value, bool | int | str | type(None)):
        return value
    if isinstance(value, float):
        # JSON has no infinity and no NaN, so their text is kept. NumPy's float64 is a float too.
        return value if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, np.ndarray | np.generic):
        values = value.tolist()
        json.dumps(values)  # complex numbers, bytes and dates raise
        return {"array": values, "dtype": str(value.dtype)}
    if isinstance(value, list | tuple):
        # JSON has one kind of list, so the kind is kept beside the values.
        return {"tuple" if isinstance(value, tuple) else "list": [_plain(v) for v in value]}
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        # JSON makes strings of all keys, so a dict is kept as pairs.
        return {"dict": [[key, _plain(v)] for key, v in value.items()]}
    raise TypeError(type(value).__name__)


def _decoded(value: object) -> object:
    if not isinstance(value, dict):
        return value
    match value:
        case {"float": text}:
            return float(text)
        case {"array": values, "dtype": dtype}:
            array = np.asarray(values, dtype)
            # A number of NumPy was kept as an array without axes; `[()]` makes it a number again.
            return array if array.ndim else array[()]
        case {"list": values}:
            return [_decoded(v) for v in values]
        case {"tuple": values}:
            return tuple(_decoded(v) for v in values)
        case {"dict": items}:
            return {key: _decoded(v) for key, v in items}
    raise ModelError(f"a callback's state holds {value!r}; was it written by another version?")
