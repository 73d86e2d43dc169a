"""Cuts the messages of a stream that have arrived into tasks.

The master asks the brokers now and then for the end of each partition (`arrived`). The answer is no
fact, because the next master asks again. The tasks that were cut are facts. Tasks are cut only a
little ahead of the workers, so a backlog of any length takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticdl.job import Shard
from elasticdl.job.status import PartitionStatus
from elasticdl.master.journal import Journal
from elasticdl.packages.streams.stream_table import MOST_PIECES, StreamTable
from elasticdl.packages.streams.topic import gap_words
from elasticdl.state.base import Snapshot

_MOST_WAITING = 256
"""Tasks are cut until so many wait for a worker."""
_LONGEST_SECONDS = 1.0
"""The longest wait of a message before it is cut into a task, even if it fills none."""
_NEWEST_WEIGHT = 0.5  # weight of the newest task in the estimate for the next ones
_SETTLED_SECONDS = 10.0
"""Time for a broker that was killed to finish the transactions that it had acknowledged."""
_PATIENCE_SECONDS = 60.0
"""Time for a broker that knows less than was read, which may be one that has just started."""


@dataclass(slots=True)
class _Known:
    """The end of a partition, by the last answer of a broker.

    waits_since: the arrival of the first position that is in no task; None: there is none.
    less_since: the time since which the broker has had less than was read; None: it has all.
    """

    high: int
    waits_since: float | None = None
    less_since: float | None = None


class Intake:
    """Cuts a stream into tasks. It knows no clock and no broker."""

    def __init__(
        self,
        journal: Journal,
        table: StreamTable,
        records_per_task: int,
        skips_gaps: bool = False,
        ends_at_once: bool = False,
        guessed_records: float = 1.0,
        when_cut: Callable[[str, int], None] = lambda name, task_id: None,
    ) -> None:
        """Begin with what the table has.

        Args:
            journal: The journal of the job.
            table: Takes the pieces.
            records_per_task: Records of a piece, about; and its positions, at most.
            skips_gaps: Go on after what was deleted before it was read.
            ends_at_once: The stream ends where it is when the brokers are asked first.
            guessed_records: The guessed records of a position, until the first report of a task.
            when_cut: Called with the partition and the task of each cut; a part of a fact.
        """
        self._journal = journal
        self._table = table
        self._records_per_task = records_per_task
        self._density = guessed_records  # records of a position; no fact
        self._skips_gaps = skips_gaps
        self.keeps_order = table.keeps_order  # a piece is cut once the one before is done
        self._known: dict[str, _Known] = {}
        self.skipped: dict[str, int] = {}
        """Positions of each partition that were deleted before they were read, and skipped."""
        self._is_draining = ends_at_once
        # The end of each partition; later messages are not read.
        self._ends: dict[str, int] | None = None
        # The time of the newest trained message of each partition; no fact.
        self._times: dict[str, float] = {}
        self.away = ""
        """Why the source does not answer; "": it does. No fact."""
        self._back_at: float | None = None  # when it answered again; no fact
        self.trouble = ""
        """The fault in the brokers' last answer; no fact either."""
        self._when_cut = when_cut
        journal.handle("partition", table.add)
        journal.handle("cut", self._apply_cut)
        journal.handle("gap", self._apply_gap)
        journal.handle("drain", self._apply_drain)
        journal.handle("ends", self._apply_ends)

    # --- events ----------------------------------------------------------------------------------

    def arrived(self, found: Iterable[Shard], now: float) -> str:
        """The brokers say what can be read of each partition; return why the job has to end.

        A partition that nobody knew is read from its first message on.
        """
        self.trouble = ""
        seen = list(found)
        # The ends are fixed once. A broker that has just come back may not show messages that it
        # had acknowledged, and an end that is fixed too early would leave them out.
        if self._is_draining and self._ends is None and self._is_settled(now):
            known = [each for each in seen if each.name in self._table.next]
            self._journal.record("ends", [[each.name, each.end] for each in known])
        problems = [self._heard(each, now) for each in self._wanted(seen)]
        return "; ".join(problem for problem in problems if problem)

    def answers_again(self, now: float) -> None:
        """The source was away, and is back."""
        self.away, self._back_at = "", now

    def _is_settled(self, now: float) -> bool:
        """Whether all that had arrived can be seen."""
        return self._back_at is None or now - self._back_at >= _SETTLED_SECONDS

    def trained(self, name: str, time: float) -> None:
        """Messages of a partition are trained; `time` is the newest of their times."""
        self._times[name] = max(time, self._times.get(name, 0.0))

    def found(self, num_positions: int, num_records: int) -> None:
        """Learn from a done task how many records a position has, for the size of later pieces."""
        if num_positions:
            self._density += _NEWEST_WEIGHT * (num_records / num_positions - self._density)

    @property
    def _size(self) -> int:
        """How many positions a piece has."""
        return max(1, round(self._records_per_task / max(1.0, self._density)))

    def drain(self) -> None:
        """Have the stream end where it is when the brokers are asked next."""
        if not self._is_draining:
            self._journal.record("drain")

    def cut(self, num_waiting: int, now: float, open_tasks: Iterable[int]) -> None:
        """Cut more tasks, if fewer wait than workers may need until the next call.

        A whole piece has as many positions as a task may have. A shorter piece is cut if no task
        waits at all, or if its messages have waited for long. If the order is kept, a partition
        has one open task at most.

        Args:
            num_waiting: Tasks that wait for a worker.
            now: The time.
            open_tasks: Tasks that were cut and are not done.
        """
        names = map(self._table.name_of, open_tasks) if self.keeps_order else ()
        busy = frozenset(names)
        pieces: list[tuple[str, int]] = []
        ends = dict(self._table.next)
        free = {name: known for name, known in self._known.items() if name not in busy}
        self._cut_whole(free, ends, pieces, _MOST_WAITING - num_waiting)
        is_idle = self.keeps_order or (not pieces and not num_waiting)
        for name, known in free.items():
            since = known.waits_since
            is_due = since is not None and (is_idle or now - since >= _LONGEST_SECONDS)
            is_cut = self.keeps_order and ends[name] > self._table.next[name]
            if is_cut or not is_due:
                continue
            if ends[name] < known.high < ends[name] + self._size:
                pieces.append((name, known.high))
        for name, end in pieces:
            self._known[name].waits_since = now if self._known[name].high > end else None
        if pieces:
            self._journal.record("cut", [list(piece) for piece in pieces])

    def _cut_whole(
        self,
        free: Mapping[str, _Known],
        ends: dict[str, int],
        pieces: list[tuple[str, int]],
        most: int,
    ) -> None:
        """Cut whole pieces in turns, from the partition with the most positions left first."""
        size = self._size
        while len(pieces) < most:
            left = {name: known.high - ends[name] for name, known in free.items()}
            names = [name for name in left if left[name] >= size]
            if not names:
                return
            for name in sorted(names, key=lambda name: -left[name])[: most - len(pieces)]:
                ends[name] += size
                pieces.append((name, ends[name]))
            if self.keeps_order:
                return

    def _wanted(self, seen: Sequence[Shard]) -> list[Shard]:
        """Return what there is, up to the end of the stream if it has one by now."""
        ends = self._ends
        if ends is None:
            return list(seen)
        return [
            Shard(each.name, *(min(at, ends[each.name]) for at in (each.start, each.end)))
            for each in seen
            if each.name in ends
        ]

    def _heard(self, found: Shard, now: float) -> str:
        if found.name not in self._table.next:
            self._journal.record("partition", found.name, found.start)
        at = self._table.next[found.name]
        before = self._known.get(found.name, _Known(at))
        if found.end < at:
            # A broker that has just started may know less than was read. Only if this lasts the
            # job has to end: the topic was probably made anew.
            since = now if before.less_since is None else before.less_since
            self._known[found.name] = _Known(at, None, since)
            words = (
                f"{found.name}: the broker has positions up to {found.end}, and those up to {at} "
                "were read before: has the topic been deleted and created again?"
            )
            self.trouble = words
            return words if now - since >= _PATIENCE_SECONDS else ""
        if found.start > at and not self._skips_gaps:
            return gap_words(found.name, at, found.start)
        if found.start > at:
            self._journal.record("gap", found.name, found.start)
        since = now if before.waits_since is None else before.waits_since
        is_waiting = found.end > self._table.next[found.name]
        self._known[found.name] = _Known(found.end, since if is_waiting else None)
        return ""

    # --- questions -------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the stream has come to an end, and all of it was cut."""
        ends = self._ends
        return ends is not None and all(self._table.next[name] >= end for name, end in ends.items())

    @property
    def waiting(self) -> frozenset[str]:
        """Partitions that have positions of which no task was cut, as far as is known."""
        known, at = self._known.items(), self._table.next
        return frozenset(name for name, each in known if each.high > at[name])

    def is_in_order(self, task_id: int, leased: Iterable[int]) -> bool:
        """Whether a task may be leased beside others of its partition, if the order is kept."""
        if not self.keeps_order or task_id >= MOST_PIECES:
            return True
        held = (self._table.name_of(task) for task in leased if task < MOST_PIECES)
        return self._table.name_of(task_id) not in held

    def trained_up_to(self, open_tasks: Iterable[int]) -> dict[str, int]:
        """Return the position of each partition before which nothing is left to do.

        Args:
            open_tasks: Tasks that were cut and are not done.
        """
        found = dict(self._table.next)
        for piece in map(self._table.piece, open_tasks):
            found[piece.name] = min(piece.start, found[piece.name])
        return found

    def partitions(self, open_tasks: Iterable[int]) -> tuple[PartitionStatus, ...]:
        """Return where each partition is.

        Args:
            open_tasks: Tasks that were cut and are not done.
        """
        waiting: dict[str, int] = {}
        for piece in map(self._table.piece, open_tasks):
            waiting[piece.name] = waiting.get(piece.name, 0) + piece.num_records
        return tuple(
            PartitionStatus(
                name,
                position=at,
                end=max(at, known.high) if (known := self._known.get(name)) else at,
                lag=(max(at, known.high) - at if known else 0) + waiting.get(name, 0),
                skipped=self.skipped.get(name, 0),
                time=self._times.get(name, 0.0),
            )
            for name, at in sorted(
                self._table.next.items(), key=lambda item: partition_order(item[0])
            )
        )

    # --- facts -----------------------------------------------------------------------------------

    def _apply_cut(self, pieces: Sequence[tuple[str, int]]) -> None:
        for name, end in pieces:
            number = len(self._table)
            self._table.cut(name, end)
            self._when_cut(name, number)

    def _apply_drain(self) -> None:
        self._is_draining = True

    def _apply_ends(self, ends: Sequence[tuple[str, int]]) -> None:
        self._ends = dict(ends)

    def _apply_gap(self, name: str, end: int) -> None:
        self.skipped[name] = self.skipped.get(name, 0) + end - self._table.next[name]
        self._table.skip(name, end)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "table": self._table.snapshot(),
            "skipped": dict(self.skipped),
            "is_draining": self._is_draining,
            "ends": self._ends,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._table.restore(snapshot["table"])
        self.skipped = dict(snapshot["skipped"])
        self._is_draining, self._ends = snapshot["is_draining"], snapshot["ends"]


def partition_order(name: str) -> tuple[str, int]:
    """Return the key by which partitions are sorted: topic and number."""
    topic, _, number = name.rpartition("-")
    return topic, int(number) if number.isdecimal() else 0
