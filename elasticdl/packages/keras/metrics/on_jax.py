"""Metrics of Keras on JAX: one compiled call for an update, in place of one for each operation."""

from __future__ import annotations

from collections.abc import Callable

import jax
import keras

from elasticdl.packages.keras.internals import set_keras_mask
from elasticdl.packages.keras.types import Nested

State = list[jax.Array]


def compiled_update(metric: keras.metrics.Metric) -> Callable[..., None]:
    """Return a function that updates a metric with labels, predictions, their mask and weights."""

    def call(
        state: State, labels: Nested, predictions: Nested, mask: jax.Array, weights: Nested
    ) -> State:
        if mask is not None:
            set_keras_mask(predictions, mask)
        given = {} if weights is None else {"sample_weight": weights}
        new: State = metric.stateless_update_state(state, labels, predictions, **given)
        return new

    compiled = jax.jit(call)

    def update(labels: Nested, predictions: Nested, mask: jax.Array, weights: Nested) -> None:
        # A compiled function must not assign variables, so the values go in and come out.
        before = [variable.value for variable in metric.variables]
        if not before:  # it makes them when it first sees a shape
            raise NotImplementedError("a metric without variables cannot be compiled")
        after = compiled(before, labels, predictions, mask, weights)
        for variable, value in zip(metric.variables, after, strict=True):
            variable.assign(value)

    return update
