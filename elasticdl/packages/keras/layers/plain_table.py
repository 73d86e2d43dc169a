"""Rows for a Keras `Embedding` in a plain Python session."""

from __future__ import annotations

import tensorflow as tf

from elasticdl.packages.frameworks.plain_rows import PlainRows
from elasticdl.packages.keras.layers.constraint import RowConstraint
from elasticdl.packages.keras.layers.initializer import describe_initializer


class PlainTable:
    """Creates rows when they are first looked up, as a job with seed 0 creates them."""

    def __init__(
        self,
        name: str,
        dim: int,
        input_dim: int | None,
        initializer: object,
        constraint: RowConstraint | None = None,
    ) -> None:
        described = describe_initializer(initializer, name, dim, input_dim)
        self._dim = dim
        self._rows = PlainRows(name, dim, input_dim, described, constraint)

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows of an int64 tensor, `ids.shape + (dim,)`; eagerly or in a function."""
        if tf.executing_eagerly():
            return tf.convert_to_tensor(self._rows.pull(ids.numpy()))
        # A lookup creates rows, so TensorFlow must not merge calls or leave one out.
        rows = tf.numpy_function(self._rows.pull, [ids], tf.float32, stateful=True)
        return tf.ensure_shape(
            rows, (*ids.shape, self._dim) if ids.shape.rank is not None else None
        )
