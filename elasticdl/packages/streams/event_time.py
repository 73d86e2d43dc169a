"""Event times of messages: the meaning of a field, in seconds since 1970.

All formats have one rule. A number, or the text of a number, counts the time since 1970. Below
10^11 it is in seconds, below 10^14 in milliseconds, below 10^17 in microseconds, else in
nanoseconds. Other text is a time of ISO 8601; without a zone it is UTC.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN_CHARACTERS = 60
_MOST_CHARACTERS = 40  # of text in an array, all of which has the width of the longest
_STEPS = (1e11, 1e14, 1e17)
_UNITS = np.array([1.0, 1e3, 1e6, 1e9])


def seconds_of(values: Sequence[object], name: str) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Return the times in a field, shape (n,), and the reasons why some are invalid, by place.

    Args:
        values: The values of the field: numbers, text, bytes, or None if a message lacks it.
        name: The name of the field, for errors.
    """
    # Most fields are good numbers, and NumPy converts them together. One bad value sends all of
    # them through the slow way, which finds it.
    numbers = _numbers(values)
    if numbers is not None and (numbers > 0.0).all() and (numbers < np.inf).all():
        return numbers / _UNITS[np.searchsorted(_STEPS, numbers, side="right")], {}
    times, why = np.zeros(len(values)), {}
    for place, value in enumerate(values):
        found = _seconds(value)
        if found is None:
            why[place] = (
                f"{name!r}: expected an event time, in seconds or milliseconds since 1970 or as "
                f"text such as 2026-01-31T12:00:00Z, found {shown(value)}"
            )
        else:
            times[place] = found
    return times, why


def _numbers(values: Sequence[Any]) -> NDArray[np.float64] | None:
    """Return values that are all numbers, or text of numbers; None if any may not be."""
    kinds = set(map(type, values))
    try:
        if kinds <= {int, float}:
            return np.array(values, np.float64)
        # NumPy gives each text the width of the longest one, so one long value would take much
        # memory.
        if kinds in ({bytes}, {str}) and max(map(len, values)) <= _MOST_CHARACTERS:
            texts = np.array(values)
            # NumPy takes zero bytes at the end of text off; the slow way refuses such text.
            return texts.astype(np.float64) if texts.tolist() == list(values) else None
    except (ValueError, OverflowError):
        pass
    return None


def _seconds(value: Any) -> float | None:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _of_text(value)
    if type(value) not in (int, float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not 0.0 < number < math.inf:
        return None
    return number / float(_UNITS[sum(number >= step for step in _STEPS)])


def _of_text(text: str) -> float | None:
    try:
        found = datetime.fromisoformat(text.strip())
        seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def shown(value: object) -> str:
    """Return a value of a message as errors show it."""
    if value is None:
        return "none"
    words = repr(value)
    return words if len(words) <= _SHOWN_CHARACTERS else f"{words[:_SHOWN_CHARACTERS]}..."
