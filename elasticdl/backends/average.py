"""The mean of a metric or a loss over the records of all workers, kept as sums that are added."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.strings import Array
from elasticdl.errors import ModelError, in_short
from elasticdl.job import MetricStates

log = logging.getLogger(__name__)


def as_numbers(value: object) -> Array:
    """Return an array; bfloat16 and the like, which are no types of NumPy's own, become float32.

    NumPy writes them to a file as bytes without a type, and no other program reads them.
    """
    array = np.asarray(value)
    is_foreign = array.dtype.kind == "V" and array.dtype.type is not np.void
    return array.astype(np.float32) if is_foreign else array


class Average:
    """The sum of values and the sum of their weights."""

    def __init__(self, name: str) -> None:
        """Begin with no value; the name of the metric is for messages."""
        self._name = name
        self._total = self._weight = 0.0

    def add(
        self, values: Array, num_records: int, weights: Mapping[str, object] | None = None
    ) -> None:
        """Add what a metric's function gave for a minibatch.

        Args:
            values: One number for each element, or a single one, which counts for all records.
            num_records: The number of records of the minibatch.
            weights: The weights of the values. A key names the weights in messages. Its value is an
                array whose axes are the first ones of `values`, or None. Several weights multiply.

        Raises:
            ModelError: The values are no numbers, or weights do not fit their shape.
        """
        values = as_numbers(values)
        if values.dtype.kind not in "biuf":
            raise ModelError(
                f"metric {self._name!r} must return numbers, found values of type {values.dtype}"
            )
        given = {what: array for what, array in (weights or {}).items() if array is not None}
        if given:
            factors = self._factors(values.shape, given)
            self._total += float(np.sum(values * factors, dtype=np.float64))
            self._weight += float(factors.sum())
            return
        weight = num_records if values.ndim == 0 else values.size
        if weight:
            self.add_mean(float(np.mean(values, dtype=np.float64)), weight)

    def add_mean(self, value: float, weight: float) -> None:
        """Add a mean of so many records."""
        self._total += value * weight
        self._weight += weight

    def state(self) -> list[NDArray[np.float64]]:
        """Return both sums, in one array of shape (2,)."""
        return [np.array([self._total, self._weight], np.float64)]

    def _factors(
        self, shape: tuple[int, ...], weights: Mapping[str, object]
    ) -> NDArray[np.float64]:
        """Multiply weights, each broadcast to the shape of the values."""
        factors = np.ones(shape, np.float64)
        for what, given in weights.items():
            array = np.asarray(given, np.float64)
            if array.ndim > 1 and array.ndim == len(shape) + 1 and array.shape[-1] == 1:
                # Weights (n, 1) belong to values (n,). Broadcast, they would make n x n of them.
                array = array[..., 0]
            if array.ndim > len(shape) or array.shape != shape[: array.ndim]:
                raise ModelError(
                    f"metric {self._name!r} returns values of shape {shape}, to which "
                    f"{what} of shape {array.shape} cannot be applied: return one value for each"
                )
            factors *= array.reshape(array.shape + (1,) * (len(shape) - array.ndim))
        return factors


def mean(state: Sequence[NDArray[np.float64]], empty: float = math.nan) -> float:
    """Return the mean of a state, or of the sum of several; `empty` where nothing was added."""
    total, weight = state[0]
    return float(total / weight) if weight else empty


class EvaluationLoss:
    """The mean loss of an evaluation's records, which is a metric named "loss".

    A metric of the user that has this name is shown in its place. A loss that cannot be computed
    of validation data, such as one whose labels are others there, is left out, unless a callback
    watches it.

    Args:
        is_needed: Whether a callback watches it.
    """

    NAME = "loss"
    _STATE = "loss of the model"  # no name of a user's metric

    def __init__(self, is_needed: bool = False) -> None:
        self._is_needed = is_needed
        self._is_told = False
        self.reset()

    def reset(self) -> None:
        """Start an evaluation."""
        self._average = Average(self.NAME)
        self._has_any = False

    def add(self, loss: Callable[[], object], num_records: int) -> None:
        """Add the loss of a minibatch: one number, or one for each of its parts."""
        self._has_any = True
        try:
            value = float(np.mean(np.asarray(loss()), dtype=np.float64))
        except Exception as error:
            if self._is_needed:
                raise
            self._leave_out(error)
            # A weight of NaN goes through all sums, so the merged result shows that a part is
            # missing.
            self._average.add_mean(0.0, math.nan)
        else:
            self._average.add_mean(value, num_records)

    def _leave_out(self, error: Exception) -> None:
        if not self._is_told:
            log.warning("the validation data has no loss: %s", in_short(error, 300))
        self._is_told = True

    def states(self) -> MetricStates:
        """Return the sums; {} where no minibatch was evaluated, as in training."""
        return {self._STATE: self._average.state()} if self._has_any else {}

    @classmethod
    def beside(cls, metrics: dict[str, float], states: MetricStates) -> dict[str, float]:
        """Return metrics, and the mean loss of merged states if it is known."""
        if cls._STATE not in states or cls.NAME in metrics:
            return metrics
        _, weight = states[cls._STATE][0]
        return metrics if math.isnan(weight) else {**metrics, cls.NAME: mean(states[cls._STATE])}
