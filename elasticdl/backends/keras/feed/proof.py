"""Whether the vectorised form of a `feed` gives the same: at first, and again during the job."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from elasticdl.backends.keras.feed.minibatch import describe
from elasticdl.backends.keras.types import Nested
from elasticdl.data.strings import Array

NUM_PROVED = 1024
"""Records that go both ways before the vectorised form goes alone; all, if a job has fewer."""
_SPOT_RECORDS = 16
_SHARE = 0.01
_ULPS = 16


class FeedProof:
    """Says which records are to go both ways, so that it costs at most 1 % of the time.

    Args:
        num_proved: How many have gone both ways already, with the same result.
        clock: Seconds; for tests.
    """

    def __init__(self, num_proved: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._num_proved = num_proved
        self._clock = clock
        self._began = 0.0
        self._next_time = 0.0
        self._generator = np.random.default_rng(0)

    def choose(self, num_records: int, divisible: bool) -> range:
        """Say which of the next records are to go both ways.

        Args:
            num_records: How many are parsed together next.
            divisible: Whether some of them may go on their own; else all or none.
        """
        self._began = self._clock()
        if self._num_proved < NUM_PROVED:
            first, wanted = 0, NUM_PROVED - self._num_proved
        elif self._began >= self._next_time:
            wanted = _SPOT_RECORDS
            first = int(self._generator.integers(max(1, num_records - wanted + 1)))
        else:
            return range(0)
        return range(first, min(num_records, first + wanted)) if divisible else range(num_records)

    def passed(self, chosen: range) -> None:
        """Go on: the records that were chosen gave the same both ways."""
        self._num_proved += len(chosen)
        now = self._clock()
        self._next_time = now + (now - self._began) / _SHARE


def same(expected: Nested, found: Nested) -> str:
    """Compare two minibatches: floats to a few units in the last place, all else exactly.

    Returns:
        What differs, or an empty string.
    """
    try:
        tf.nest.assert_same_structure(expected, found)
    except (TypeError, ValueError):
        return f"{describe(found)} instead of {describe(expected)}"
    pairs = zip(
        tf.nest.flatten(expected, expand_composites=True),
        tf.nest.flatten(found, expand_composites=True),
        strict=True,
    )
    for a, b in pairs:
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{describe(b)} instead of {describe(a)}"
        if not _equal(a.numpy(), b.numpy()):
            return f"other values in {describe(a)}"
    return ""


def _equal(a: Array, b: Array) -> bool:
    if np.iscomplexobj(a):
        return _equal(a.real, b.real) and _equal(a.imag, b.imag)
    if not np.issubdtype(a.dtype, np.inexact):
        return bool(np.array_equal(a, b))
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    epsilon = float(np.finfo(a.dtype).eps)
    a, b = (np.where(finite, values, 0.0).astype(np.float64) for values in (a, b))
    # A difference of large numbers has the rounding of those: hence the largest of the column,
    # which is one place in a record's tensor. Other columns are of other things, and say nothing.
    largest = np.abs(a).max(axis=0, keepdims=True, initial=0.0) if a.ndim else np.abs(a)
    tolerance = _ULPS * epsilon * np.maximum(np.abs(a), 0.1 * largest)
    return bool(np.all(np.abs(a - b) <= tolerance))
