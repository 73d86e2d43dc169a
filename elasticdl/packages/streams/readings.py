"""Sees the messages that a worker reads: their event times, and those that are no records."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from elasticdl.config import JobConfig
from elasticdl.data.base import Aside, Records
from elasticdl.data.sources import is_cut_as_it_comes
from elasticdl.job import Lease, MeasuredWindow, TaskKind, TaskReport
from elasticdl.locations import Location
from elasticdl.packages.streams import side_files
from elasticdl.packages.streams.settings import StreamsSection
from elasticdl.packages.streams.topic import is_topic
from elasticdl.worker.measuring import SHARE, PartSums
from elasticdl.worker.reading import Readings, TaskReading


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


STREAM_SHARE = 0.05
"""The share of the time for metrics where windows of event time are the evaluation of a job."""


class MessagesReading(TaskReading):
    """Sees the messages of a task whose windows nobody asks for."""

    def __init__(self, lease: Lease, bad_message_dir: Location | None) -> None:
        self._shard = lease.task.shard
        self._bad_message_dir = bad_message_dir
        self._aside: list[Aside] = []
        self._num_late = self._num_gone = 0

    def read(self, block: Records) -> None:
        """Count the messages that are late, unreadable or gone."""
        self._aside += block.aside
        self._num_late += block.num_late
        self._num_gone += block.num_gone

    def ended(self) -> None:
        """Write the messages that are set aside, so that none is lost."""
        if self._aside and self._bad_message_dir is not None:
            side_files.write(self._bad_message_dir, self._shard, self._aside)

    def fed(self, report: TaskReport) -> TaskReport:
        """Return the report with the counts."""
        num_unreadable = sum(not message.is_late for message in self._aside)
        return replace(
            report,
            num_unreadable=num_unreadable,
            num_late=self._num_late,
            num_gone=self._num_gone,
        )


class TimedReading(MessagesReading):
    """Sees the messages of a training task with their event times; a part is a window."""

    def __init__(
        self, lease: Lease, bad_message_dir: Location | None, window_seconds: float
    ) -> None:
        super().__init__(lease, bad_message_dir)
        self._times = TaskTimes(window_seconds)

    def read(self, block: Records) -> None:
        """Count the messages by their windows too."""
        super().read(block)
        if block.times is not None:
            self._times.read(block.times, time.time())

    def part_after(self, num_examples: int) -> int | None:
        """Return the window of the newest message."""
        return self._times.window_after(num_examples)

    def fed(self, report: TaskReport) -> TaskReport:
        """Return the report with the counts, and with the newest time."""
        return replace(super().fed(report), time=self._times.newest)

    def measured(self, report: TaskReport, parts: Mapping[int, PartSums]) -> TaskReport:
        """Return the report with its windows."""
        return replace(report, windows=measured_windows(self._times.counts, parts))


class MessagesReadings(Readings):
    """Makes what sees the messages of topics."""

    def __init__(self, bad_message_dir: Location | None, window_seconds: float) -> None:
        """Prepare to read.

        Args:
            bad_message_dir: The folder for messages that are no records.
            window_seconds: The length of a window of event time; 0: there are none.
        """
        self._bad_message_dir = bad_message_dir
        self._window_seconds = window_seconds
        self.share = STREAM_SHARE if window_seconds else SHARE

    def of(self, lease: Lease) -> TaskReading:
        """Return what sees the messages of a lease."""
        if self._window_seconds and lease.task.kind is TaskKind.TRAINING:
            return TimedReading(lease, self._bad_message_dir, self._window_seconds)
        return MessagesReading(lease, self._bad_message_dir)


def readings_of(config: JobConfig) -> Readings | None:
    """Return what sees the messages of a job's topics; None if it has no topic."""
    data, own = config.data, config.of(StreamsSection)
    if not (is_topic(data.training_data) or is_topic(data.validation_data)):
        return None
    has_windows = is_cut_as_it_comes(data.training_data)
    return MessagesReadings(own.bad_message_dir, own.window_seconds if has_windows else 0.0)
