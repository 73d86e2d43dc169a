"""What rounds have brought for an update that is not made yet, with a global batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elasticdl.collective.rounds import Minibatch

Float32 = NDArray[np.float32]


@dataclass(slots=True)
class Pending:
    """Sums over the records of minibatches; equal on all ranks, for all add the same numbers.

    sums: of the dense gradient and of the change of the state; none before the first minibatch
        that was not skipped.
    """

    minibatches: list[Minibatch] = field(default_factory=list)
    sums: tuple[Float32, ...] = ()

    @property
    def num_records(self) -> int:
        """How many records they are of."""
        return sum(minibatch.num_records for minibatch in self.minibatches)

    def add(self, minibatches: Sequence[Minibatch], means: Sequence[Float32]) -> None:
        """Add a round.

        Args:
            minibatches: Those that it has counted.
            means: Over the records of all; not looked at if all were skipped.
        """
        self.minibatches += minibatches
        num_records = np.float32(sum(minibatch.num_records for minibatch in minibatches))
        if num_records and self.sums:
            for total, mean in zip(self.sums, means, strict=True):
                total += mean * num_records
        elif num_records:
            self.sums = tuple(mean * num_records for mean in means)

    def means(self) -> tuple[Float32, ...]:
        """Return the means over all records; none if all were skipped."""
        return tuple(total / np.float32(self.num_records) for total in self.sums)


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
