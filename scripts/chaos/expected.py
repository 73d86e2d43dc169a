"""What the job would train undisturbed: every minibatch, made of the data and the seed alone.

Written apart from the code that it checks: how files are cut into tasks, how a task is shuffled,
and what the models of `model_zoo/counting` add up.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticdl.worker.records import task_seed

from .job import JOB_SEED, MINIBATCH_SIZE, MINIBATCHES_PER_TASK, NUM_EPOCHS, Ids


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One minibatch of one epoch. `number` counts those of its task; `ids` has a row a record."""

    epoch: int
    task: int
    number: int
    ids: Ids

    @property
    def num_records(self) -> int:
        """How many records it has."""
        return len(self.ids)

    def signature(self, num_signatures: int) -> int:
        """Return the number that the model makes of its ids."""
        return zlib.crc32(np.ascontiguousarray(self.ids, "<i8").tobytes()) % num_signatures


def minibatches(files: Sequence[Ids], num_epochs: int = NUM_EPOCHS) -> list[Minibatch]:
    """Return every minibatch of the job, in the order of tasks."""
    per_task = MINIBATCH_SIZE * MINIBATCHES_PER_TASK
    pieces = [ids[at : at + per_task] for ids in files for at in range(0, len(ids), per_task)]
    found = []
    for task, (epoch, piece) in enumerate(
        (epoch, piece) for epoch in range(num_epochs) for piece in pieces
    ):
        order = np.arange(len(piece))
        np.random.default_rng(task_seed(JOB_SEED, task)).shuffle(order)
        shuffled = piece[order]
        for number, at in enumerate(range(0, len(piece), MINIBATCH_SIZE)):
            found.append(Minibatch(epoch, task, number, shuffled[at : at + MINIBATCH_SIZE]))
    return found


@dataclass(frozen=True, slots=True)
class Sums:
    """What the counting model adds up: of each id's row, and of every other parameter.

    rows: shape (ids, 2): occurrences, and signatures of the minibatches that they were in.
    vector: minibatches, and the sum of their signatures.
    """

    rows: NDArray[np.float64]
    vector: NDArray[np.float64]


def sums(trained: Iterable[Minibatch], num_ids: int, num_signatures: int) -> Sums:
    """Return what the counting model has after these minibatches."""
    rows, vector = np.zeros((num_ids, 2)), np.zeros(2)
    for minibatch in trained:
        added = (1.0, float(minibatch.signature(num_signatures)))
        np.add.at(rows, minibatch.ids.ravel(), added)
        vector += added
    return Sums(rows, vector)
