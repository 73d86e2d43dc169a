"""Metrics whose states add up over workers: Keras' own, and functions of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.backends.keras.feed.minibatch import describe, num_records
from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.job import MetricStates

State = list[NDArray[np.float64]]


class Metric(Protocol):
    """A metric of one output."""

    def reset(self) -> None:
        """Forget all minibatches."""
        ...

    def update(self, labels: Any, predictions: Any) -> None:
        """Add a minibatch."""
        ...

    def state(self) -> State:
        """Return the sums so far."""
        ...

    def result(self, state: State) -> dict[str, float]:
        """Compute the metric from sums: suffix of its name (mostly empty) -> value."""
        ...


class Metrics:
    """All metrics of a model, by name: `metric`, or `output/metric` where there are several."""

    def __init__(self, eval_metrics_fn: Callable[[], dict[str, Any]] | None) -> None:
        self._metrics: dict[str, tuple[str | None, Metric]] = {}
        for output, name, metric in _flatten(_call(eval_metrics_fn)):
            full = name if output is None else f"{output}/{name}"
            self._metrics[full] = (output, _make(full, metric))

    def reset(self) -> None:
        """Start an evaluation."""
        for _, metric in self._metrics.values():
            metric.reset()

    def update(self, labels: Any, predictions: Any, output_names: Sequence[str] = ()) -> None:
        """Add a minibatch of labels and predictions, structured as feed and model give them.

        Args:
            labels: One structure for all outputs, or a dict or list with one for each.
            predictions: What the model gives.
            output_names: Names of the outputs of a model that gives a list of them.
        """
        labels, predictions = (_by_name(part, output_names) for part in (labels, predictions))
        for name, (output, metric) in self._metrics.items():
            try:
                metric.update(*_of_output(name, output, labels, predictions))
            except ElasticdlError:
                raise
            except Exception as error:
                raise ModelError(
                    f"metric {name!r} raised {type(error).__name__} on labels {describe(labels)} "
                    f"and predictions {describe(predictions)}: "
                    f"{' '.join(str(error).split())[:1000]}"
                ) from error

    def states(self) -> MetricStates:
        """Return the sums of all metrics."""
        return {name: metric.state() for name, (_, metric) in self._metrics.items()}

    def results(self, states: MetricStates) -> dict[str, float]:
        """Compute all metrics from merged sums; a metric of which there are none is left out."""
        return {
            name + suffix: value
            for name, (_, metric) in self._metrics.items()
            if name in states
            for suffix, value in metric.result(states[name]).items()
        }


class _KerasMetric:
    """A Keras metric, which keeps its sums in variables."""

    def __init__(self, name: str, metric: Any) -> None:
        self._name = name
        self._metric = metric
        self._adds = _is_known_to_add(metric)
        self._update = tf.function(metric.update_state, autograph=False, reduce_retracing=True)

    def reset(self) -> None:
        self._metric.reset_state()

    def update(self, labels: Any, predictions: Any) -> None:
        if not self._adds:
            self._prove_that_it_adds(labels, predictions)
        try:
            self._update(labels, predictions)
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            self._metric.update_state(labels, predictions)  # a metric that works on values only

    def state(self) -> State:
        return [np.asarray(v.numpy(), np.float64) for v in self._metric.variables]

    def result(self, state: State) -> dict[str, float]:
        if len(state) != len(self._metric.variables):
            self._create_variables(state)
        for variable, value in zip(self._metric.variables, state, strict=True):
            variable.assign(value.astype(variable.dtype))
        return _named(self._metric.result())

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

    def _prove_that_it_adds(self, labels: Any, predictions: Any) -> None:
        """Check on the first minibatch that states of its halves add to the state of the whole.

        Keras' own metrics are known; for a user's there is no other way to tell.
        """
        count = num_records(predictions)
        half = max(1, count // 2)
        first, rest = slice(0, half), slice(half if count > 1 else 0, None)

        def state_of(*parts: slice) -> State:
            self._metric.reset_state()
            for part in parts:
                self._metric.update_state(labels[part], predictions[part])
            return self.state()

        one, other, both = state_of(first), state_of(rest), state_of(first, rest)
        self._metric.reset_state()
        adds = not any(array.any() for array in self.state()) and all(
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


class _FunctionMetric:
    """A function of labels and predictions whose results are averaged over records.

    It gives a value for each element of a minibatch, or one for all of it.
    """

    def __init__(self, name: str, function: Callable[[Any, Any], Any]) -> None:
        self._name = name
        self._function = function
        self.reset()

    def reset(self) -> None:
        self._total = self._count = 0.0

    def update(self, labels: Any, predictions: Any) -> None:
        values = self._function(labels, predictions)
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise ModelError(
                f"metric {self._name!r} must return numbers, found {type(values).__name__}"
            )
        weight = num_records(predictions) if array.ndim == 0 else array.size
        if weight:
            self._total += float(np.mean(array, dtype=np.float64)) * weight
            self._count += weight

    def state(self) -> State:
        return [np.array([self._total, self._count], np.float64)]

    def result(self, state: State) -> dict[str, float]:
        total, count = state[0]
        return {"": float(total / count) if count else 0.0}


def _flatten(metrics: Mapping[str, Any]) -> list[tuple[str | None, str, Any]]:
    flat: list[tuple[str | None, str, Any]] = []
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat += [(name, inner, metric) for inner, metric in value.items()]
        else:
            flat.append((None, name, value))
    return flat


def _call(eval_metrics_fn: Callable[[], Any] | None) -> Mapping[str, Any]:
    if eval_metrics_fn is None:
        return {}
    try:
        metrics = eval_metrics_fn()
    except ElasticdlError:
        raise
    except Exception as error:
        raise ModelError(f"eval_metrics_fn raised {type(error).__name__}: {error}") from error
    if not isinstance(metrics, Mapping):
        raise ModelError(
            "eval_metrics_fn must return {name: metric} or {output: {name: metric}}, "
            f"found {type(metrics).__name__}"
        )
    return metrics


def _make(name: str, metric: Any) -> Metric:
    if isinstance(metric, str):
        metric = keras.metrics.get(metric)
    if isinstance(metric, type) and issubclass(metric, keras.metrics.Metric):
        metric = metric()
    if isinstance(metric, keras.metrics.Metric):
        return _KerasMetric(name, metric)
    if callable(metric):
        return _FunctionMetric(name, metric)
    raise ModelError(
        f"metric {name!r} must be a Keras metric or a function of labels and predictions, "
        f"found {type(metric).__name__}"
    )


def _by_name(outputs: Any, names: Sequence[str]) -> Any:
    """Make a dict of a list that has an element for each of several outputs."""
    if isinstance(outputs, list | tuple) and 1 < len(outputs) == len(names):
        return dict(zip(names, outputs, strict=True))
    return outputs


def _of_output(name: str, output: str | None, labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Pick one output's labels and predictions; labels may also be common to all outputs."""
    if output is None:
        return labels, predictions
    if not isinstance(predictions, Mapping) or output not in predictions:
        known = (
            ", ".join(map(repr, predictions)) if isinstance(predictions, Mapping) else "no names"
        )
        raise ModelError(
            f"metric {name!r} is for the output {output!r}, but the model's outputs have {known}"
        )
    if isinstance(labels, Mapping):
        if output not in labels:
            raise ModelError(
                f"metric {name!r} is for the output {output!r}, but feed gives labels for "
                f"{', '.join(map(repr, labels))}"
            )
        labels = labels[output]
    return labels, predictions[output]


def _named(result: Any) -> dict[str, float]:
    """Make of a metric's result named numbers: a vector has one for each element."""
    if isinstance(result, Mapping):
        return {f"/{key}": float(value) for key, value in result.items()}
    array = np.asarray(result, np.float64)
    if array.ndim == 0:
        return {"": float(array)}
    return {f"/{k}": float(v) for k, v in enumerate(array.ravel())}


def _is_known_to_add(metric: Any) -> bool:
    m = keras.metrics
    adding = (
        m.Mean, m.Sum, m.AUC, m.Precision, m.Recall, m.TruePositives, m.TrueNegatives,
        m.FalsePositives, m.FalseNegatives, m.SensitivityAtSpecificity,
        m.SpecificityAtSensitivity, m.PrecisionAtRecall, m.RecallAtPrecision, m.IoU,
        m.R2Score, m.FBetaScore,
    )  # fmt: skip
    # A subclass may do anything in update_state, unless Keras wrote it.
    return isinstance(metric, adding) and type(metric).__module__.startswith("keras.")
