"""Keeps what rounds have added to an update that is not made yet, with a global batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elasticdl.packages.all_reduce.collective.rounds import OfferedMinibatch
from elasticdl.packages.all_reduce.collective.state_rules import NO_RULES, StateRules

Float32 = NDArray[np.float32]
ALL = 0  # the key of a sum over all that comes


@dataclass(slots=True)
class PendingSums:
    """Sums over the records of minibatches; equal on all ranks, since all add the same numbers.

    sums: By key, the sums of the dense gradient and of the change of the state. There is none
        before the first minibatch that was not skipped. A deterministic job has a sum for each
        task: the minibatches of a task always come in their order, and tasks do not. Other jobs
        have one sum.
    rules: The rules by which the numbers of the state are combined.
    """

    minibatches: list[OfferedMinibatch] = field(default_factory=list)
    sums: dict[int, tuple[Float32, ...]] = field(default_factory=dict)
    rules: StateRules = NO_RULES

    @property
    def num_records(self) -> int:
        """Return the number of records of the minibatches."""
        return sum(minibatch.num_records for minibatch in self.minibatches)

    def add(
        self, minibatches: Sequence[OfferedMinibatch], means: Sequence[Float32], key: int = ALL
    ) -> None:
        """Add minibatches.

        Args:
            minibatches: The minibatches that a round has counted.
            means: The mean dense gradient over the records of all, and the mean change of the
                state. They are not read if all minibatches were skipped.
            key: The key of the sum that they are added to.
        """
        self.minibatches += minibatches
        num_records = np.float32(sum(minibatch.num_records for minibatch in minibatches))
        if not num_records:
            return
        if key not in self.sums:
            dense, state = means  # -0.0 adds nothing, also to -0.0: there is no gradient
            self.sums[key] = (np.full_like(dense, -0.0), np.zeros_like(state))
        (dense, state), (mean, change) = self.sums[key], means
        dense += mean * num_records
        self.rules.add(state, change, num_records)

    def has_tasks(self, tasks: Sequence[int]) -> bool:
        """Whether the last minibatches of all these tasks are there."""
        return set(tasks) <= {m.task_id for m in self.minibatches if m.ends_task}

    def means(self, keys: Sequence[int] = (ALL,)) -> tuple[Float32, ...]:
        """Return the mean over all records, and the change of the state; () if there are no sums.

        The sums are added in the order of keys, and then removed.
        """
        parts = [self.sums.pop(key) for key in keys if key in self.sums]
        if not parts:
            return ()
        (dense, state), *others = parts
        for later_dense, later_state in others:
            dense += later_dense
            self.rules.join(state, later_state)
        # Skipped minibatches have no records, so they do not change the mean.
        num_records = np.float32(self.num_records)
        dense /= num_records
        self.rules.divide(state, num_records)
        return dense, state


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Minibatches of one task that follow each other. lease: the newest that they came under."""

    task_id: int
    lease: int
    index: int
    num_minibatches: int
    num_records: int


def parts_of(minibatches: Sequence[OfferedMinibatch]) -> list[TaskPart]:
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
