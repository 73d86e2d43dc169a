"""Metrics whose sums add up over workers: functions, and metrics of torchmetrics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Protocol, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elasticdl.backends.average import Average, mean
from elasticdl.backends.call_order import Tell, swapped, takes_predictions_first, told_nobody
from elasticdl.errors import ModelError
from elasticdl.job import MetricStates
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.torch.loss import is_of_torch, object_of
from elasticdl.packages.torch.structures import Nested, as_array

State = list[NDArray[np.float64]]


class Metric(Protocol):
    """A metric of one model. `direction`: "min" or "max" is better; None: nobody knows."""

    direction: str | None

    def reset(self) -> None:
        """Forget all minibatches."""
        ...

    def update(self, labels: Nested, predictions: Nested, num_records: int) -> None:
        """Add a minibatch of so many records."""
        ...

    def state(self) -> State:
        """Return the sums so far."""
        ...

    def result(self, state: State) -> dict[str, float]:
        """Compute the metric from sums: suffix of its name (mostly empty) -> value."""
        ...


class FunctionMetric:
    """A function of labels and predictions whose results are averaged over examples.

    It gives a value for each element of a minibatch, or one for all of it.
    """

    direction: str | None = None

    def __init__(
        self, name: str, function: Callable[[Nested, Nested], torch.Tensor | float]
    ) -> None:
        self._name = name
        self._function = function
        self.reset()

    def reset(self) -> None:
        """See `Metric`."""
        self._average = Average(self._name)

    def update(self, labels: Nested, predictions: Nested, num_records: int) -> None:
        """See `Metric`."""
        self._average.add(as_array(self._function(labels, predictions)), num_records)

    def state(self) -> State:
        """See `Metric`."""
        return self._average.state()

    def result(self, state: State) -> dict[str, float]:
        """See `Metric`."""
        return {"": mean(state)}


class SumMetric(Protocol):
    """The methods that we use of a metric of torchmetrics, which need not be installed."""

    _defaults: Mapping[str, torch.Tensor]
    _reductions: Mapping[str, object]
    _update_count: int

    def reset(self) -> None:
        """Forget what was gathered."""
        ...

    def update(self, predictions: Nested, labels: Nested) -> None:
        """Gather a minibatch."""
        ...

    def compute(self) -> torch.Tensor | Mapping[str, torch.Tensor]:
        """Return the metric of what was gathered."""
        ...


class TorchMetric:
    """A metric of torchmetrics, `update(predictions, labels)`, whose states are sums."""

    def __init__(self, name: str, metric: SumMetric, predictions_first: bool = True) -> None:
        self._metric = metric
        self._predictions_first = predictions_first
        self._name, self._is_proven = name, False
        is_up = getattr(metric, "higher_is_better", None)
        self.direction = None if is_up is None else "max" if is_up else "min"
        self._names = sorted(metric._defaults)
        if not self._names:
            raise ModelError(
                f"metric {name!r} ({type(metric).__name__}) is made of other metrics, whose sums "
                "are not its own, so that of several workers cannot be added: let eval_metrics_fn "
                "return these, each by a name of its own"
            )
        for state, reduction in metric._reductions.items():
            # torchmetrics names this function for a state that workers may add up.
            if getattr(reduction, "__name__", "") != "dim_zero_sum":
                raise ModelError(
                    f"metric {name!r} ({type(metric).__name__}) keeps {state!r}, which is not a "
                    "sum, so the states of workers cannot be added; choose a metric that keeps "
                    "counts, such as BinaryAUROC(thresholds=200) instead of BinaryAUROC()"
                )

    def reset(self) -> None:
        """See `Metric`."""
        self._metric.reset()

    def update(self, labels: Nested, predictions: Nested, num_records: int) -> None:
        """See `Metric`."""
        pair = (predictions, labels) if self._predictions_first else (labels, predictions)
        if not self._is_proven:
            self._prove_that_it_adds(*pair)
        self._metric.update(*pair)

    def state(self) -> State:
        """See `Metric`; what the metric begins with is left out, and belongs to each result."""
        return self._sums_of(self._metric)

    def result(self, state: State) -> dict[str, float]:
        """See `Metric`."""
        return self._result_of(self._metric, state)

    def _sums_of(self, metric: SumMetric) -> State:
        pairs = [(getattr(metric, n), metric._defaults[n]) for n in self._names]
        return [as_array(a).astype(np.float64) - as_array(first) for a, first in pairs]

    def _result_of(self, metric: SumMetric, state: State) -> dict[str, float]:
        metric = copy.deepcopy(metric)  # its own sums stay
        metric.reset()
        for name, values in zip(self._names, state, strict=True):
            first = getattr(metric, name)
            whole = torch.from_numpy(np.asarray(values + as_array(first)))
            setattr(metric, name, whole.to(first.dtype))
        metric._update_count = 1  # otherwise compute() warns that nothing was added
        return _named(metric.compute())

    def _prove_that_it_adds(self, *pair: Nested) -> None:
        """Check on the first minibatch, taken twice, that the result follows from sums alone."""
        once = copy.deepcopy(self._metric)
        once.reset()
        once.update(*pair)
        twice = copy.deepcopy(once)
        twice.update(*pair)
        one, two = self._sums_of(once), self._sums_of(twice)
        # Sums in another order differ by rounding.
        if not all(np.allclose(a + a, b, 1e-4, 1e-6, True) for a, b in zip(one, two, strict=True)):
            raise ModelError(
                f"metric {self._name!r} ({type(once).__name__}): its state after two minibatches "
                "is not the sum of its states after each, so the states of workers cannot be "
                "added; keep sums and counts, and divide in compute()"
            )
        try:
            direct, merged = _named(twice.compute()), self._result_of(once, two)
        except Exception:  # too little for it; it is raised again when a result is needed
            direct = merged = {}
        pairs = [(value, merged.get(key, np.inf)) for key, value in direct.items()]
        # The state is kept in float32, and a result may be a difference of sums.
        if not all(np.isclose(a, b, 1e-3, 1e-5, True) for a, b in pairs):
            raise ModelError(
                f"metric {self._name!r} ({type(once).__name__}): its result does not follow from "
                "its states alone: what Python keeps (self.count += 1) stays in one worker; keep "
                "sums and counts in states of add_state, and divide in compute()"
            )
        self._is_proven = True


def _named(found: torch.Tensor | Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Make of a metric's result named numbers: a vector has one for each element."""
    if isinstance(found, Mapping):
        return {f"/{key}": float(value) for key, value in found.items()}
    values = as_array(found).astype(np.float64)
    if values.ndim == 0:
        return {"": float(values)}
    return {f"/{k}": float(v) for k, v in enumerate(values.ravel())}


class Metrics:
    """All metrics of `eval_metrics_fn`, by name."""

    def __init__(
        self, eval_metrics_fn: Callable[[], object] | None, tell: Tell = told_nobody
    ) -> None:
        self._metrics: dict[str, Metric] = {}
        with user_code("eval_metrics_fn"):
            found = eval_metrics_fn() if eval_metrics_fn else {}
        if not isinstance(found, Mapping):
            raise ModelError(
                f"eval_metrics_fn must return a dict of metrics by name, found "
                f"{type(found).__name__}"
            )
        for name, metric in found.items():
            self._metrics[str(name)] = _metric(str(name), metric, tell)

    def reset(self) -> None:
        """Forget all minibatches."""
        for metric in self._metrics.values():
            metric.reset()

    def update(self, labels: Nested, predictions: Nested, num_records: int) -> None:
        """Add a minibatch of so many records.

        Raises:
            ModelError: A metric raised; names it.
        """
        with torch.no_grad():
            for name, metric in self._metrics.items():
                with user_code(f"metric {name!r}"):
                    metric.update(labels, predictions, num_records)

    def directions(self) -> dict[str, str | None]:
        """Return whether less ("min") or more ("max") of each is better; None: nobody knows."""
        return {name: metric.direction for name, metric in self._metrics.items()}

    def states(self) -> MetricStates:
        """Return the sums so far."""
        return {name: list(metric.state()) for name, metric in self._metrics.items()}

    def results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from sums."""
        return {
            f"{name}{suffix}": value
            for name, state in states.items()
            if name in self._metrics  # beside them is an evaluation's loss
            for suffix, value in self._metrics[name].result(list(state)).items()
        }


def _is_of_sums(metric: object) -> TypeGuard[SumMetric]:
    return hasattr(metric, "_reductions") and hasattr(metric, "compute")


def _metric(name: str, metric: object, tell: Tell) -> Metric:
    metric = object_of(metric, f"metric {name!r}")
    if isinstance(metric, nn.ModuleDict):  # a MetricCollection of torchmetrics
        raise ModelError(
            f"metric {name!r} is a {type(metric).__name__} of several: let eval_metrics_fn return "
            "each of them by its own name, as dict(collection.items()) has them"
        )
    is_usual = _is_of_sums(metric) or is_of_torch(metric)
    is_swapped = takes_predictions_first(metric, f"metric {name}", tell, is_usual)
    if _is_of_sums(metric):
        return TorchMetric(name, metric, is_swapped)
    if callable(metric):
        return FunctionMetric(name, swapped(metric) if is_swapped else metric)
    raise ModelError(
        f"metric {name!r} must be a function of (labels, predictions) or a metric of torchmetrics, "
        f"found {type(metric).__name__}"
    )
