"""Event times of the messages of a task: into which windows they, and its minibatches, fall."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elasticdl.job import MeasuredWindow, MetricStates


class TaskTimes:
    """What feed has read of one task. The times of messages are in seconds since 1970; 0: none.

    A window is named by its number: how many of its length lie between 1970 and its start.

    newest: The largest time so far; 0: there is none.
    counts: How many messages lie in each window.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._blocks: deque[NDArray[np.float64]] = deque()
        self._num_taken = 0
        self._newest_taken = 0.0
        self.newest = 0.0
        self.counts: Counter[int] = Counter()

    def read(self, times: NDArray[np.float64], now: float) -> None:
        """Take in the times of the next messages.

        Args:
            times: Of the messages. One of the future counts as of now: a watermark is never ahead
                of the clock.
            now: Seconds since 1970.
        """
        times = np.minimum(times, now)
        self._blocks.append(times)
        known = times[times > 0.0]
        if not known.size:
            return
        self.newest = max(self.newest, float(known.max()))
        numbers, counts = np.unique(known // self._window_seconds, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self.counts[int(number)] += count

    def window_after(self, num_records: int) -> int | None:
        """Return the window of the newest of the first messages, which goes on by as many as fed.

        Where `feed` leaves messages out, makes several examples of one, or gives them another
        order, a minibatch counts at its place in the task.

        Args:
            num_records: How many messages are fed, with those of the minibatch; it grows.
        """
        while self._blocks and self._num_taken < num_records:
            block, wanted = self._blocks.popleft(), num_records - self._num_taken
            taken, left = block[:wanted], block[wanted:]
            if left.size:
                self._blocks.appendleft(left)
            self._num_taken += len(taken)
            self._newest_taken = max(self._newest_taken, float(taken.max(initial=0.0)))
        return int(self._newest_taken // self._window_seconds) if self._newest_taken else None


@dataclass(slots=True)
class WindowSums:
    """What was computed of the minibatches of a task that lie in one window."""

    num_trained: int = 0
    loss_sum: float = 0.0
    num_measured: int = 0
    states: MetricStates = field(default_factory=dict)


def measured_windows(
    counts: Mapping[int, int], sums: Mapping[int | None, WindowSums]
) -> tuple[MeasuredWindow, ...]:
    """Return what is told of the windows of a task: its messages, and its minibatches."""
    nothing = WindowSums()
    found = []
    for number in sorted(counts.keys() | {each for each in sums if each is not None}):
        of = sums.get(number, nothing)
        found.append(
            MeasuredWindow(
                number,
                counts.get(number, 0),
                of.num_trained,
                of.loss_sum,
                of.num_measured,
                of.states,
            )
        )
    return tuple(found)
