"""Calling traced functions with flat tensors, at the price of one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class FlatFunction:
    """A concrete function of tensors or NumPy arrays that returns tensors.

    TensorFlow's own call binds and checks a Python signature each time, which costs a fifth of
    a small training step. The caller answers for the number, types and shapes of the inputs.
    An array goes to TensorFlow as it is, without a copy where it lies at a multiple of 64 bytes
    (`tf.constant` makes one or two), and must not change during the call.
    """

    def __init__(self, concrete: Any) -> None:
        self._concrete = concrete  # kept alive: the operation knows it by name only
        self._captured = list(concrete.captured_inputs)
        self._dtypes = [output.dtype for output in concrete.outputs]

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Return the outputs, flat."""
        if not self._dtypes:
            return []
        outputs: Sequence[Any] = tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *self._captured], Tout=self._dtypes, f=self._concrete
        )
        return outputs


class StructuredFunction:
    """A function of one nested structure that returns another, traced once and called flat.

    Args:
        function: Traced with AutoGraph, as `tf.function` does.
        spec: The structure of its argument.
    """

    def __init__(self, function: Callable[[Any], Any], spec: Any) -> None:
        def flat(argument: Any) -> Any:
            self._structure = function(argument)
            return tf.nest.flatten(self._structure, expand_composites=True)

        self._call = FlatFunction(tf.function(flat).get_concrete_function(spec))

    def __call__(self, argument: Any) -> Any:
        """Return what the function gives for an argument of its spec."""
        outputs = self._call(*tf.nest.flatten(argument, expand_composites=True))
        return tf.nest.pack_sequence_as(self._structure, list(outputs), expand_composites=True)
