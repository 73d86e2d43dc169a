"""Where predictions go: to the user's processor, or to a file for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from elasticdl.errors import ConfigError
from elasticdl.job import Task
from elasticdl.model_spec import ModelSpec


class PredictionSink(Protocol):
    """Takes the outputs of one task once all of its records are predicted."""

    def write(self, task: Task, outputs: Sequence[Any]) -> None:
        """Take the outputs of the task's minibatches, in the order of its records."""
        ...


class ProcessorSink:
    """Calls the user's `PredictionOutputsProcessor.process(predictions, worker_id)`."""

    def __init__(self, processor: Any, worker_id: int) -> None:
        self._processor = processor
        self._worker_id = worker_id

    def write(self, task: Task, outputs: Sequence[Any]) -> None:
        """Hand the outputs on, minibatch by minibatch."""
        for predictions in outputs:
            self._processor.process(predictions, self._worker_id)


class FileSink:
    """Writes `predictions-TASK.npz` for each task: `source`, `record`, one array per output."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, task: Task, outputs: Sequence[Any]) -> None:
        """Write the task's file whole; a task that is done twice gives the same file."""
        named = [_named(part) for part in outputs]
        arrays = {
            name: np.concatenate([np.asarray(part[name]) for part in named])
            for name in (named[0] if named else ())
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        final = self._directory / f"predictions-{task.id:08d}.npz"
        partial = final.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                source=np.array(task.shard.name),
                record=np.arange(task.shard.start, task.shard.end),
                **arrays,
            )
        partial.rename(final)


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


def _named(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if isinstance(outputs, Sequence) and not isinstance(outputs, np.ndarray):
        return {f"output_{number}": value for number, value in enumerate(outputs)}
    return {"output": outputs}
