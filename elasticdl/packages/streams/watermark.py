"""Event time of a stream: the watermark, and the messages that are late behind it.

The watermark of a partition is the largest event time of its trained messages, less the disorder
that is allowed. Messages count up to the first task that is not done. The watermark of the job is
the least over the busy partitions: they have something to train, or had in the last seconds. If no
partition is busy, the largest watermark counts. The watermark of the job never goes back.

A message is late if it is behind the watermark at which its task was begun first. This watermark is
a fact, so a worker that does the task again finds the same messages late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from elasticdl.job import TaskReport
from elasticdl.job.status import WindowStatus
from elasticdl.master.journal import Journal
from elasticdl.packages.streams.stream_table import StreamTable
from elasticdl.packages.streams.windows import Windows
from elasticdl.state.base import Snapshot

_IDLE_SECONDS = 10.0
"""A partition that has nothing to train for so long does not hold the watermark back."""


@dataclass(slots=True)
class _Partition:
    """The event times of a partition.

    newest: the largest trained event time up to the first open task; 0: there is none.
    tasks: the first open task and all tasks behind it, in their order.
    busy: the last time at which the partition had something to train; no fact.
    """

    newest: float = 0.0
    tasks: deque[int] = field(default_factory=deque)
    busy: float | None = None


class EventTime:
    """Follows the tasks of a stream. It knows no clock."""

    def __init__(
        self,
        journal: Journal,
        table: StreamTable,
        window_seconds: float,
        disorder_seconds: float = 0.0,
        lateness_seconds: float | None = None,
    ) -> None:
        """Begin without partitions.

        Args:
            journal: The journal of the job.
            table: The tasks of the stream.
            window_seconds: The length of a window.
            disorder_seconds: The disorder that is allowed between messages of a partition.
            lateness_seconds: Messages are late from this distance behind the watermark on; None:
                no message is late.
        """
        self._journal = journal
        self._table = table
        self.windows = Windows(journal, window_seconds)
        self._disorder_seconds = disorder_seconds
        self._lateness_seconds = lateness_seconds
        self._partitions: dict[str, _Partition] = {}
        self._times: dict[int, float] = {}  # times of done tasks behind an open one
        self._aside: set[int] = set()
        self._held_by: str | None = None
        self.watermark = 0.0
        """Seconds since 1970; 0: not known. The watermark is no fact; decisions by it are facts."""
        journal.handle("timed", self._apply_timed)
        journal.handle("late before", self._apply_late_before)

    # --- events ----------------------------------------------------------------------------------

    def look(self, waiting: Container[str], now: float) -> None:
        """Find out how far the stream is.

        Args:
            waiting: Partitions that have positions of which no task was cut.
            now: The time.
        """
        marks = {}
        for name, partition in self._partitions.items():
            if partition.tasks or name in waiting or partition.busy is None:
                partition.busy = now
            is_idle = now - partition.busy >= _IDLE_SECONDS
            if not is_idle and (partition.newest or partition.tasks):
                marks[name] = partition.newest
        self._held_by = min(marks, key=marks.__getitem__) if marks else None
        all_times = [partition.newest for partition in self._partitions.values()]
        found = min(marks.values()) if marks else max(all_times, default=0.0)
        # A partition that was idle may come back with older messages, and `found` falls then.
        # The windows that are over have been told, so the watermark does not follow it.
        self.watermark = max(self.watermark, found - self._disorder_seconds)

    def is_held_by(self, name: str) -> bool:
        """Whether the watermark may advance when a task of this partition is done.

        Only the partition with the least watermark holds it back. So a report of another partition
        need not look at all of them, which may be a thousand.
        """
        return self._held_by is None or self._held_by == name

    def answers_again(self, now: float) -> None:
        """The source is back: a partition is not idle because nothing came while it was away."""
        for partition in self._partitions.values():
            partition.busy = now

    def begun(self, task_id: int) -> float:
        """Return the event time before which messages of a task are late; 0: none is late."""
        if self._lateness_seconds is None:
            return 0.0
        if task_id not in self._table.late_before:
            time = max(0.0, self.watermark - self._lateness_seconds)
            self._journal.record("late before", task_id, time)
        return self._table.late_before[task_id]

    def done(self, name: str, report: TaskReport) -> None:
        """A task of a partition is done. A task that is done again does not count again."""
        if not self._counts(name, report.task_id):
            return
        counts = [[each.number, each.num_messages] for each in report.windows if each.num_messages]
        self._journal.record("timed", report.task_id, name, float(report.time), counts)
        if report.lease == 1:  # else a part of it may have been trained before it was scored
            self.windows.scored(report.windows)

    def set_aside(self, name: str, task_id: int) -> None:
        """A task failed too often: nobody waits for its messages."""
        if self._counts(name, task_id) and task_id not in self._aside:
            self._journal.record("timed", task_id, name, None, [])

    def tell(self, is_end: bool) -> list[WindowStatus]:
        """Return the windows that are over now, and were not before."""
        return self.windows.tell(self.watermark, is_end)

    def _counts(self, name: str, task_id: int) -> bool:
        """Whether a task was never done before."""
        is_open = task_id in self._partition(name).tasks and task_id not in self._times
        return is_open or task_id in self._aside

    def _partition(self, name: str) -> _Partition:
        return self._partitions.setdefault(name, _Partition())

    # --- facts -----------------------------------------------------------------------------------

    def cut(self, name: str, task_id: int) -> None:
        """There is a task of a partition; a part of a fact."""
        self._partition(name).tasks.append(task_id)

    def _apply_timed(
        self, task_id: int, name: str, newest: float | None, counts: Iterable[tuple[int, int]]
    ) -> None:
        self.windows.count(counts)
        partition = self._partition(name)
        if newest is None:
            self._aside.add(task_id)
        elif task_id in self._aside:  # the job was reopened, and tried it again
            self._aside.discard(task_id)
            return
        self._times[task_id] = newest or 0.0
        # Tasks end in any order. A time counts only when all tasks before it are done, because an
        # open task may still have older messages.
        while partition.tasks and partition.tasks[0] in self._times:
            partition.newest = max(partition.newest, self._times.pop(partition.tasks.popleft()))

    def _apply_late_before(self, task_id: int, time: float) -> None:
        self._table.late_before[task_id] = time

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "partitions": [[n, p.newest, list(p.tasks)] for n, p in self._partitions.items()],
            "times": list(self._times.items()),
            "aside": sorted(self._aside),
            "windows": self.windows.snapshot(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._partitions = {
            name: _Partition(newest, deque(tasks)) for name, newest, tasks in snapshot["partitions"]
        }
        self._times = dict(snapshot["times"])
        self._aside = set(snapshot["aside"])
        self.windows.restore(snapshot["windows"])
