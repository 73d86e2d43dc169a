"""Plain `keras.layers.Embedding`s with large tables, moved to the ps replicas."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import current_lookup
from elasticdl.packages.keras.layers.constraint import describe_constraint
from elasticdl.packages.keras.layers.initializer import has_array
from elasticdl.packages.keras.layers.table_variable import TableVariable

logger = logging.getLogger(__name__)


class MovedEmbedding(keras.layers.Embedding):  # type: ignore[misc]  # keras has no types
    """The class that a `keras.layers.Embedding` gets when its table is moved.

    The layer object stays the user's and only its class is exchanged, so that wherever the model
    holds it, it is this one. It never had a weight.

    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return rows of the lookup in force, as the plain layer would of its weight."""
        lookup = current_lookup()
        if lookup is None:
            raise ModelError(
                f"Embedding {self.name!r} was moved to the ps replicas; it can be called only "
                "within a job"
            )
        trains = self.trainable and self._embeddings.trainable
        if keras.backend.backend() != "tensorflow":
            rows = lookup(self, keras.ops.convert_to_tensor(inputs))
            rows = rows if trains else keras.ops.stop_gradient(rows)
            return keras.ops.cast(rows, self.compute_dtype)
        # The plain layer casts all but integers of 32 and 64 bits to int32: floats are cut off.
        if inputs.dtype not in (tf.int32, tf.int64):
            inputs = tf.cast(inputs, tf.int32)
        rows = lookup(self, tf.cast(inputs, tf.int64))
        rows = rows if trains else tf.stop_gradient(rows)
        return tf.cast(rows, self.compute_dtype)

    def set_weights(self, weights: Sequence[Array]) -> None:
        """Keep the rows; they are given to the ps replicas when the model is declared."""
        shape = (self.input_dim, self.output_dim)
        found = [np.shape(array) for array in weights]
        if found != [shape]:
            raise ModelError(
                f"Embedding {self.name!r} is given weights of shapes {found}, expected [{shape}]"
            )
        self._embeddings.begin_with(weights[0])

    def load_own_variables(self, store: Mapping[str, Array]) -> None:
        """Take the rows of a file of weights."""
        self.set_weights([store["0"]])

    def enable_lora(self, *_: object, **__: object) -> NoReturn:
        """Refuse; the rows are elsewhere already."""
        raise ModelError(
            f"the model file calls enable_lora of Embedding {self.name!r}, whose table was moved "
            f"to the ps replicas when it was built; {_keep(self)}"
        )


# In files of weights a layer's place is named after its class.
MovedEmbedding.__name__ = keras.layers.Embedding.__name__


def given_rows(layer: keras.layers.Layer) -> Float32 | None:
    """Return the rows that a model file sets for a moved layer, shape (input_dim, output_dim).

    It sets them by `weights=`, `set_weights`, `load_weights`, `assign`, or an array as initializer.
    """
    if not isinstance(layer, MovedEmbedding):
        return None
    given: Float32 | None = layer._embeddings.given
    if given is not None:
        return given
    initializer = layer.embeddings_initializer
    if not has_array(initializer):
        return None
    shape = (layer.input_dim, layer.output_dim)
    try:
        rows = np.broadcast_to(np.asarray(initializer.value, np.float32), shape)
    except ValueError:
        raise ModelError(
            f"Embedding {layer.name!r}: embeddings_initializer is Constant of an array of shape "
            f"{np.shape(initializer.value)}, expected {shape}"
        ) from None
    return np.ascontiguousarray(rows)


@contextmanager
def moving_large_embeddings(threshold_bytes: int) -> Iterator[None]:
    """Move each plain `Embedding` with a table above the threshold, if it is built in the block.

    Keras asks the layer for its weight with `add_weight`; there the table is kept from being
    allocated. `build` would be the natural place, but Keras binds it when a layer is made,
    which may have been before.
    """
    plain = keras.layers.Embedding
    add_weight = plain.add_weight
    # If Embedding only inherits add_weight, the intercepting one must be deleted afterwards.
    had_own = "add_weight" in vars(plain)

    def intercept(self: keras.layers.Embedding, *args: object, **kwargs: object) -> keras.Variable:
        if kwargs.get("name") != "embeddings" or not _should_move(self, threshold_bytes):
            return add_weight(self, *args, **kwargs)
        self.__class__ = MovedEmbedding
        logger.info(
            "Embedding %r (%d rows of %d) is moved to the ps replicas",
            self.name,
            self.input_dim,
            self.output_dim,
        )
        return TableVariable.of(self, _keep(self), takes_rows=True)

    plain.add_weight = intercept
    try:
        yield
    finally:
        if had_own:
            plain.add_weight = add_weight
        else:
            del plain.add_weight


def freeze_what_is_not_in(model: keras.Model, layers: Sequence[keras.layers.Layer]) -> None:
    """Leave the rows of moved layers as they begin that are no part of the model, as Keras does.

    A layer that a function closes over, or that a list of a list holds, is called with the others;
    its variables are none of the model's.
    """
    within = {id(layer) for layer in model._flatten_layers()}
    for layer in layers:
        if isinstance(layer, MovedEmbedding) and id(layer) not in within and layer.trainable:
            layer.trainable = False
            logger.warning(
                "Embedding %r is called but is not part of the model, so it is not trained, as in "
                "Keras; make it an attribute of the layer that calls it",
                layer.name,
            )


def _should_move(layer: keras.layers.Layer, threshold_bytes: int) -> bool:
    num_bytes = layer.input_dim * layer.output_dim * 4
    if num_bytes <= threshold_bytes:
        return False
    reasons = {
        # The copy of a moved layer is one itself.
        "it is a subclass of keras.layers.Embedding": type(layer)
        not in (keras.layers.Embedding, MovedEmbedding),
        "it has a regularizer": layer.embeddings_regularizer is not None,
        "its constraint is not one of each row alone": not _fits_rows(layer),
        "it uses LoRA": bool(layer.lora_rank),
        "it is quantized": bool(layer.quantization_mode),
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if why is not None:
        logger.warning(
            "Embedding %r (%d bytes) stays a dense variable, pulled whole at each step: %s",
            layer.name,
            num_bytes,
            why,
        )
    return why is None


def _fits_rows(layer: keras.layers.Layer) -> bool:
    try:
        describe_constraint(layer.embeddings_constraint, layer.name)
    except ModelError:
        return False
    return True


def _keep(layer: keras.layers.Layer) -> str:
    num_bytes = layer.input_dim * layer.output_dim * 4
    return f"to keep it a dense variable, say --embedding_threshold_bytes={num_bytes}"
