"""Shows how far a job is in its stream, and what became of the messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.table import Table

from elasticdl.cli.display import duration
from elasticdl.job.status import JobStatus, PartitionStatus, WindowStatus

_WINDOWS_SHOWN = 10


class StreamView:
    """Shows partitions, windows of event time, and messages that were no records."""

    def rows(self, status: JobStatus, is_over: bool) -> Iterator[tuple[str, str]]:
        """Yield lag and watermark of a running job, and counts of messages."""
        if status.partitions and not is_over:
            lag = sum(partition.lag for partition in status.partitions)
            yield "lag", f"{lag:,} in {len(status.partitions)} partitions"
            if status.watermark:
                yield "watermark", _watermark(status)
        if status.num_unreadable:
            yield "unreadable", _unreadable(status)
        if status.num_late:
            yield "late", _late(status)
        if gone := _gone(status):
            yield "gone", gone

    def tables(self, status: JobStatus, is_over: bool) -> Iterator[Table]:
        """Yield the partitions of a running job, and the windows of event time."""
        if status.partitions and not is_over:
            yield partitions_table(status.partitions, time.time())
        if status.windows:
            yield windows_table(status.windows)


VIEW = StreamView()


def partitions_table(partitions: Sequence[PartitionStatus], now: float) -> Table:
    """Return how far a job is behind each partition of its stream, at a time since 1970."""
    table = Table(title="Partitions", title_justify="left")
    for name in ("partition", "position", "end", "lag", "delay", "skipped"):
        table.add_column(name, justify="left" if name == "partition" else "right")
    for each in partitions:
        delay = each.delay_seconds(now)
        words = "" if delay is None else f"{delay:,.1f} s"
        numbers = [f"{number:,}" for number in (each.position, each.end, each.lag)]
        table.add_row(each.name, *numbers, words, f"{each.skipped:,}")
    return table


def windows_table(windows: Sequence[WindowStatus]) -> Table:
    """Return the scores of the last windows of event time, with each score before training."""
    shown = windows[-_WINDOWS_SHOWN:]
    names = sorted({name for window in shown for name in window.metrics})
    table = Table(title="Windows of event time", title_justify="left")
    for name in ("from", "messages", "measured", "loss", *names):
        table.add_column(name, justify="left" if name == "from" else "right")
    for window in shown:
        values = [window.loss, *(window.metrics.get(name) for name in names)]
        table.add_row(
            _instant(window.start) + ("" if window.is_over else " ..."),
            f"{window.num_messages:,}",
            f"{window.num_measured:,}",
            *("" if value is None else f"{value:.5g}" for value in values),
        )
    return table


def _instant(seconds: float) -> str:
    """Return a time since 1970 in the form that people read."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _late(status: JobStatus) -> str:
    return f"{status.num_late:,} message{'s'[: status.num_late != 1]}"


def _gone(status: JobStatus) -> str:
    """Return how many messages the broker deleted before they were read; "" if none."""
    skipped = {each.name: each.skipped for each in status.partitions if each.skipped}
    if not skipped:
        return ""
    names = ", ".join(f"{name} {count:,}" for name, count in skipped.items())
    return (
        f"{sum(skipped.values()):,} messages, deleted by the broker before they were read: {names}"
    )


def _watermark(status: JobStatus) -> str:
    behind = max(0.0, time.time() - status.watermark)
    return f"{_instant(status.watermark)}, {duration(behind)} behind"


def _unreadable(status: JobStatus) -> str:
    count = status.num_unreadable
    return f"{count:,} message{'s'[: count != 1]}, set aside"
