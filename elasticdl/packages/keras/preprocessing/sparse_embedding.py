"""`SparseEmbedding` combines the rows of a record's ids."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import Shape
from elasticdl.packages.keras.layers.embedding import COMBINERS, Embedding
from elasticdl.packages.keras.preprocessing.numbers import positive


@keras.saving.register_keras_serializable(package="elasticdl")
class SparseEmbedding(Embedding):
    """An `elasticdl.layers.Embedding` for lists of ids, whose rows are combined for each record.

    Ids are sparse, ragged, or dense. In a dense tensor, -1 (or "" for strings) fills the places of
    records with fewer ids.

    Args:
        input_dim: The number of rows, or None; see `elasticdl.layers.Embedding`.
        output_dim: The width of a row.
        initializer: The distribution of new rows: `embeddings_initializer` of
            `elasticdl.layers.Embedding`.
        combiner: "sum", "mean", "sqrtn" (the sum, divided by the root of the number of ids), or
            "tile". "tile" puts the first `max_ids` rows beside each other, with zeros after a
            record's last row. Its result has the shape `(batch, max_ids * output_dim)`.
        max_ids: The number of ids for "tile"; further ids of a record are not looked up.
        **kwargs: Further arguments of `elasticdl.layers.Embedding`.
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
        # "tile" is no combiner of `Embedding`: `call` makes it of sums.
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
        # Ids beyond `max_ids` are cut off first, so their rows are not pulled.
        lists = lists[:, : self.max_ids]
        # Each id is its own list here: the sum of the list is the id's row, and an empty list gives
        # zeros.
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
        """Return the arguments that rebuild the layer, without its rows."""
        config = super().get_config()
        if self.max_ids is not None:
            config["combiner"] = "tile"
        return {**config, "max_ids": self.max_ids}


def _lists(inputs: tf.Tensor) -> tf.Tensor:
    """Return ids as a ragged tensor, without the filling of a dense one."""
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
