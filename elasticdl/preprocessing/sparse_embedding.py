"""`SparseEmbedding`: the rows of a record's ids, combined."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.layers.embedding import COMBINERS, Embedding
from elasticdl.layers.lookup import Shape
from elasticdl.preprocessing.numbers import positive


@keras.saving.register_keras_serializable(package="elasticdl")
class SparseEmbedding(Embedding):
    """An `elasticdl.layers.Embedding` for lists of ids, which are combined by record.

    Ids are sparse or ragged, or dense with -1 (of strings: "") where a record has fewer.

    Args:
        input_dim: Number of rows, or None: see `elasticdl.layers.Embedding`.
        output_dim: Width of a row.
        initializer: It makes the rows: `embeddings_initializer` of `elasticdl.layers.Embedding`.
        combiner: "sum", "mean", "sqrtn" (the sum, divided by the root of how many), or "tile":
            the first `max_ids` rows beside each other, zeros after a record's last one, which
            gives `(batch, max_ids * output_dim)`.
        max_ids: For "tile"; further ids of a record are not looked up.
        **kwargs: Whatever else `elasticdl.layers.Embedding` takes.
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        initializer: object = "uniform",
        combiner: str = "mean",
        max_ids: int | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("embeddings_initializer", initializer)
        if combiner not in (*COMBINERS, "tile"):
            raise ModelError(
                f"SparseEmbedding: combiner must be one of {', '.join(COMBINERS)} or tile, found "
                f"{combiner!r}"
            )
        tiled = combiner == "tile"
        super().__init__(output_dim, input_dim, combiner="sum" if tiled else combiner, **kwargs)
        if tiled != (max_ids is not None):
            raise ModelError(
                f"SparseEmbedding {self.name!r}: max_ids goes with combiner='tile', and 'tile' "
                f"with max_ids; found combiner={combiner!r}, max_ids={max_ids!r}"
            )
        self.max_ids = None if max_ids is None else positive("max_ids", max_ids, self)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the rows of each record, combined."""
        lists = _lists(inputs)
        if self.max_ids is None:
            return super().call(lists)
        lists = lists[:, : self.max_ids]
        # Each id is a list of its own here: its sum is its row, and that of an empty list zeros.
        single = tf.RaggedTensor.from_row_lengths(
            lists.values, tf.ones_like(lists.values, tf.int64)
        )
        rows = lists.with_values(super().call(single))
        batch = lists.shape[0]
        dense = rows.to_tensor(shape=[batch, self.max_ids, self.output_dim])
        dense = tf.reshape(dense, [-1, self.max_ids * self.output_dim])
        return tf.ensure_shape(dense, (batch, self.max_ids * self.output_dim))

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        """Return (records, width)."""
        return (input_shape[0], self.output_dim * (self.max_ids or 1))

    def get_config(self) -> dict[str, object]:
        """Return what rebuilds the layer, its rows excepted."""
        config = super().get_config()
        if self.max_ids is not None:
            config["combiner"] = "tile"
        return {**config, "max_ids": self.max_ids}


def _lists(inputs: tf.Tensor) -> tf.Tensor:
    """Return ids as a ragged tensor; of dense ones those that are no filling."""
    if isinstance(inputs, tf.RaggedTensor):
        return inputs.merge_dims(1, -1) if inputs.shape.rank > 2 else inputs
    if isinstance(inputs, tf.SparseTensor):
        return tf.RaggedTensor.from_value_rowids(
            inputs.values, inputs.indices[:, 0], inputs.dense_shape[0], validate=False
        )
    inputs = tf.convert_to_tensor(inputs)
    if inputs.shape.rank == 1:
        inputs = inputs[:, None]
    filling = tf.constant("" if inputs.dtype == tf.string else -1, inputs.dtype)
    return tf.ragged.boolean_mask(inputs, tf.not_equal(inputs, filling))
