"""What layers over dense, sparse and ragged tensors have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class RawLayer(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """A layer whose inputs come as they are.

    Keras would cast them to the layer's float type, and take dense tensors alone.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = False


class ElementLayer(RawLayer):
    """A layer that treats each value by itself: the output has the structure of the input."""

    def call(self, inputs: Any) -> Any:
        """Return the values' results where the values were."""
        return map_values(self._of_values, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the input."""
        return input_shape

    def compute_output_spec(self, inputs: Any) -> Any:
        """Say what a symbolic call gives."""
        return like(inputs, inputs.shape, self._output_dtype())

    @abstractmethod
    def _of_values(self, values: Any) -> Any:
        """Return the results of a dense tensor of any shape."""

    @abstractmethod
    def _output_dtype(self) -> str:
        """Return the type of the results."""


def as_tensor(inputs: Any) -> Any:
    """Return a tensor of TensorFlow, sparse and ragged ones as they are."""
    if isinstance(inputs, tf.SparseTensor | tf.RaggedTensor):
        return inputs
    return tf.convert_to_tensor(inputs)


def map_values(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Call a function on the values of a dense, sparse or ragged tensor; keep its structure."""
    inputs = as_tensor(inputs)
    if isinstance(inputs, tf.SparseTensor):
        return inputs.with_values(function(inputs.values))
    if isinstance(inputs, tf.RaggedTensor):
        return inputs.with_flat_values(function(inputs.flat_values))
    return function(inputs)


def strings_of(values: Any) -> Any:
    """Return strings: truth values as `True` and `False`, integers in decimal.

    Floats are cut off to integers as Keras' `Hashing` does.
    """
    if values.dtype == tf.string:
        return values
    if values.dtype == tf.bool:
        return tf.where(values, "True", "False")
    return tf.as_string(tf.cast(values, tf.int64) if values.dtype.is_floating else values)


def like(inputs: Any, shape: Any, dtype: str) -> Any:
    """Return a symbolic tensor with the structure of another."""
    if getattr(inputs, "ragged", False):
        return keras.KerasTensor(shape, dtype, ragged=True)
    return keras.KerasTensor(shape, dtype, sparse=bool(getattr(inputs, "sparse", False)))
