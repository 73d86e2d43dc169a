"""The differences between the positions of tasks and their records, as workers found them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elasticdl.state.base import Snapshot


class Missing(NamedTuple):
    """The differences between the positions of a task and its records.

    positions: The number of positions less the number of records. It is negative if messages have
        several records.
    unreadable: The positions whose message cannot be read.
    late: The records that came late, whether they were trained or not.
    gone: The positions that the broker deleted before they were read.
    """

    positions: int = 0
    unreadable: int = 0
    late: int = 0
    gone: int = 0


NONE_MISSING = Missing()


class MissingRecords:
    """What tasks that are done lack, and its sums over all epochs.

    A stream forgets tasks, and the sums stay.

    Attributes:
        by_task: Only tasks that lack something are here.
        num_positions: The sum of positions without a record.
        num_unreadable: The sum of positions whose message cannot be read.
        num_late: The sum of late records.
        gone: Positions of each partition that were deleted before they were read, and after they
            were cut into tasks.
    """

    def __init__(self, shard_of: Callable[[int], str]) -> None:
        """Begin with nothing; `shard_of` returns the name of a task's shard."""
        self._shard_of = shard_of
        self.by_task: dict[int, Missing] = {}
        self.num_positions = self.num_unreadable = self.num_late = 0
        self.gone: dict[str, int] = {}

    def add(self, task_id: int, missing: Missing) -> None:
        """Note what a task lacks that is done."""
        if missing != NONE_MISSING:
            self.by_task[task_id] = missing
            self._count(task_id, missing, 1)

    def take_back(self, ranges: NDArray[np.int64]) -> int:
        """Forget what tasks lack that are done again; return the sum of their positions.

        Args:
            ranges: The tasks, as ranges [first, stop).
        """
        before = self.num_positions
        for task_id in self.of_ranges(ranges):
            self._count(task_id, self.by_task.pop(task_id), -1)
        return before - self.num_positions

    def of_ranges(self, ranges: NDArray[np.int64]) -> list[int]:
        """Return the tasks of ranges [first, stop) that lack something."""
        ids = np.fromiter(self.by_task, np.int64, len(self.by_task))
        at = np.searchsorted(ranges[:, 0], ids, side="right") - 1
        found: list[int] = ids[(at >= 0) & (ids < ranges[np.maximum(at, 0), 1])].tolist()
        return found

    def forget(self, first: int) -> None:
        """Forget the tasks before one; the sums stay."""
        self.by_task = {task: missing for task, missing in self.by_task.items() if task >= first}

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it, but for numbers as keys."""
        return {
            "missing": dict(self.by_task),
            "num_missing": self.num_positions,
            "num_unreadable": self.num_unreadable,
            "num_late": self.num_late,
            "gone": dict(self.gone),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot; older ones lack it."""
        self.by_task = {int(i): Missing(*n) for i, n in snapshot.get("missing", {}).items()}
        self.num_positions = snapshot.get("num_missing", 0)
        self.num_unreadable = snapshot.get("num_unreadable", 0)
        self.num_late = snapshot.get("num_late", 0)
        self.gone = dict(snapshot.get("gone", {}))

    def _count(self, task_id: int, missing: Missing, sign: int) -> None:
        self.num_positions += sign * missing.positions
        self.num_unreadable += sign * missing.unreadable
        self.num_late += sign * missing.late
        if missing.gone:
            name = self._shard_of(task_id)
            self.gone[name] = self.gone.get(name, 0) + sign * missing.gone
