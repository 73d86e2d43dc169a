"""Finds the windows of event time into which the messages and minibatches of a task fall."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elasticdl.job import MeasuredWindow
from elasticdl.worker.measuring import PartSums


class TaskTimes:
    """Notes the event times of one task's messages, in seconds since 1970; 0: a message has none.

    The number of a window says how many windows lie between 1970 and its start.

    newest: The largest time so far; 0: there is none.
    counts: The number of messages in each window.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._blocks: deque[NDArray[np.float64]] = deque()
        self._num_taken = 0
        self._newest_taken = 0.0
        self.newest = 0.0
        self.counts: Counter[int] = Counter()

    def read(self, times: NDArray[np.float64], now: float) -> None:
        """Add the times of the next messages.

        Args:
            times: The times of the messages. A time in the future counts as now, because a
                watermark must never be ahead of the clock.
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
        """Return the window of the newest message among the first `num_records`.

        Where `feed` leaves messages out, makes several examples of one, or changes their order, a
        minibatch counts at its place in the task.

        Args:
            num_records: The number of messages that were fed, up to and with this minibatch; it
                grows.
        """
        while self._blocks and self._num_taken < num_records:
            block, wanted = self._blocks.popleft(), num_records - self._num_taken
            taken, left = block[:wanted], block[wanted:]
            if left.size:
                self._blocks.appendleft(left)
            self._num_taken += len(taken)
            self._newest_taken = max(self._newest_taken, float(taken.max(initial=0.0)))
        return int(self._newest_taken // self._window_seconds) if self._newest_taken else None


def measured_windows(
    counts: Mapping[int, int], sums: Mapping[int, PartSums]
) -> tuple[MeasuredWindow, ...]:
    """Return the report about the windows of a task: its messages, and its minibatches."""
    nothing = PartSums()
    found = []
    for number in sorted(counts.keys() | sums.keys()):
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
