"""Sees the messages that a worker reads: their event times, and those that are no records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from elasticdl.config import JobConfig
from elasticdl.data.base import Aside, Records
from elasticdl.data.sources import is_cut_as_it_comes
from elasticdl.job import Lease, TaskKind, TaskReport
from elasticdl.locations import Location
from elasticdl.packages.streams import side_files
from elasticdl.packages.streams.event_times import TaskTimes, measured_windows
from elasticdl.packages.streams.settings import StreamsSection
from elasticdl.packages.streams.topic import is_topic
from elasticdl.worker.measuring import SHARE, PartSums
from elasticdl.worker.reading import Readings, TaskReading

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
