"""Calling a traced function with flat tensors, at the price of one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class FlatFunction:
    """A concrete function of tensors that returns tensors.

    TensorFlow's own call binds and checks a Python signature each time, which costs a fifth of
    a small training step. The caller answers for the number, types and shapes of the inputs.
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
