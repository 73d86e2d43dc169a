"""The common base of layers over dense, sparse and ragged tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import keras
import tensorflow as tf

from elasticdl.packages.frameworks.lookup import Shape


class RawLayer(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """A layer whose inputs are passed on unchanged.

    Keras would cast them to the layer's float type, and accept only dense tensors.
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        # XLA has neither strings nor ragged tensors.
        self.supports_jit = False


class ElementLayer(RawLayer):
    """A layer that treats each value by itself, so the output has the structure of the input."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the results, each in the place of its value."""
        return map_values(self._of_values, inputs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of the input."""
        return input_shape

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call."""
        return like(inputs, inputs.shape, self._output_dtype())

    @abstractmethod
    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        """Return the results of a dense tensor of any shape."""

    @abstractmethod
    def _output_dtype(self) -> str:
        """Return the type of the results."""


def as_tensor(inputs: tf.Tensor) -> tf.Tensor:
    """Return a tensor of TensorFlow; sparse and ragged tensors stay unchanged."""
    if isinstance(inputs, tf.SparseTensor | tf.RaggedTensor):
        return inputs
    return tf.convert_to_tensor(inputs)


def map_values(function: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    """Call a function on the values of a dense, sparse or ragged tensor; keep its structure."""
    inputs = as_tensor(inputs)
    if isinstance(inputs, tf.SparseTensor):
        return inputs.with_values(function(inputs.values))
    if isinstance(inputs, tf.RaggedTensor):
        return inputs.with_flat_values(function(inputs.flat_values))
    return function(inputs)


def strings_of(values: tf.Tensor) -> tf.Tensor:
    """Return strings: truth values become `True` and `False`, integers their decimals.

    Floats are cut off to integers, as Keras' `Hashing` does.
    """
    if values.dtype == tf.string:
        return values
    if values.dtype == tf.bool:
        return tf.where(values, "True", "False")
    return tf.as_string(tf.cast(values, tf.int64) if values.dtype.is_floating else values)


def like(inputs: tf.Tensor, shape: Shape, dtype: str) -> tf.Tensor:
    """Return a symbolic tensor with the structure of another."""
    if getattr(inputs, "ragged", False):
        return keras.KerasTensor(shape, dtype, ragged=True)
    return keras.KerasTensor(shape, dtype, sparse=bool(getattr(inputs, "sparse", False)))
