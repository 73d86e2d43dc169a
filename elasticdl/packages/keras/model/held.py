"""Variables of a model whose values others hold: ps replicas, or the worker's exchange.

After a model was built, its own variables keep the values that it was built with. A step computes
on tensors in place of them. Other readers (a callback, a metric, a schedule) would see those first
values for ever. So they get the current values where these are known, and are refused elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32
from elasticdl.errors import ModelError
from elasticdl.packages.keras.internals import get_stateless_scope
from elasticdl.packages.keras.model.variables import Variables


class HeldVariables:
    """Watches the variables of a model from its making on.

    Args:
        groups: The variables as they cross.
    """

    def __init__(self, *groups: Variables) -> None:
        self._groups = groups
        self._values: Sequence[Float32] | None = None
        self._is_open = False
        self._places = {
            id(variable): (number, part)
            for number, group in enumerate(groups)
            for variable, part in zip(group.variables, group.parts, strict=True)
        }
        for group in groups:
            for variable in group.variables:
                # Layers and user code hold these very objects, so the class changes and the object
                # stays.
                variable.__class__ = _watched(type(variable))
                variable._holder = self

    @contextmanager
    def reading(self, *values: Float32) -> Iterator[None]:
        """Let the variables be read meanwhile: they have the values of these flat vectors."""
        before, self._values = self._values, values
        try:
            yield
        finally:
            self._values = before

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let the variables have their own values meanwhile."""
        before, self._is_open = self._is_open, True
        try:
            yield
        finally:
            self._is_open = before

    def value_of(self, variable: keras.Variable) -> tf.Tensor:
        """Return what a variable is read as, outside of the calls of model and loss.

        Raises:
            ModelError: It is not known there.
        """
        if self._is_open:
            return variable._value
        if self._values is None:
            raise ModelError(
                f"the model file reads variable {variable.path!r} of the model outside of the "
                "model's call, loss(labels, predictions) and metrics; its value is not known "
                "there, because the process that applies the updates holds it. Read it in one of "
                "these"
            )
        if keras.backend.backend() != "tensorflow" or tf.executing_eagerly():
            return self._now(variable)
        # Read when it runs: a function that is traced in an evaluation runs in the next one, too.
        value = tf.py_function(lambda: self._now(variable), [], variable._value.dtype)
        return tf.ensure_shape(value, variable.shape)

    def check_assign(self, variable: keras.Variable) -> None:
        """Refuse an assignment that would be lost.

        Raises:
            ModelError: Names the variable.
        """
        if not self._is_open:
            raise ModelError(
                f"the model file assigns variable {variable.path!r} of the model after the model "
                "was made, which would be lost: the process that applies updates holds its value. "
                "Assign it in the model function"
            )

    def _now(self, variable: keras.Variable) -> tf.Tensor:
        assert self._values is not None, "a metric runs while it is updated"
        number, part = self._places[id(variable)]
        value = np.reshape(self._values[number][part], variable.shape)
        if variable.dtype.startswith(("int", "uint")):
            # A mean over workers may be a little less than the integer that it stands for.
            value = np.rint(value)
        return keras.ops.convert_to_tensor(value.astype(variable.dtype), variable.dtype)


def _watched(kind: type[keras.Variable]) -> type[keras.Variable]:
    """Return a class of variables that ask their holder; variables keep their place in memory."""

    class Watched(kind):  # type: ignore[misc]  # keras has no types
        @property
        def value(self) -> tf.Tensor:
            # Within a call of the model, the tensors of the step stand in place of the variables.
            scope = get_stateless_scope()
            found = None if scope is None else scope.get_current_value(self)
            if found is None:
                found = self._holder.value_of(self)
            return self._maybe_autocast(found)

        def _direct_assign(self, value: tf.Tensor) -> None:
            self._holder.check_assign(self)
            super()._direct_assign(value)

    Watched.__name__, Watched.__qualname__ = kind.__name__, kind.__qualname__
    return Watched
