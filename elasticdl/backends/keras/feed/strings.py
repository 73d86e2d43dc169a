"""Many strings at once as a tensor."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

SEPARATOR = b"\x1f"  # the "unit separator" of ASCII: text does not have it


def string_tensor(data: bytes, offsets: NDArray[np.int64]) -> Any:
    """Return a vector of strings; string i is `data[offsets[i]:offsets[i + 1]]`.

    TensorFlow cuts them itself, out of one: to slice each of them in Python takes longer.
    """
    count = len(offsets) - 1
    if SEPARATOR in data:
        return _one_by_one(data, offsets)
    joined = np.insert(np.frombuffer(data, np.uint8), offsets[1:-1], SEPARATOR[0])
    return split(joined.tobytes(), count, lambda: _one_by_one(data, offsets))


def split(joined: bytes, count: int, otherwise: Any) -> Any:
    """Return the strings that are joined by `SEPARATOR`; what `otherwise` gives if it cannot."""
    if count < 2:
        return otherwise()
    found = tf.raw_ops.StringSplitV2(input=[joined], sep=SEPARATOR).values
    return found if found.shape[0] == count else otherwise()


def _one_by_one(data: bytes, offsets: NDArray[np.int64]) -> Any:
    ends = offsets.tolist()
    values = [data[start:end] for start, end in itertools.pairwise(ends)]
    return tf.constant(values, tf.string)
