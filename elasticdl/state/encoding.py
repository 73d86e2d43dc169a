"""Encodes large values as JSON, a part at a time.

The encoder of the standard library blocks all other threads while it runs. For a snapshot of a
million tasks the master's event loop would stand still for most of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_ITEMS = 2_000  # encoded at once: about a millisecond
_FEW = 100


def encoded(value: Any) -> Iterator[str]:
    """Yield the JSON of a value in parts; joined, they are the result of `json.dumps`.

    Raises:
        TypeError: The value holds an object that JSON does not have.
    """
    if isinstance(value, dict):
        yield from _entries(value)
    elif isinstance(value, list | tuple):
        yield from _items(value)
    else:
        yield dumps(value)


def dumps(value: Any) -> str:
    """Return the JSON of a small value, without blanks."""
    return json.dumps(value, separators=(",", ":"))


def _items(values: list[Any] | tuple[Any, ...]) -> Iterator[str]:
    before, small = "[", []
    for value in values:
        is_large = _is_large(value)
        if not is_large:
            small.append(value)
        if small and (is_large or len(small) == _ITEMS):
            yield before + dumps(small)[1:-1]
            before, small = ",", []
        if is_large:
            yield before
            yield from encoded(value)
            before = ","
    if small:
        yield before + dumps(small)[1:-1]
        before = ","
    yield "]" if before == "," else "[]"


def _entries(values: dict[Any, Any]) -> Iterator[str]:
    before, small = "{", {}
    for key, value in values.items():
        is_large = _is_large(value)
        if not is_large:
            small[key] = value
        if small and (is_large or len(small) == _ITEMS):
            yield before + dumps(small)[1:-1]
            before, small = ",", {}
        if is_large:
            # The 0 stands for the value, and is cut off again: only the key is encoded here.
            yield before + dumps({key: 0})[1:-2]
            yield from encoded(value)
            before = ","
    if small:
        yield before + dumps(small)[1:-1]
        before = ","
    yield "}" if before == "," else "{}"


def _is_large(value: Any) -> bool:
    """Return whether a value is so large that it is encoded by itself, in parts."""
    if isinstance(value, dict):
        return len(value) > _FEW or any(map(_is_large, value.values()))
    if isinstance(value, list | tuple):
        return len(value) > _FEW or any(map(_is_large, value))
    return False
