"""`elasticdl.layers.Remote`: a part of a Keras model that may be computed on model servers."""

from __future__ import annotations

import keras
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import Shape, current_lookup
from elasticdl.packages.frameworks.towers import towers_are_elsewhere


@keras.saving.register_keras_serializable(package="elasticdl")
class Remote(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Returns the outputs of a tower for ids; the tower may be computed elsewhere.

    A tower is a layer or model that takes ids of shape `(n,)`, int64, and gives `(n, dim)`. It
    computes each id by itself: the output of an id must not depend on other ids. Model
    servers compute the tower (`--num_model_servers`), each id once for all workers that ask at the
    same time. If there are none, or in a plain Python session, this process computes it.

    Args:
        tower: The layer or model.
    """

    def __init__(self, tower: keras.layers.Layer, **kwargs: object) -> None:
        super().__init__(**kwargs)
        if not isinstance(tower, keras.layers.Layer):
            raise ModelError(
                f"Remote: expected a keras layer or model that takes ids, found {tower!r}"
            )
        self.tower = tower
        self.output_dim = 0  # known after the first call
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def build(self, input_shape: Shape | None = None) -> None:
        """Build nothing: the tower is built when it is called."""
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs of ids of any shape, `ids.shape + (dim,)`."""
        ids = tf.convert_to_tensor(inputs)
        if not ids.dtype.is_integer:
            raise ModelError(f"Remote {self.name!r}: ids must be integers, found {ids.dtype.name}")
        ids = tf.cast(ids, tf.int64)
        lookup = current_lookup()
        if lookup is not None and towers_are_elsewhere():
            return lookup(self, ids)
        outputs = self.of_ids(tf.reshape(ids, [-1]))
        shape = tf.concat([tf.shape(ids), tf.shape(outputs)[1:]], 0)
        return tf.ensure_shape(tf.reshape(outputs, shape), [*ids.shape, self.output_dim])

    def of_ids(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the outputs of the tower for ids of shape (n,)."""
        outputs = self.tower(ids)
        shape = getattr(outputs, "shape", None)
        if shape is None or len(shape) != 2 or shape[1] is None:
            raise ModelError(
                f"Remote {self.name!r}: the tower must give a tensor of shape (ids, dim) for ids "
                f"of shape (ids,), found {shape}"
            )
        self.output_dim = int(shape[1])
        return tf.cast(outputs, tf.float32)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call."""
        outputs = self.tower(keras.KerasTensor((None,), "int64"))
        self.output_dim = int(outputs.shape[-1])
        return keras.KerasTensor((*inputs.shape, self.output_dim), "float32")

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        tower = keras.saving.serialize_keras_object(self.tower)
        return {**super().get_config(), "tower": tower}

    @classmethod
    def from_config(cls, config: dict[str, object]) -> Remote:
        """Return the layer of a configuration."""
        tower = keras.saving.deserialize_keras_object(config.pop("tower"))
        return cls(tower, **config)
