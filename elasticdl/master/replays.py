"""Training tasks that were done and are to be done again, as ranges: there may be a million."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from elasticdl.state.base import Snapshot

Int64 = NDArray[np.int64]


class _Block:
    """Ranges that were added together; tasks are taken from the front."""

    __slots__ = ("_at", "_first", "_ranges")

    def __init__(self, ranges: Int64) -> None:
        """Begin with ranges [first, stop), shape (n, 2), n > 0."""
        self._ranges, self._at = ranges, 0
        self._first = int(ranges[0, 0])

    @property
    def next_id(self) -> int:
        return self._first

    def take(self) -> bool:
        """Take the first task; return whether there are more."""
        self._first += 1
        if self._first == self._ranges[self._at, 1]:
            self._at += 1
            if self._at == len(self._ranges):
                return False
            self._first = int(self._ranges[self._at, 0])
        return True

    def left(self) -> Int64:
        """Return what was not taken."""
        left = self._ranges[self._at :].copy()
        left[0, 0] = self._first
        return left


class Replays:
    """A line of tasks, and how often each task was ever in it.

    A task that is taken out of the line stays *out* until it is done, set aside, or put back.
    """

    def __init__(self, place_of: Callable[[int], int] | None = None) -> None:
        """Begin with an empty line.

        Args:
            place_of: Tasks wait in the order of these places; None: as they came.
        """
        self._place_of = place_of
        self._line: deque[_Block] = deque()
        self._num_waiting = 0
        self._out: set[int] = set()
        # From each edge on, up to the next, so many replays.
        self._edges: Int64 = np.zeros(0, np.int64)
        self._times: Int64 = np.zeros(0, np.int64)
        self._as_lists: list[list[int]] | None = None

    # --- the line --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of tasks that wait."""
        return self._num_waiting

    @property
    def is_over(self) -> bool:
        """Whether all that was to be done again is done, or set aside."""
        return not self._num_waiting and not self._out

    @property
    def next_id(self) -> int | None:
        """The first task of the line; None if the line is empty."""
        return self._line[0].next_id if self._line else None

    def is_out(self, task_id: int) -> bool:
        """Whether a task is a replay that does not wait in the line."""
        return task_id in self._out

    def waiting(self) -> Int64:
        """Return the ranges [first, stop) that wait, in the order of the line, shape (n, 2)."""
        return np.concatenate([np.zeros((0, 2), np.int64), *(block.left() for block in self._line)])

    def take(self) -> None:
        """Take the first task out of the line."""
        block = self._line[0]
        self._out.add(block.next_id)
        if not block.take():
            self._line.popleft()
        self._num_waiting -= 1

    def put_back(self, task_id: int, first: bool) -> None:
        """Have a task that is out wait again, as the first or the last one."""
        self._out.remove(task_id)
        add = self._line.appendleft if first else self._line.append
        add(_Block(np.array([[task_id, task_id + 1]], np.int64)))
        self._num_waiting += 1
        self._sort()

    def end(self, task_id: int) -> None:
        """Forget a task, if it is out."""
        self._out.discard(task_id)

    def times(self, task_id: int) -> int:
        """Return how often a task was to be done again, up to now."""
        at = int(np.searchsorted(self._edges, task_id, side="right")) - 1
        return int(self._times[at]) if at >= 0 else 0

    def add(self, ranges: Int64) -> None:
        """Have the tasks of ascending ranges [first, stop) done again, shape (n, 2)."""
        if not len(ranges):
            return
        self._line.append(_Block(ranges))
        self._num_waiting += int((ranges[:, 1] - ranges[:, 0]).sum())
        self._sort()
        ones = np.ones(len(ranges), np.int64)
        places = np.concatenate([self._edges, ranges[:, 0], ranges[:, 1]])
        changes = np.concatenate([np.diff(self._times, prepend=0), ones, -ones])
        order = np.argsort(places, kind="stable")
        times = np.cumsum(changes[order])
        # Several edges may have the same place. The last of them has the sum of all their changes.
        places = places[order]
        is_last = np.append(places[1:] != places[:-1], True)
        self._edges, self._times = places[is_last], times[is_last]
        self._as_lists = None

    def _sort(self) -> None:
        if self._place_of is None:
            return
        # Places of a shuffled order do not follow the ids, so ranges may become single tasks here.
        # Only jobs that keep an order pay for that.
        waiting = [np.arange(first, stop) for first, stop in self.waiting().tolist()]
        ids = np.array(sorted(np.concatenate(waiting).tolist(), key=self._place_of), np.int64)
        ranges = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
        self._line = deque([_Block(np.array([[r[0], r[-1] + 1] for r in ranges], np.int64))])

    def forget(self, first: int) -> None:
        """Forget how often the tasks before one were done again; none of them waits, nor is out."""
        kept = self._edges > first
        edges = np.concatenate([[first], self._edges[kept]])
        times = np.concatenate([[self.times(first)], self._times[kept]])
        # Most jobs have no replays for long: then no edge is left at all.
        self._edges, self._times = (edges, times) if times.any() else (edges[:0], times[:0])
        self._as_lists = None

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it; ranges and edges one after the other in a list."""
        return {
            "line": [block.left().ravel().tolist() for block in self._line],
            "out": sorted(self._out),
            "counts": self._counts(),
        }

    def _counts(self) -> list[list[int]]:
        """Return edges and times; a list that is made once, as long as nothing is added."""
        if self._as_lists is None:
            self._as_lists = [self._edges.tolist(), self._times.tolist()]
        return self._as_lists

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        blocks = [np.array(edges, np.int64).reshape(-1, 2) for edges in snapshot["line"]]
        self._line = deque(map(_Block, blocks))
        self._num_waiting = sum(int((b[:, 1] - b[:, 0]).sum()) for b in blocks)
        self._out = set(snapshot["out"])
        edges, times = snapshot["counts"]
        self._edges, self._times = np.array(edges, np.int64), np.array(times, np.int64)
        self._as_lists = None
