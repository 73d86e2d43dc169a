"""Training tasks that were done and are to be done again, as ranges: there may be a million."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Ranges = Sequence[Sequence[int]]
"""[first, stop) each, ascending."""


class Replays:
    """A line of tasks, and how often each task was ever in it.

    A task that is taken out of the line stays *out* until it is done, set aside, or put back.
    """

    def __init__(self) -> None:
        self._line: deque[tuple[int, int]] = deque()
        self._num_waiting = 0
        self._out: set[int] = set()
        # From each edge on, up to the next, so many replays.
        self._edges: list[int] = []
        self._times: list[int] = []

    # --- the line --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many wait."""
        return self._num_waiting

    @property
    def is_over(self) -> bool:
        """Whether all that was to be done again is done, or set aside."""
        return not self._num_waiting and not self._out

    @property
    def next_id(self) -> int | None:
        """The first one."""
        return self._line[0][0] if self._line else None

    def is_out(self, task_id: int) -> bool:
        """Whether a task is a replay that does not wait in the line."""
        return task_id in self._out

    def waiting(self) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges that wait."""
        return iter(self._line)

    def take(self) -> None:
        """Take the first one out."""
        first, stop = self._line.popleft()
        if first + 1 < stop:
            self._line.appendleft((first + 1, stop))
        self._num_waiting -= 1
        self._out.add(first)

    def put_back(self, task_id: int, first: bool) -> None:
        """Have one that is out wait again, as the first or the last one."""
        self._out.remove(task_id)
        add = self._line.appendleft if first else self._line.append
        add((task_id, task_id + 1))
        self._num_waiting += 1

    def end(self, task_id: int) -> None:
        """Forget one that is out, if it is."""
        self._out.discard(task_id)

    def times(self, task_id: int) -> int:
        """Return how often a task was to be done again, up to now."""
        at = bisect_right(self._edges, task_id) - 1
        return self._times[at] if at >= 0 else 0

    def add(self, ranges: Ranges) -> None:
        """Have tasks done again."""
        self._line.extend((first, stop) for first, stop in ranges)
        self._num_waiting += sum(stop - first for first, stop in ranges)
        if ranges:
            self._count(np.asarray(ranges, np.int64))

    def _count(self, ranges: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        edges = np.asarray(self._edges, np.int64)
        steps = np.diff(np.asarray(self._times, np.int64), prepend=0)
        ones = np.ones(len(ranges), np.int64)
        places = np.concatenate([edges, ranges[:, 0], ranges[:, 1]])
        changes = np.concatenate([steps, ones, -ones])
        found, which = np.unique(places, return_inverse=True)
        total = np.zeros(len(found), np.int64)
        np.add.at(total, which, changes)
        changing = total != 0
        self._edges = found[changing].tolist()
        self._times = np.cumsum(total)[changing].tolist()

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "line": list(self._line),
            "out": sorted(self._out),
            # Never changed in place.
            "edges": self._edges,
            "times": self._times,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self._line = deque((first, stop) for first, stop in snapshot["line"])
        self._num_waiting = sum(stop - first for first, stop in self._line)
        self._out = set(snapshot["out"])
        self._edges, self._times = snapshot["edges"], snapshot["times"]
