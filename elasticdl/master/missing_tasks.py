"""Computes which training tasks restored parameters lack, for many tasks at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class Made(NamedTuple):
    """The minibatches and examples that `feed` made of the records of a training task."""

    minibatches: int
    examples: int


@dataclass(frozen=True, slots=True)
class MissingTask:
    """A training task that is done, but restored parameters have only `have` minibatches of it."""

    task_id: int
    have: int
    minibatches: int  # that it lacks
    records: int  # in those


class Applied:
    """Minibatches that parameters have of tasks; shape (n,) each, by ascending id."""

    def __init__(self, task_ids: Int64, have: Int64) -> None:
        order = np.argsort(task_ids, kind="stable")
        self.task_ids, self.have = task_ids[order], have[order]

    @classmethod
    def of(cls, applied: Mapping[int, int]) -> Applied:
        """Make it from a mapping of task ids to minibatches."""
        count = len(applied)
        return cls(
            np.fromiter(applied.keys(), np.int64, count),
            np.fromiter(applied.values(), np.int64, count),
        )

    def within(self, first: int, stop: int) -> tuple[Int64, Int64]:
        """Return the ids of [first, stop), less `first`, and what there is of each."""
        low, high = np.searchsorted(self.task_ids, [first, stop])
        return self.task_ids[low:high] - first, self.have[low:high]


class Uneven:
    """Tasks of which `feed` made more or fewer examples than there are records; as `Applied`."""

    def __init__(self, uneven: Mapping[int, Made]) -> None:
        ids = np.fromiter(uneven.keys(), np.int64, len(uneven))
        made = np.fromiter(chain.from_iterable(uneven.values()), np.int64, 2 * len(uneven))
        order = np.argsort(ids)
        self._task_ids, self._made = ids[order], made.reshape(-1, 2)[order]

    def within(self, first: int, stop: int) -> tuple[Int64, Int64]:
        """Return the ids of [first, stop), less `first`, and (minibatches, examples) of each."""
        low, high = np.searchsorted(self._task_ids, [first, stop])
        return self._task_ids[low:high] - first, self._made[low:high]


class MissingTasks:
    """Tasks that are lacked; shape (n,) each, by ascending id."""

    def __init__(self, task_ids: Int64, have: Int64, minibatches: Int64, records: Int64) -> None:
        self.task_ids = task_ids
        self.have = have
        self.minibatches = minibatches
        self.records = records

    @classmethod
    def together(cls, parts: Iterable[MissingTasks]) -> MissingTasks:
        """Return the lacks of several epochs, in order."""
        columns = [(p.task_ids, p.have, p.minibatches, p.records) for p in parts]
        if not columns:
            return cls(*(np.zeros(0, np.int64) for _ in range(4)))
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def __len__(self) -> int:
        return len(self.task_ids)

    def __iter__(self) -> Iterator[MissingTask]:
        columns = (self.task_ids, self.have, self.minibatches, self.records)
        for values in zip(*(column.tolist() for column in columns), strict=True):
            yield MissingTask(*values)


def lacks_of_epoch(
    first: int,
    records: Int64,
    is_done: NDArray[np.bool_],
    minibatch_size: int,
    applied: Applied,
    uneven: Uneven,
) -> MissingTasks:
    """Return what is lacked of the tasks [first, first + n) of one epoch.

    Args:
        first: Id of its first task.
        records: Number of records of each task, shape (n,).
        is_done: Whether each task is done, shape (n,).
        minibatch_size: Records of a minibatch.
        applied: The minibatches that the parameters have.
        uneven: Minibatches and examples of the tasks for which they are not as usual.
    """
    stop = first + len(records)
    minibatches, examples = -(-records // minibatch_size), records.copy()
    numbers, made = uneven.within(first, stop)
    minibatches[numbers], examples[numbers] = made[:, 0], made[:, 1]
    have = np.zeros_like(records)
    numbers, found = applied.within(first, stop)
    have[numbers] = found
    lacking = np.flatnonzero(is_done & (have < minibatches))
    have, minibatches, examples = have[lacking], minibatches[lacking], examples[lacking]
    # `feed` may make more examples than records, but a task cannot lack more records than it has.
    left = np.clip(examples - have * minibatch_size, 0, records[lacking])
    return MissingTasks(lacking + first, have, minibatches - have, left)


def to_ranges(ids: Iterable[int]) -> list[list[int]]:
    """Return numbers as ranges [first, stop), in order: as journals and snapshots have them."""
    ranges: list[list[int]] = _ranges(ids).tolist()
    return ranges


def to_edges(ids: Iterable[int]) -> list[int]:
    """Return the same in one list: first, stop, first, stop, ...; for a great many of them."""
    edges: list[int] = _ranges(ids).ravel().tolist()
    return edges


def _ranges(ids: Iterable[int]) -> Int64:
    found = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.int64)
    if not found.size:
        return np.zeros((0, 2), np.int64)
    # Ids mostly come in order, so the sort is done only if they do not.
    steps = np.diff(found)
    if steps.size and steps.min() <= 0:
        found = np.unique(found)
        steps = np.diff(found)
    ends = np.flatnonzero(steps != 1)
    firsts = found[np.concatenate([[0], ends + 1])]
    stops = found[np.concatenate([ends, [-1]])] + 1
    return np.stack([firsts, stops], axis=1)
