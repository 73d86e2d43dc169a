"""Loads a trained model once into this program; it predicts as a job's worker would."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from elasticdl.backends.base import Predictor
from elasticdl.backends.exported import backend_of_export
from elasticdl.backends.known import known
from elasticdl.backends.load import load_saved_model
from elasticdl.cli.display import is_warning
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Metadata
from elasticdl.errors import DataError
from elasticdl.job import Mode, Task, TaskKind
from elasticdl.model_spec import ModelSpec, load_model_spec
from elasticdl.packages.notebooks.by_value import is_own
from elasticdl.settings.model import KERAS_VARIABLE, STATISTICS_VARIABLE
from elasticdl.worker.data_check import look, metadata_of
from elasticdl.worker.predictions import FileSink, Predicted
from elasticdl.worker.records import located, read_all
from elasticdl.worker.sources import main_sample, open_readers

_VARIABLES = (KERAS_VARIABLE, STATISTICS_VARIABLE)


def may_load(export: Path) -> bool:
    """Return whether this program can load an export: no other framework may be loaded already."""
    own = set(backend_of_export(export).imports)
    others = {name for backend in known().values() for name in backend.imports} - own
    return not own or not own.isdisjoint(sys.modules) or others.isdisjoint(sys.modules)


class LoadedModel:
    """The exported model of a job, with the functions of its model file."""

    def __init__(self) -> None:
        """Loads nothing yet."""
        self._spec: ModelSpec | None = None
        self._model: Predictor | None = None
        self._metadata: Metadata | None = None

    def predict(self, config: JobConfig, output: Path) -> None:
        """Write the model's predictions for the records that a configuration names.

        Args:
            config: The configuration of `elasticdl predict`, with the export.
            output: The folder where files of predictions are written.

        Raises:
            ElasticdlError: The export, the functions or the data cannot be used.
        """
        with imports_of(config.model.model_zoo):
            if self._spec is None:
                self._spec = load_model_spec(config.model)
            readers = open_readers(config, self._spec)
            model = self._load(config, self._spec, readers)
            reader, sink = readers[TaskKind.PREDICTION], FileSink(output)
            for number, shard in enumerate(reader.shards()):
                task = Task(number, TaskKind.PREDICTION, shard)
                sink.write(task, list(_predicted(model, reader, task, config)))

    def _load(
        self, config: JobConfig, spec: ModelSpec, readers: dict[TaskKind, DataReader]
    ) -> Predictor:
        """Return the loaded model; it is loaded again if these data give `feed` other settings."""
        metadata = metadata_of(config, readers)
        if self._model is None or metadata != self._metadata:
            assert config.checkpoint.saved_model is not None
            model = load_saved_model(spec, metadata, config.checkpoint.saved_model, None)
            model.check(main_sample(config, readers, model))
            for line in filter(is_warning, look(config, spec, model, metadata, readers)):
                warnings.warn(line.removeprefix("warning: "), stacklevel=4)  # of the caller
            self._model, self._metadata = model, metadata
        return self._model


def _predicted(
    model: Predictor, reader: DataReader, task: Task, config: JobConfig
) -> Iterator[Predicted]:
    size, seed = config.training.minibatch_size, config.training.seed
    nothing = np.zeros(0, np.float32)
    try:
        for minibatch in model.minibatches(read_all(reader, task), Mode.PREDICTION, size, seed):
            assert minibatch.record_numbers is not None
            outputs = model.predict_step(minibatch, (), nothing, nothing)
            yield Predicted(outputs, minibatch.record_numbers)
    except DataError as error:
        raise located(reader, task.shard, error) from error


@contextlib.contextmanager
def imports_of(zoo: Path) -> Iterator[None]:
    """Import from a model folder within the block, and restore this program's modules after it.

    Two jobs may have model files of the same name, and the program may have a module of that name
    too.
    """
    paths, environment = list(sys.path), {n: os.environ.get(n) for n in _VARIABLES}
    names = {path.stem for path in zoo.iterdir()}
    hidden = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] in names and is_own(name) and name != "__main__"
    }
    # A module of the program with a file's name would be taken in place of the file.
    for name in hidden:
        del sys.modules[name]
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] in names and is_own(name):
                del sys.modules[name]
        sys.modules.update(hidden)
        sys.path[:] = paths
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
