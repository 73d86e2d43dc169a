"""The sources of records that a job names, as its workers and its master open them."""

from __future__ import annotations

from collections.abc import Iterable

from elasticdl.backends.base import Minibatch, Predictor
from elasticdl.config import JobConfig
from elasticdl.data.aligned import aligned
from elasticdl.data.base import DataReader, Waits
from elasticdl.data.open import open_reader
from elasticdl.data.shuffled import with_shuffle
from elasticdl.data.sources import read_once_of, reader_params
from elasticdl.data.split import split
from elasticdl.job import Mode, TaskKind
from elasticdl.model_spec import ModelSpec
from elasticdl.worker.records import sample_minibatch

_MAIN = {
    "train": (TaskKind.TRAINING, Mode.TRAINING),
    "evaluate": (TaskKind.EVALUATION, Mode.EVALUATION),
    "predict": (TaskKind.PREDICTION, Mode.PREDICTION),
}


def open_readers(config: JobConfig, spec: ModelSpec | None) -> dict[TaskKind, DataReader]:
    """Open the sources that the job names; training data is read in the order of the settings."""
    sources = {
        TaskKind.TRAINING: config.data.training_data,
        TaskKind.EVALUATION: config.data.validation_data,
        TaskKind.PREDICTION: config.data.prediction_data,
    }
    kept = read_once_of(config)
    own = None if spec is None else spec.custom_data_reader
    readers: dict[TaskKind, DataReader] = {
        kind: open_reader(path, reader_params(config, path, has_begun=True), own)
        for kind, path in sources.items()
        if path and not (kind is TaskKind.TRAINING and kept is not None)
    }
    if kept is not None:
        readers[TaskKind.TRAINING] = kept.reader(config)
    if config.data.validation_split:
        trained, held_out = split(readers[TaskKind.TRAINING], config.data)
        readers |= {TaskKind.TRAINING: trained, TaskKind.EVALUATION: held_out}
    # All data sets are read with the columns of the main one, since the model file is written for
    # these.
    main = readers[_MAIN[config.command][0]].metadata
    readers = {kind: aligned(reader, main) for kind, reader in readers.items()}
    if TaskKind.TRAINING in readers:
        readers[TaskKind.TRAINING] = with_shuffle(readers[TaskKind.TRAINING], config.training)
    return readers


def waits_for(readers: Iterable[DataReader]) -> str:
    """Return what the sources wait for at the moment; "": none waits."""
    waiting = (reader.waits_for for reader in readers if isinstance(reader, Waits))
    return "; ".join(filter(None, waiting))


def main_sample(
    config: JobConfig, readers: dict[TaskKind, DataReader], model: Predictor
) -> Minibatch:
    """Return the first minibatch of the command's data; a model is built from it."""
    kind, mode = _MAIN[config.command]
    return sample_minibatch(readers[kind], model, mode, config.training.minibatch_size)
