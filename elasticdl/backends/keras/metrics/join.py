"""Several minibatches as one: a call of a metric costs more than what it computes."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from elasticdl.backends.keras.metrics.kinds import mask_of, with_mask
from elasticdl.backends.keras.types import Nested

Part = tuple[Nested, Nested, Nested]
"""Labels, predictions and sample weights of a minibatch, or None."""


def joined(parts: Sequence[Part]) -> Sequence[Part]:
    """Return one part with the records of all, or the parts themselves if their shapes differ."""
    if len(parts) < 2:
        return parts
    try:
        structures = [tf.nest.flatten(part) for part in parts]
        for other in parts[1:]:
            tf.nest.assert_same_structure(parts[0], other)
        leaves = [_concatenated(leaf) for leaf in zip(*structures, strict=True)]
    except (TypeError, ValueError, tf.errors.OpError):
        return parts
    labels, predictions, weights = tf.nest.pack_sequence_as(parts[0], leaves)
    return [(labels, predictions, weights)]


def _concatenated(leaves: Sequence[tf.Tensor]) -> tf.Tensor | None:
    if leaves[0] is None:
        return None
    if not all(isinstance(leaf, tf.Tensor) and leaf.shape.rank for leaf in leaves):
        raise TypeError("only tensors with records are joined")
    masks = [mask_of(leaf) for leaf in leaves]
    mask = None if masks[0] is None else tf.concat(masks, 0)
    return with_mask(tf.concat(leaves, 0), mask)
