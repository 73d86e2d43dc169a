"""The variables of a user's Keras model, by how they travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32, VariableDescription
from elasticdl.errors import ModelError
from elasticdl.packages.keras.layers.table_variable import TableVariable

SEED_NAME = "seed_generator_state"
EXACT_INTEGERS = 2**24  # below it, each integer is a float32 of its own

Values = list[tuple[keras.Variable, tf.Tensor]]
"""(variable, tensor in its place)"""


class Variables:
    """The variables of a model that cross as one flat float32 vector.

    Attributes:
        parts: The place of each variable in the flat vector.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self.variables = tuple(variables)
        self._shapes = [tuple(int(n) for n in v.shape) for v in variables]
        self._sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes]
        ends = np.cumsum(self._sizes).tolist()
        self.parts = tuple(
            slice(end - size, end) for end, size in zip(ends, self._sizes, strict=True)
        )
        self.size = sum(self._sizes)
        self._counters = [
            (variable, part)
            for variable, part in zip(self.variables, self.parts, strict=True)
            if not is_float(variable)
        ]

    def describe(self) -> tuple[VariableDescription, ...]:
        """Name the variables and say where each lies."""
        return tuple(
            VariableDescription(v.path, shape, part.start)
            for v, shape, part in zip(self.variables, self._shapes, self.parts, strict=True)
        )

    def repeat(self, by_variable: Sequence[float]) -> Float32:
        """Return a flat vector that has a number of each variable in all its elements."""
        return np.repeat(np.asarray(by_variable, np.float32), self._sizes)

    def values(self) -> Float32:
        """Return the variables' own values as a flat vector."""
        parts = [np.asarray(v.numpy(), np.float32).ravel() for v in self.variables]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def split(self, flat: tf.Tensor) -> Values:
        """Cut a flat tensor into (variable, tensor of its shape and dtype) pairs."""
        if not self.variables:
            return []
        return [
            (v, _in_dtype_of(v, tf.reshape(part, shape)))
            for v, part, shape in zip(
                self.variables, tf.split(flat, self._sizes), self._shapes, strict=True
            )
        ]

    def join(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Put tensors of the variables' shapes into one flat tensor."""
        if not tensors:
            return tf.zeros([0], tf.float32)
        return tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in tensors], 0)

    def assign(self, flat: Float32) -> None:
        """Set the variables themselves; for the export."""
        for variable, value in self.split(tf.constant(flat, tf.float32)):
            variable.assign(value)

    def check_counters(self, flat: Float32) -> None:
        """Refuse values of integer variables from which on a float32 cannot count.

        Raises:
            ModelError: Names the variable.
        """
        for variable, part in self._counters:
            if np.abs(flat[part]).max(initial=0.0) >= EXACT_INTEGERS:
                raise ModelError(
                    f"variable {variable.path!r} has counted to {EXACT_INTEGERS}, from where on a "
                    "float32, in which workers pass it on, cannot count; count in larger steps, or "
                    "let it start again from 0"
                )


class Seeds:
    """States of seed generators, which each minibatch begins anew."""

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self.variables = tuple(variables)
        self._own = [np.int64(np.asarray(v.numpy()).ravel()[0]) for v in variables]

    def begun(self, seed: tf.Tensor) -> Values:
        """Give each generator its own seed mixed with the minibatch's, and counter zero."""
        return [(v, _begun(seed, own, v)) for v, own in zip(self.variables, self._own, strict=True)]

    @staticmethod
    def of(seed: tf.Tensor, variable: keras.Variable) -> tf.Tensor:
        """Do the same for a generator that is not the model's own."""
        # The first value of the state is a number, so it is read outside of the trace.
        with tf.init_scope():
            state = variable._value
            if state is None:  # it was made within this trace
                state = variable._initializer(variable.shape, dtype=variable.dtype)
            own = np.int64(np.asarray(state).ravel()[0])
        return _begun(seed, own, variable)


def _begun(seed: tf.Tensor, own: np.int64, variable: keras.Variable) -> tf.Tensor:
    # The state of a generator of Keras is a pair: a seed and a counter.
    pair = tf.stack([tf.bitwise.bitwise_xor(seed, own), tf.zeros_like(seed)])
    return tf.cast(pair, variable.dtype)


@dataclass(frozen=True, slots=True)
class ModelVariables:
    """All variables of a model.

    Attributes:
        dense: Trainable variables.
        state: Variables that are not trained: moving statistics, counters.
        seeds: States of seed generators, which each minibatch's own seed replaces.
        constants: All other variables: integers that a float32 cannot tell apart.
    """

    dense: Variables
    state: Variables
    seeds: Seeds
    constants: tuple[keras.Variable, ...]

    @classmethod
    def of(cls, model: keras.Model) -> ModelVariables:
        """Sort the variables of a model, which has been called."""
        others = _without_tables(model.non_trainable_variables)
        seeds = Seeds([v for v in others if v.name == SEED_NAME])
        others = [v for v in others if v.name != SEED_NAME]
        travels = [is_float(v) or _is_small(v) for v in others]
        return cls(
            Variables(_without_tables(model.trainable_variables)),
            Variables([v for v, does in zip(others, travels, strict=True) if does]),
            seeds,
            tuple(v for v, does in zip(others, travels, strict=True) if not does),
        )


def _without_tables(variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    return [v for v in variables if not isinstance(v, TableVariable)]


def is_float(variable: keras.Variable) -> bool:
    """Say whether a variable has floats of any size."""
    return bool(keras.backend.is_float_dtype(variable.dtype))


def _in_dtype_of(variable: keras.Variable, value: tf.Tensor) -> tf.Tensor:
    """Cast floats; a mean over workers may be a little less than the integer that it stands for."""
    if variable.dtype.startswith(("int", "uint")):
        value = tf.round(value)
    return tf.cast(value, variable.dtype)


def _is_small(variable: keras.Variable) -> bool:
    """Say whether a float32 can stand for the integers of a variable."""
    values = np.abs(np.asarray(variable.numpy()).astype(np.float64))
    return bool(values.max(initial=0.0) < EXACT_INTEGERS)
