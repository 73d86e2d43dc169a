"""Finds the record that a model cannot compute: halves its task until one record is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from elasticdl.backends.base import Minibatch, Predictor, Trainer
from elasticdl.data.base import DataReader, Records
from elasticdl.errors import (
    DataError,
    ElasticdlError,
    ModelError,
    NonFiniteLossError,
    SideEffectError,
    in_short,
    users_place_of,
)
from elasticdl.job import Lease, Mode, Task, TaskKind
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.records import read_all, task_seed

MOST_SECONDS = 20.0
"""How long is looked for a record."""

_MODES = {
    TaskKind.TRAINING: Mode.TRAINING,
    TaskKind.EVALUATION: Mode.EVALUATION,
    TaskKind.PREDICTION: Mode.PREDICTION,
}

Error = Exception | SystemExit


def is_of_model(error: Error) -> bool:
    """Whether an error of a step is one of the model's code, and not of the job around it."""
    if isinstance(error, NonFiniteLossError | SideEffectError):
        return False
    return isinstance(error, ModelError) or not isinstance(error, ElasticdlError | OSError)


class Culprits:
    """Computes parts of a task again, whose gradients nobody gets."""

    def __init__(
        self,
        model: Predictor,
        trainer: Trainer | None,
        exchange: Exchange,
        minibatch_size: int,
        seed: int,
    ) -> None:
        """Given what a worker computes with."""
        self._model = model
        self._trainer = trainer
        self._exchange = exchange
        self._minibatch_size = minibatch_size
        self._seed = seed

    def explained(
        self, lease: Lease, index: int, error: Exception, reader: DataReader
    ) -> Exception:
        """Return an error of a model's step with its record, else its minibatch, and its place."""
        if not is_of_model(error):
            return error
        ends = time.monotonic() + MOST_SECONDS
        shard = lease.task.shard

        def failure(start: int, end: int) -> Error | None:
            if time.monotonic() > ends:
                raise TimeoutError
            return self._failure(lease, reader, start, end)

        try:
            found = culprit(failure, type(error), shard.start, shard.end)
        except Exception:  # of a reader, of `feed`, or of parameters that are not there now
            found = None
        what = f"{lease.task.kind} fails"
        if found is None:
            return ModelError(f"{what} in minibatch {index}: {_said(error)}")
        record, own = found
        return DataError(f"{what} with record {record}: {_said(own)}", record)

    def _failure(self, lease: Lease, reader: DataReader, start: int, end: int) -> Error | None:
        """Return with what the records of a part of the task fail."""
        task = replace(lease.task, shard=replace(lease.task.shard, start=start, end=end))
        records = read_all(reader, task, lease.late_before)
        for minibatch in self._minibatches(task, records):
            try:
                self._compute(task, minibatch)
            except (Exception, SystemExit) as error:
                if not is_of_model(error):
                    raise
                return error
        return None

    def _minibatches(self, task: Task, records: Iterator[Records]) -> Iterator[Minibatch]:
        mode, seed = _MODES[task.kind], task_seed(self._seed, task.id)
        return self._model.minibatches(records, mode, self._minibatch_size, seed)

    def _compute(self, task: Task, minibatch: Minibatch) -> None:
        given = self._exchange.pull(self._model.ids(minibatch))
        arguments = minibatch, given.rows, given.dense, given.state
        if task.kind is TaskKind.TRAINING:
            assert self._trainer is not None, "only training jobs have training tasks"
            self._trainer.train_step(*arguments)
        elif task.kind is TaskKind.EVALUATION:
            self._model.evaluate_step(*arguments)
        else:
            self._model.predict_step(*arguments)


def culprit(
    failure: Callable[[int, int], Error | None], kind: type[BaseException], start: int, end: int
) -> tuple[int, Error] | None:
    """Return the record of a range that fails by itself, and with what; None: no single one does.

    Args:
        failure: Returns with what a part of the range fails, if it does.
        kind: The type of the error that is looked for.
        start: The first record of the range, which has failed.
        end: The one after its last record.
    """

    def fails(start: int, end: int) -> Error | None:
        error = failure(start, end)
        return error if type(error) is kind else None

    first, last, error = start, end, None
    while last - first > 1:
        middle = (first + last) // 2
        if error := fails(first, middle):
            last = middle
        elif error := fails(middle, last):
            first = middle
        else:
            return None
    error = error or fails(first, last)
    other = end - 1 if first != end - 1 else start
    if error is None or (other != first and fails(other, other + 1)):
        return None  # where each record fails, it is none's fault
    return first, error


def _said(error: Error) -> str:
    """Return what an error says, with its type and its place in the user's code."""
    said = in_short(error)
    if not isinstance(error, ElasticdlError):
        said = f"{type(error).__name__}: {said}"
    place = users_place_of(error)
    return said if not place or place in said else f"{said} ({place})"
