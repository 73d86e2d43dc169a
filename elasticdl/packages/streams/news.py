"""News about the messages of a stream: messages that are no records, and scores of windows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from elasticdl.job import Shard, TaskReport
from elasticdl.job.status import WindowStatus
from elasticdl.master.actions import Note
from elasticdl.packages.streams import events
from elasticdl.packages.streams.settings import StreamsSection

_FATES = {"train": "trained like others", "drop": "left out", "aside": "set aside"}


def of_task(
    shard: Shard,
    report: TaskReport,
    num_unreadable: int,
    num_late: int,
    num_gone: int,
    data: StreamsSection,
) -> Iterator[Note]:
    """Yield notes about a task that is done.

    Args:
        shard: The positions of the task.
        report: The report of the task.
        num_unreadable: Unreadable positions of all tasks so far, with this one.
        num_late: Late records of all tasks so far.
        num_gone: Deleted positions of all tasks so far, and of parts that were never cut.
        data: The settings that say how such messages are treated.
    """
    if _is_news(num_unreadable, report.num_unreadable):
        text = _told(num_unreadable, "cannot be read", report.num_unreadable, shard)
        news = f"{text}; see {data.bad_message_dir}"
        yield Note(events.Unreadable(num_unreadable, shard.name), news, is_warning=True)
    if _is_news(num_late, report.num_late):
        text = _told(num_late, f"came more than {data.max_lateness} late", report.num_late, shard)
        news = f"{text}; {_FATES[data.on_late]}"
        yield Note(events.MessagesLate(num_late, shard.name), news, is_warning=True)
    yield from of_gap(shard.name, num_gone, report.num_gone)


def of_gap(name: str, num_gone: int, count: int) -> Iterator[Note]:
    """Yield what is to be said of positions that were deleted before they were read.

    Args:
        name: Their partition.
        num_gone: How many there were so far, with these.
        count: Of these.
    """
    if _is_news(num_gone, count):
        text = (
            f"{num_gone:,} messages so far were deleted by the broker before they were read, "
            f"{count:,} of them of {name}; they are left out"
        )
        yield Note(events.MessagesGone(num_gone, name), text, is_warning=True)


def of_window(window: WindowStatus) -> Note:
    """Return what is to be said of a window that is over."""
    began = datetime.fromtimestamp(window.start, UTC).isoformat().replace("+00:00", "Z")
    scores = {} if window.loss is None else {"loss": window.loss}
    scores |= window.metrics
    words = ", ".join(f"{name} {value:.6g}" for name, value in scores.items()) or "no loss"
    scored = events.WindowScored(
        window.start,
        window.seconds,
        window.num_messages,
        window.num_measured,
        window.loss,
        window.metrics,
    )
    return Note(scored, f"event time from {began}, {window.num_messages:,} messages: {words}")


def _is_news(total: int, count: int) -> bool:
    """Whether a task's count is told: of the first ones, then whenever there are twice as many."""
    return bool(count) and total.bit_length() != (total - count).bit_length()


def _told(total: int, what: str, count: int, shard: Shard) -> str:
    place = f"{shard.name} [{shard.start}, {shard.end})"
    return f"{total:,} message{'s'[: total != 1]} so far {what}, {count:,} of them in {place}"
