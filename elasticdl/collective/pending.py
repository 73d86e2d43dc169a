"""What rounds have brought for an update that is not made yet, with a global batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elasticdl.collective.rounds import Minibatch

Float32 = NDArray[np.float32]
ALL = 0  # the key of a sum over all that comes


@dataclass(slots=True)
class Pending:
    """Sums over the records of minibatches; equal on all ranks, for all add the same numbers.

    sums: by key, of the dense gradient and of the change of the state; none before the first
        minibatch that was not skipped. A deterministic job has a sum of each task, as the
        minibatches of one task always come in their order, and tasks do not; others have one sum.
    """

    minibatches: list[Minibatch] = field(default_factory=list)
    sums: dict[int, tuple[Float32, ...]] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """How many records they are of."""
        return sum(minibatch.num_records for minibatch in self.minibatches)

    def add(
        self, minibatches: Sequence[Minibatch], means: Sequence[Float32], key: int = ALL
    ) -> None:
        """Add minibatches.

        Args:
            minibatches: Those that a round has counted.
            means: Over the records of all; not looked at if all were skipped.
            key: Of the sum that they are added to.
        """
        self.minibatches += minibatches
        num_records = np.float32(sum(minibatch.num_records for minibatch in minibatches))
        if not num_records:
            return
        if key not in self.sums:
            self.sums[key] = tuple(np.zeros_like(mean) for mean in means)
        for total, mean in zip(self.sums[key], means, strict=True):
            total += mean * num_records

    def has_tasks(self, tasks: Sequence[int]) -> bool:
        """Whether the last minibatches of all these tasks are there."""
        return set(tasks) <= {m.task_id for m in self.minibatches if m.ends_task}

    def means(self, keys: Sequence[int] = (ALL,)) -> tuple[Float32, ...]:
        """Return the means over all records, added up in the order of keys; none if none are there.

        The sums are used up.
        """
        parts = [self.sums.pop(key) for key in keys if key in self.sums]
        if not parts:
            return ()
        first, *others = parts
        for part in others:
            for total, values in zip(first, part, strict=True):
                total += values
        for total in first:
            total /= np.float32(self.num_records)
        return first


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Minibatches of one task that follow each other. lease: the newest that they came under."""

    task_id: int
    lease: int
    index: int
    num_minibatches: int
    num_records: int


def parts_of(minibatches: Sequence[Minibatch]) -> list[TaskPart]:
    """Put minibatches of an update together by their tasks; each is the next one of its task."""
    parts: dict[int, TaskPart] = {}
    for minibatch in minibatches:
        before = parts.get(minibatch.task_id)
        first = minibatch.index if before is None else before.index
        parts[minibatch.task_id] = TaskPart(
            minibatch.task_id,
            max(minibatch.lease, 0 if before is None else before.lease),
            first,
            minibatch.index - first + 1,
            minibatch.num_records + (0 if before is None else before.num_records),
        )
    return list(parts.values())
