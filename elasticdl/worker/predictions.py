"""Writes predictions: to the user's processor, or to a file for each task."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasticdl.backends.base import Int64, Predictions
from elasticdl.errors import ConfigError, DataError, ModelError
from elasticdl.job import Task
from elasticdl.model_spec import ModelSpec

_TAKEN = {"source", "record", "file", "allow_pickle"}  # by a row's record, and by NumPy


@dataclass(frozen=True, slots=True)
class Predicted:
    """The model's outputs for one minibatch: arrays with a row for each example.

    record_numbers: The number of each row's record in its source.
    """

    outputs: Predictions
    record_numbers: Int64


class PredictionSink(Protocol):
    """Takes the outputs of one task once all of its records are predicted."""

    def write(self, task: Task, minibatches: Sequence[Predicted], attempt: int = 1) -> None:
        """Take the outputs of the task's minibatches; the attempt is the number of its lease.

        Raises:
            ModelError: The record of a row cannot be found.
        """
        ...


class ProcessorSink:
    """Calls the user's `PredictionOutputsProcessor.process(predictions, worker_id)`.

    A method with a parameter `record` gets the number of each row's record. A method with a
    parameter `source` gets the name of the records' file. A method without `record` gets one row
    for each record, in order.
    """

    def __init__(self, processor: Any, worker_id: int) -> None:
        self._processor = processor
        self._worker_id = worker_id
        names = inspect.signature(processor.process).parameters
        self._asks_source, self._asks_record = "source" in names, "record" in names

    def write(self, task: Task, minibatches: Sequence[Predicted], attempt: int = 1) -> None:
        """Hand the outputs on, minibatch by minibatch."""
        for part in minibatches:
            _check_rows(task, part)
        if not self._asks_record:
            _check_one_row_a_record(task, minibatches)
        for part in minibatches:
            told: dict[str, Any] = {}
            if self._asks_source:
                told["source"] = task.shard.name
            if self._asks_record:
                told["record"] = part.record_numbers
            self._processor.process(part.outputs, self._worker_id, **told)


class FileSink:
    """Writes `predictions-TASK.npz` for each task: `source`, `record`, one array per output.

    Rows are in the order of the records. A record that `feed` left out has no row. A record from
    which `feed` made several examples has several rows.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, task: Task, minibatches: Sequence[Predicted], attempt: int = 1) -> None:
        """Write the task's file whole; a task that is done twice gives the same file."""
        for part in minibatches:
            _check_rows(task, part)
        records = _all_numbers(minibatches)
        order = np.argsort(records, kind="stable")
        named = [_named(part.outputs) for part in minibatches]
        arrays = {
            name: np.concatenate([np.asarray(part[name]) for part in named])[order]
            for name in (named[0] if named else ())
        }
        told = {"source": np.array(task.shard.name), "record": records[order]}
        taken = sorted(arrays.keys() & _TAKEN)
        if taken:
            raise ModelError(
                f"the model has an output named {taken[0]!r}, which a file of predictions uses "
                "itself: give the output another name"
            )
        self._save(f"predictions-{task.id:08d}", told | arrays, attempt)

    def _save(self, name: str, arrays: dict[str, NDArray[np.generic]], attempt: int) -> None:
        final = self._directory / f"{name}.npz"
        # The file gets its name when it is whole: a process that is killed here leaves no half file
        # that looks done. A process that lost its lease may still write, to a file of its own.
        partial = final.with_suffix(f".partial-{attempt}")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            partial.rename(final)
            for earlier in range(1, attempt):  # of processes that were killed
                final.with_suffix(f".partial-{earlier}").unlink(missing_ok=True)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise DataError(f"{final}: cannot be written: {error.strerror or error}") from error


def make_sink(spec: ModelSpec, worker_id: int, output: Path | None) -> PredictionSink:
    """Choose the user's processor if the model file has one, files under `--output` otherwise.

    Raises:
        ConfigError: There is neither.
    """
    if spec.prediction_outputs_processor is not None:
        return ProcessorSink(spec.prediction_outputs_processor(), worker_id)
    if output is None:
        raise ConfigError(
            "elasticdl predict: expected a PredictionOutputsProcessor in the model file or "
            "--output=FOLDER, found neither"
        )
    return FileSink(output)


def _named(outputs: Predictions) -> dict[str, ArrayLike]:
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if isinstance(outputs, Sequence) and not isinstance(outputs, np.ndarray):
        return {f"output_{number}": value for number, value in enumerate(outputs)}
    return {"output": np.asarray(outputs)}


def _all_numbers(minibatches: Sequence[Predicted]) -> Int64:
    return np.concatenate([np.zeros(0, np.int64), *(m.record_numbers for m in minibatches)])


def _check_rows(task: Task, part: Predicted) -> None:
    expected = len(part.record_numbers)
    for name, value in _named(part.outputs).items():
        shape = np.shape(value)
        if not shape or shape[0] != expected:
            raise ModelError(
                f"the model's {name} of {expected} examples of {task.shard.name} has shape "
                f"{list(shape)}: expected a row for each example as the first axis"
            )


def _check_one_row_a_record(task: Task, minibatches: Sequence[Predicted]) -> None:
    found = _all_numbers(minibatches)
    if not np.array_equal(found, np.arange(task.shard.start, task.shard.end)):
        raise ModelError(
            f"feed gives {len(found)} rows for records {task.shard.start} to {task.shard.end} of "
            f"{task.shard.name} in mode prediction, not one for each in their order: "
            "PredictionOutputsProcessor.process(predictions, worker_id) could not tell which "
            "record a row is of; add the parameters source and record to it, which say so"
        )
