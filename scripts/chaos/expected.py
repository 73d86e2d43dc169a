"""Computes every minibatch of the job without faults, from the data and the seed alone.

The code is independent of the code that it checks. It cuts files into tasks, shuffles the records
of a task, and adds up the sums of the models in `model_zoo/counting`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.order import Order
from elasticdl.worker.records import task_seed

from .job import JOB_SEED, MINIBATCH_SIZE, MINIBATCHES_PER_TASK, NUM_EPOCHS, SHUFFLE_BLOCK, Ids


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One minibatch of one epoch. `number` is its place in the task; `ids` has a row a record."""

    epoch: int
    task: int
    number: int
    ids: Ids

    @property
    def num_records(self) -> int:
        """The number of records."""
        return len(self.ids)

    def signature(self, num_signatures: int) -> int:
        """Return the signature that the model computes from the ids."""
        return zlib.crc32(np.ascontiguousarray(self.ids, "<i8").tobytes()) % num_signatures


def minibatches(
    files: Sequence[Ids], num_epochs: int = NUM_EPOCHS, shuffles_records: bool = False
) -> list[Minibatch]:
    """Return every minibatch of the job, in the order of tasks."""
    per_task = MINIBATCH_SIZE * MINIBATCHES_PER_TASK
    in_order = [ids[at : at + per_task] for ids in files for at in range(0, len(ids), per_task)]
    pieces = [
        (epoch, piece)
        for epoch in range(num_epochs)
        for piece in (shuffled_pieces(files, epoch, per_task) if shuffles_records else in_order)
    ]
    found = []
    for task, (epoch, piece) in enumerate(pieces):
        order = np.arange(len(piece))
        np.random.default_rng(task_seed(JOB_SEED, task)).shuffle(order)
        shuffled = piece[order]
        for number, at in enumerate(range(0, len(piece), MINIBATCH_SIZE)):
            found.append(Minibatch(epoch, task, number, shuffled[at : at + MINIBATCH_SIZE]))
    return found


def shuffled_pieces(files: Sequence[Ids], epoch: int, per_task: int) -> list[Ids]:
    """Return the records of each task of an epoch with `--shuffle=records`.

    The data is cut into blocks, and the blocks are permuted. The last, smaller block gets its
    own random place. A task is a range of the result. Its records are put into the order of the
    data and then permuted.
    """
    ids = np.concatenate(list(files))
    num_whole = len(ids) // SHUFFLE_BLOCK
    cut = num_whole * SHUFFLE_BLOCK
    blocks = np.arange(cut).reshape(num_whole, SHUFFLE_BLOCK)[
        Order(num_whole, JOB_SEED, epoch).first(num_whole)
    ]
    at = np.random.default_rng([JOB_SEED, epoch]).integers(num_whole + 1)
    tail = np.arange(cut, len(ids))
    numbers = np.concatenate([blocks[:at].ravel(), tail, blocks[at:].ravel()])
    pieces = []
    for start in range(0, len(ids), per_task):
        end = min(start + per_task, len(ids))
        order = np.random.default_rng([JOB_SEED, epoch, start, end]).permutation(end - start)
        pieces.append(ids[np.sort(numbers[start:end])[order]])
    return pieces


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of the counting model: in the row of each id, and in every other parameter.

    rows: Shape (ids, 2): occurrences of the id, and the sum of their minibatches' signatures.
    vector: The number of minibatches, and the sum of their signatures.
    """

    rows: NDArray[np.float64]
    vector: NDArray[np.float64]


def sums(trained: Iterable[Minibatch], num_ids: int, num_signatures: int) -> Sums:
    """Return the sums of the counting model after these minibatches."""
    rows, vector = np.zeros((num_ids, 2)), np.zeros(2)
    for minibatch in trained:
        added = (1.0, float(minibatch.signature(num_signatures)))
        np.add.at(rows, minibatch.ids.ravel(), added)
        vector += added
    return Sums(rows, vector)
