"""Metrics of one output whose sums add up over workers: Keras' own, and functions of the user."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.backends.average import Average, mean
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.python_state import PythonState, shown
from elasticdl.packages.keras.feed.minibatch import num_records
from elasticdl.packages.keras.internals import get_keras_mask, set_keras_mask
from elasticdl.packages.keras.model.trial import visit
from elasticdl.packages.keras.types import Nested

State = list[NDArray[np.float64]]
_BETTER = {"up": "max", "down": "min"}  # by the words of Keras


class Metric(Protocol):
    """A metric of one output.

    takes_several: Whether several minibatches in one call are the same to it as one by one.
    better: "max" or "min", whichever is better; None if Keras does not know.
    """

    takes_several: bool
    better: str | None

    def reset(self) -> None:
        """Forget all minibatches."""
        ...

    def update(self, labels: Nested, predictions: Nested, weights: Nested = None) -> None:
        """Add a minibatch. A mask that Keras attached to the predictions is respected."""
        ...

    def state(self) -> State:
        """Return the sums so far."""
        ...

    def result(self, state: State) -> dict[str, float]:
        """Compute the metric from sums: suffix of its name (mostly empty) -> value."""
        ...


class KerasMetric:
    """A Keras metric, which keeps its sums in variables."""

    def __init__(self, name: str, metric: keras.metrics.Metric) -> None:
        self._name = name
        self._metric = metric
        self._adds = _is_known_to_add(metric)
        self.takes_several = self._adds and not _calls_a_user(metric)
        self.better = _BETTER.get(getattr(metric, "_direction", None) or "")
        self._is_known = self._adds
        self._initial: State = []  # of a user's metric, whose counts need not begin with zero
        self._update = self._compiled()

    def _compiled(self) -> Callable[..., None]:
        if keras.backend.backend() == "jax":
            # JAX is imported only if Keras computes by it.
            from elasticdl.packages.keras.metrics.on_jax import compiled_update

            return compiled_update(self._metric)
        # TensorFlow counts the traces of a method over all objects, and of a partial by itself:
        # five metrics are no reason to warn of traces.
        update: Callable[..., None] = tf.function(
            functools.partial(self._update_masked), autograph=False, reduce_retracing=True
        )
        return update

    def reset(self) -> None:
        """See `Metric`."""
        self._metric.reset_state()
        self._initial = [] if self._is_known else self._values()

    def update(self, labels: Nested, predictions: Nested, weights: Nested = None) -> None:
        """See `Metric`."""
        labels, predictions = alone(labels, predictions)
        if not self._adds:
            self._prove_that_it_adds(labels, predictions)
        mask = mask_of(predictions)
        try:
            self._update(labels, predictions, mask, weights)
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            self._update_masked(labels, predictions, mask, weights)  # it works on values only

    def state(self) -> State:
        """See `Metric`; what the metric begins with is left out, and belongs to each result."""
        values = self._values()
        # A state may begin with infinity, and NumPy warns of infinity minus infinity.
        with np.errstate(invalid="ignore"):
            for value, first in zip(values, self._initial, strict=False):
                value -= first
        return values

    def _values(self) -> State:
        return [np.array(v.numpy(), np.float64) for v in self._metric.variables]

    def result(self, state: State) -> dict[str, float]:
        """See `Metric`."""
        if len(state) != len(self._metric.variables):
            self._create_variables(state)
        self.reset()
        initial = self._initial or [np.zeros(())] * len(state)
        for variable, value, first in zip(self._metric.variables, state, initial, strict=True):
            variable.assign((value + first).astype(variable.dtype))
        return _named(self._metric.result())

    def _update_masked(
        self, labels: Nested, predictions: Nested, mask: tf.Tensor, weights: Nested
    ) -> None:
        """Update the metric in a traced function, to which masks do not come by themselves."""
        if mask is not None:
            predictions = with_mask(keras.ops.copy(predictions), mask)
        if weights is None:
            self._metric.update_state(labels, predictions)
        else:
            self._metric.update_state(labels, predictions, sample_weight=weights)

    def _create_variables(self, state: State) -> None:
        """Have a metric make the variables that it makes when it first sees a shape."""
        widths = {array.shape[-1] for array in state if array.ndim}
        for width in (*sorted(widths), 1):
            zeros = np.zeros((1, width), np.float32)
            self._metric.update_state(zeros, zeros)
            if [v.shape for v in self._metric.variables] == [a.shape for a in state]:
                return
        raise ModelError(
            f"metric {self._name!r} has other state variables before it sees data "
            f"({len(self._metric.variables)}) than after ({len(state)}); create them in __init__"
        )

    def _prove_that_it_adds(self, labels: tf.Tensor, predictions: tf.Tensor) -> None:
        """Check on the first minibatch that states of its halves add to the state of the whole.

        The result must follow from the state alone: what Python keeps stays in one worker. Keras'
        own metrics are known; for a user's there is no other way to tell.
        """
        before = self._python()
        count = num_records(predictions)
        half = max(1, count // 2)
        first, rest = slice(0, half), slice(half if count > 1 else 0, None)

        def state_of(*parts: slice) -> State:
            self.reset()
            for part in parts:
                self._metric.update_state(labels[part], predictions[part])
            return self.state()

        num_variables = len(self._metric.variables)
        state_of(first)  # some make their variables now
        if len(self._metric.variables) > num_variables:
            before = self._python()
        one, other, both = state_of(first), state_of(rest), state_of(first, rest)
        after, direct = self._python(), self._result_now()
        before.put_back()
        kept = bool(direct) and not _are_close(direct, self.result(both))
        before.put_back()
        self.reset()
        if kept or not self._metric.variables:
            changed = shown(before.differences(after))
            raise ModelError(
                f"metric {self._name!r} ({type(self._metric).__name__}): its result does not follow"
                f" from its variables alone{changed and f', but from {changed}'}: what Python keeps"
                " stays in one worker and cannot be merged with that of others; keep sums and "
                "counts in variables of add_weight, and divide in result()"
            )
        adds = all(
            # Sums in another order differ by rounding.
            np.allclose(a + b, whole, rtol=1e-4, atol=1e-6)
            for a, b, whole in zip(one, other, both, strict=True)
        )
        if not adds:
            raise ModelError(
                f"metric {self._name!r} ({type(self._metric).__name__}): its state after two "
                "minibatches is not the sum of its states after each, so workers' states cannot "
                "be merged; keep sums and counts, and divide in result()"
            )
        self._adds = True

    def _python(self) -> PythonState:
        return PythonState({self._name: self._metric}, visit)

    def _result_now(self) -> dict[str, float]:
        """Return the result of what the metric has seen; nothing if that is too little for it."""
        try:
            return _named(self._metric.result())
        except Exception:  # of the user's code; it is raised again when a result is needed
            return {}


class FunctionMetric:
    """A function of labels and predictions whose results are averaged over records.

    It gives a value for each element of a minibatch, or one for all of it.
    """

    takes_several = False
    better: str | None = None

    def __init__(self, name: str, function: Callable[[Nested, Nested], tf.Tensor]) -> None:
        self._name = name
        self._function = function
        self.reset()

    def reset(self) -> None:
        """See `Metric`."""
        self._average = Average(self._name)

    def update(self, labels: Nested, predictions: Nested, weights: Nested = None) -> None:
        """See `Metric`."""
        values = np.asarray(self._function(labels, predictions))
        factors = {"a mask": mask_of(predictions), "sample weights": weights}
        self._average.add(values, num_records(predictions), factors)

    def state(self) -> State:
        """See `Metric`."""
        return self._average.state()

    def result(self, state: State) -> dict[str, float]:
        """See `Metric`."""
        return {"": mean(state, empty=0.0)}  # as Keras' own


def alone(labels: Nested, predictions: Nested) -> tuple[Nested, Nested]:
    """Return labels and predictions of a model of one output, without a list or dict around them.

    Keras' `compile` does the same. If the model has several outputs, both are returned unchanged.
    """
    output = None
    if isinstance(predictions, Mapping) and len(predictions) == 1:
        ((output, predictions),) = predictions.items()
    elif isinstance(predictions, list | tuple) and len(predictions) == 1:
        (predictions,) = predictions
    if not isinstance(predictions, Mapping | list | tuple):
        labels = _only(labels, output)
    return labels, predictions


def _only(part: Nested, output: str | None) -> Nested:
    if isinstance(part, Mapping):
        part = part.get(output, part) if output is not None else part
    elif isinstance(part, list | tuple) and len(part) == 1:
        (part,) = part
    return part


def mask_of(predictions: Nested) -> tf.Tensor | None:
    """Return the mask that Keras attached to an output, or None."""
    return get_keras_mask(predictions)


def with_mask(tensor: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Attach a mask to a tensor as Keras does it; return the tensor."""
    if mask is not None:
        set_keras_mask(tensor, mask)
    return tensor


def _named(result: tf.Tensor | Mapping[str, tf.Tensor]) -> dict[str, float]:
    """Make of a metric's result named numbers: a vector has one for each element."""
    if isinstance(result, Mapping):
        return {f"/{key}": float(value) for key, value in result.items()}
    array = np.asarray(result, np.float64)
    if array.ndim == 0:
        return {"": float(array)}
    return {f"/{k}": float(v) for k, v in enumerate(array.ravel())}


def _are_close(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    if one.keys() != other.keys():
        return False
    # The state is kept in float32, and a result may be a difference of sums.
    a, b = ([values[name] for name in one] for values in (one, other))
    return bool(np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True))


def _is_known_to_add(metric: keras.metrics.Metric) -> bool:
    m = keras.metrics
    adding = (
        m.Mean, m.Sum, m.AUC, m.Precision, m.Recall, m.TruePositives, m.TrueNegatives,
        m.FalsePositives, m.FalseNegatives, m.SensitivityAtSpecificity,
        m.SpecificityAtSensitivity, m.PrecisionAtRecall, m.RecallAtPrecision, m.IoU,
        m.R2Score, m.FBetaScore,
    )  # fmt: skip
    # A subclass may do anything in update_state, unless Keras wrote it.
    return isinstance(metric, adding) and type(metric).__module__.startswith("keras.")


def _calls_a_user(metric: keras.metrics.Metric) -> bool:
    """Whether a metric of Keras has a function of the user's, as `MeanMetricWrapper` takes one."""
    function = getattr(metric, "_fn", None)
    return function is not None and not getattr(function, "__module__", "").startswith("keras.")
