"""Which of the trained minibatches are added to the metrics, so that it costs next to nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from elasticdl.backends.base import Minibatch, Predictions

SHARE = 0.01
STREAM_SHARE = 0.05
"""The share in a job on a stream, whose windows of event time are its evaluation."""
_IDLE_SHARE = 0.5
_MOST_IDLE_SECONDS = 1.0  # that are saved up
_MOST_LENT_SECONDS = 1.0
_FIRST_CALLS = 3  # of a size, of another one, and of any size: each is compiled
TOGETHER_MINIBATCHES = 32
TOGETHER_RECORDS = 16_384


class MeasuringBudget:
    """Lets minibatches be measured while that has taken no more than a share of the computing.

    Where metrics are cheap beside a step, all minibatches are measured; else as many as the share
    allows, some together and then a pause, since a call of a metric costs more than its records.
    What is compiled in between does not count: the first calls are free, and no call counts as
    more than a few times the fastest one.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._computed = self._spent = 0.0
        self._num_calls = 0
        self._fastest = math.inf
        self.is_given_up = False

    def computed(self, seconds: float) -> None:
        """Note how long a step took."""
        self._computed += seconds

    def idled(self, seconds: float) -> None:
        """Note how long there was nothing to train: measuring took nothing from it."""
        least = self._share * self._computed - _MOST_IDLE_SECONDS
        self._spent = max(self._spent - _IDLE_SHARE * seconds, min(self._spent, least))

    @property
    def allows(self) -> bool:
        """Whether the next minibatch may be measured."""
        return not self.is_given_up and self._spent <= self._share * self._computed

    @property
    def lends(self) -> bool:
        """Whether the first minibatch of a window may be measured, so that each window has some."""
        return not self.is_given_up and (
            self._spent <= self._share * self._computed + _MOST_LENT_SECONDS
        )

    def is_enough(self, minibatches: Sequence[tuple[Minibatch, Predictions]]) -> bool:
        """Say whether so many are to be measured now, and no more together with them."""
        num_records = sum(minibatch.num_records for minibatch, _ in minibatches)
        return len(minibatches) >= TOGETHER_MINIBATCHES or num_records >= TOGETHER_RECORDS

    def measured(self, seconds: float) -> None:
        """Note how long it took to measure minibatches."""
        self._num_calls += 1
        self._fastest = min(self._fastest, seconds)
        if self._num_calls > _FIRST_CALLS:
            self._spent += min(seconds, 4 * self._fastest)

    def collected(self, seconds: float) -> None:
        """Note how long it took to read the sums at the end of a task."""
        self._spent += seconds

    def give_up(self) -> None:
        """Measure nothing any more."""
        self.is_given_up = True
