"""Calling traced functions with flat tensors, at the price of one operation."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from elasticdl.backends.average import as_numbers
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError, users_place_in
from elasticdl.packages.keras.types import ConcreteFunction, Nested, Specs

_ALIGNMENT = 64  # TensorFlow's kernels stop the process on tensors that lie elsewhere


def as_tensor(array: Array) -> tf.Tensor:
    """Return a tensor of an array's elements, which must not change while the tensor lives.

    `tf.constant` copies an array, and TensorFlow its copy once more unless that lies at a multiple
    of 64 bytes, which it never does. Here only one is made, and none of an array that lies so.
    """
    if array.size == 0:
        return tf.constant(array)
    if array.ctypes.data % _ALIGNMENT or not array.flags.carray:
        array = _aligned(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def as_predicted(tensor: tf.Tensor | None) -> Array | None:
    """Return a prediction as an array of a type that a file may hold.

    Raises:
        ModelError: It is sparse or ragged, and has no row for each record.
    """
    if tensor is None:
        return None
    if isinstance(tensor, tf.RaggedTensor | tf.SparseTensor):
        raise ModelError(
            f"the model gives a tf.{type(tensor).__name__}: expected dense tensors as predictions, "
            "such as outputs.to_tensor() or tf.sparse.to_dense(outputs)"
        )
    array = as_numbers(tensor)
    return array.astype(np.bytes_) if array.dtype == object else array


def _aligned(array: Array) -> Array:
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class FlatFunction:
    """A concrete function of tensors that returns tensors.

    TensorFlow's own call binds and checks a Python signature each time, which costs a fifth of
    a small training step. The caller answers for the number, types and shapes of the inputs.

    executor_type: TensorFlow's name of what runs the operations of all functions; "": its choice,
        a single thread, which is fast and tells a profiler nothing of them. "DEFAULT" does.
        `own_profile` alone changes it.
    """

    executor_type: ClassVar[str] = ""

    def __init__(self, concrete: ConcreteFunction) -> None:
        self._concrete = concrete  # kept alive: the operation knows it by name only
        self._captured = list(concrete.captured_inputs)
        self._dtypes = [output.dtype for output in concrete.outputs]

    def __call__(self, *inputs: tf.Tensor) -> Sequence[tf.Tensor]:
        """Return the outputs, flat."""
        return self._called(inputs, self.executor_type)

    def _called(self, inputs: Sequence[tf.Tensor], executor_type: str) -> Sequence[tf.Tensor]:
        if not self._dtypes:
            return []
        outputs: Sequence[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *self._captured],
            Tout=self._dtypes,
            f=self._concrete,
            executor_type=executor_type,
        )
        return outputs

    def place_of_failure(self, inputs: Sequence[tf.Tensor]) -> str:
        """Return where the operation is written that fails on inputs: " (FILE:LINE)", or "".

        It is called again: an executor of a single thread does not say which operation failed.
        """
        try:
            self._called(inputs, "DEFAULT")
        except tf.errors.OpError as error:
            for name in re.findall(r"\{\{node ([^}]+)\}\}", str(error)):
                place = users_place_in(_traceback_of(self._concrete.graph, name))
                if place:
                    return f" ({place})"
        return ""


def _traceback_of(graph: tf.Graph, name: str) -> Sequence[traceback.FrameSummary]:
    """Return the frames that made an operation, or the one that it is within."""
    while name:
        try:
            return tuple(graph.get_operation_by_name(name).traceback)
        except KeyError:
            name = name.rpartition("/")[0]
    return ()


class StructuredFunction:
    """A function of one nested structure that returns another, traced once and called flat.

    Args:
        function: Traced with AutoGraph, as `tf.function` does.
        spec: The structure of its argument.
    """

    def __init__(self, function: Callable[[Nested], Nested], spec: Specs) -> None:
        def flat(argument: Nested) -> list[tf.Tensor]:
            self._structure = function(argument)
            tensors: list[tf.Tensor] = tf.nest.flatten(self._structure, expand_composites=True)
            return tensors

        self.concrete = tf.function(flat).get_concrete_function(spec)
        self._call = FlatFunction(self.concrete)

    @property
    def structure(self) -> Nested:
        """Return the structure of the function's outputs, as it was traced."""
        return self._structure

    def __call__(self, argument: Nested) -> Nested:
        """Return what the function gives for an argument of its spec."""
        return self.pack(self._call(*tf.nest.flatten(argument, expand_composites=True)))

    def pack(self, outputs: Sequence[tf.Tensor]) -> Nested:
        """Return flat outputs in the structure that the function gives."""
        return tf.nest.pack_sequence_as(self._structure, list(outputs), expand_composites=True)
