"""Checks before the first record is trained that an evaluation can be made."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from elasticdl.backends.base import Float32, Minibatch, ModelDescription, Predictor, Trainer
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader
from elasticdl.errors import ConfigError, ModelError
from elasticdl.job import Mode, TaskKind
from elasticdl.settings.best import Best
from elasticdl.worker.records import sample_minibatch

_NOTHING = np.zeros(0, np.float32)


def check_metrics(
    config: JobConfig,
    model: Predictor,
    built: tuple[Trainer, ModelDescription] | None,
    readers: Mapping[TaskKind, DataReader],
) -> None:
    """Call the metrics once, on the outputs before training, with rows of zeros.

    Only errors of the metrics are reported: the outputs for such rows say little.

    Args:
        config: The job's settings.
        model: A trainer that is built, or an export.
        built: The trainer and its description; None: the model is an export.
        readers: The data.

    Raises:
        ModelError: A metric fails, or its sums cannot be added over workers.
        ConfigError: `--keep_best` names none of them.
    """
    if TaskKind.EVALUATION not in readers or model.ids_need_parameters:
        return
    try:
        names = _tried(config, model, built, readers[TaskKind.EVALUATION])
    except ModelError as error:
        if not str(error).startswith("metric "):
            return  # the first task that meets it says so
        raise
    wanted = Best.of(config.checkpoint.keep_best)
    if wanted is not None and wanted.value_in(names) is None:
        raise ConfigError(
            f"--keep_best={wanted.metric}: the evaluation has no such metric, but "
            f"{', '.join(names) or 'none'}"
        )


def _tried(
    config: JobConfig,
    model: Predictor,
    built: tuple[Trainer, ModelDescription] | None,
    reader: DataReader,
) -> dict[str, float]:
    minibatch = sample_minibatch(reader, model, Mode.EVALUATION, config.training.minibatch_size)
    dense, state, rows = _NOTHING, _NOTHING, list[Float32]()
    if built is not None:
        trainer, description = built
        dense, state = trainer.initial_values()
        rows = _zeros(trainer, description, minibatch)
    model.new_metrics()
    model.evaluate_step(minibatch, rows, dense, state)
    names = model.metric_results(model.metric_states())
    model.new_metrics()
    return names


def _zeros(trainer: Trainer, description: ModelDescription, minibatch: Minibatch) -> list[Float32]:
    tables = [description.tables[table] for table in trainer.id_sites()]
    sites = zip(trainer.ids(minibatch), tables, strict=True)
    return [np.zeros((*ids.shape, table.dim), np.float32) for ids, table in sites]
