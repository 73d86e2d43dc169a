"""Whether the vectorised form of a `feed` gives the same for the first records of a job."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from elasticdl.data.strings import Array
from elasticdl.packages.keras.feed.minibatch import describe
from elasticdl.packages.keras.types import Nested

NUM_PROVED = 1024
"""Records that go both ways before the vectorised form goes alone; all, if a job has fewer."""
_ULPS = 16


def same(expected: Nested, found: Nested) -> str:
    """Compare two minibatches: floats to a few units in the last place, all else exactly.

    Returns:
        The difference, or an empty string.
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
    # NaN and infinity have no distance, so they must be equal.
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    epsilon = float(np.finfo(a.dtype).eps)
    a, b = (np.where(finite, values, 0.0).astype(np.float64) for values in (a, b))
    # A difference of large numbers keeps their rounding. So the tolerance follows the largest value
    # of the column, which is one place in a record's tensor. Other columns have other units.
    largest = np.abs(a).max(axis=0, keepdims=True, initial=0.0) if a.ndim else np.abs(a)
    tolerance = _ULPS * epsilon * np.maximum(np.abs(a), 0.1 * largest)
    return bool(np.all(np.abs(a - b) <= tolerance))
