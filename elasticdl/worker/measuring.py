"""Chooses the trained minibatches that are measured, so that metrics cost next to nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticdl.backends.base import Minibatch, Predictions
from elasticdl.job import MetricStates

SHARE = 0.01
_IDLE_SHARE = 0.5
_MOST_IDLE_SECONDS = 1.0  # that are saved up
_MOST_LENT_SECONDS = 1.0
_LEAST_RECORDS = 4_096  # of each epoch, on credit
_FIRST_CALLS = 3  # of a size, of another one, and of any size: each is compiled
TOGETHER_MINIBATCHES = 32
TOGETHER_RECORDS = 16_384


@dataclass(slots=True)
class PartSums:
    """The sums over the minibatches of a task, or of one part of it."""

    num_trained: int = 0
    loss_sum: float = 0.0
    num_measured: int = 0
    states: MetricStates = field(default_factory=dict)


class MeasuringBudget:
    """Lets minibatches be measured while that has taken no more than a share of the computing.

    If metrics are cheap beside a step, all minibatches are measured. Else the budget allows some
    together and then a pause, since a call of a metric costs more than its records.

    Compilation does not count: the first calls are free, and no call counts as more than a few
    times the fastest one.

    Some records of each epoch are measured on credit. Without it, a job of short epochs would
    report an early epoch at its end. The last epoch has as much credit as all epochs before it.
    """

    def __init__(self, share: float = SHARE, num_epochs: int = 1) -> None:
        """Begin with nothing spent.

        Args:
            share: The share of the time of computing that measuring may take.
            num_epochs: How many epochs there are to be.
        """
        self._share = share
        self._num_epochs = num_epochs
        self._epoch = -1
        self._num_records = 0  # of this epoch that are measured
        self._computed = self._spent = 0.0
        self._num_calls = 0
        self._fastest = self._fastest_minibatch = math.inf
        self.is_given_up = False

    def computed(self, seconds: float) -> None:
        """Note how long a step took."""
        self._computed += seconds

    def idled(self, seconds: float) -> None:
        """Note how long there was nothing to train: measuring cost nothing in that time."""
        # The saved time is limited: after a long pause, the next minibatches are not all measured.
        least = self._share * self._computed - _MOST_IDLE_SECONDS
        self._spent = max(self._spent - _IDLE_SHARE * seconds, min(self._spent, least))

    @property
    def allows(self) -> bool:
        """Whether the next minibatch may be measured."""
        return not self.is_given_up and self._spent <= self._share * self._computed

    @property
    def lends(self) -> bool:
        """Whether the first minibatch of a part may be measured, so that each part has some."""
        return self._has_credit(_MOST_LENT_SECONDS)

    def lends_to(self, epoch: int) -> bool:
        """Whether the next minibatch of an epoch may be measured, so that each epoch has some."""
        if epoch > self._epoch:
            self._epoch, self._num_records = epoch, 0
        is_last = epoch + 1 >= self._num_epochs
        credit = _MOST_LENT_SECONDS * (2 if is_last else 1)
        return self._num_records < _LEAST_RECORDS and self._has_credit(credit)

    def _has_credit(self, seconds: float) -> bool:
        return not self.is_given_up and self._spent <= self._share * self._computed + seconds

    def takes(self, num_records: int) -> None:
        """Note that a minibatch of this many records is to be measured."""
        self._num_records += num_records

    def is_enough(self, minibatches: Sequence[tuple[Minibatch, Predictions]]) -> bool:
        """Return whether these minibatches are enough to be measured together now."""
        num_records = sum(minibatch.num_records for minibatch, _ in minibatches)
        return len(minibatches) >= TOGETHER_MINIBATCHES or num_records >= TOGETHER_RECORDS

    def measured(self, seconds: float, num_minibatches: int = 1) -> None:
        """Note how long it took to measure minibatches; each is one call of a user's metrics."""
        self._num_calls += 1
        self._fastest = min(self._fastest, seconds)
        self._fastest_minibatch = min(self._fastest_minibatch, seconds / num_minibatches)
        if self._num_calls > _FIRST_CALLS:
            usual = max(self._fastest, self._fastest_minibatch * num_minibatches)
            self._spent += min(seconds, 4 * usual)

    def collected(self, seconds: float) -> None:
        """Note how long it took to read the sums at the end of a task."""
        self._spent += seconds

    def give_up(self) -> None:
        """Measure nothing any more."""
        self.is_given_up = True
