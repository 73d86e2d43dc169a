"""Has the data looked at before the first record is trained: by one worker, for a second or two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from elasticdl import registry
from elasticdl.backends.base import Float32, Minibatch, ModelDescription, Predictor, Trainer
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Metadata
from elasticdl.errors import ConfigError, ElasticdlError, ModelError, in_short, place_of
from elasticdl.job import OF_MODEL, DataCheckTurn, Mode, TaskKind
from elasticdl.model_spec import ModelSpec
from elasticdl.rpc.base import MasterClient
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from elasticdl.settings.best import Best
from elasticdl.worker.records import sample_minibatch

_NOTHING = np.zeros(0, np.float32)
_PAUSE_SECONDS = 0.1
_TURN_SECONDS = 60.0  # for which others wait

KINDS = (
    (TaskKind.TRAINING, Mode.TRAINING),
    (TaskKind.EVALUATION, Mode.EVALUATION),
    (TaskKind.PREDICTION, Mode.PREDICTION),
)


LookAtData = Callable[
    [JobConfig, ModelSpec, Predictor, Metadata, Mapping[TaskKind, DataReader]], list[str]
]
"""Returns what there is to say about the data, a line each.

It raises an `ElasticdlError` if the job cannot give a useful result with this data."""


class NotedMetadata(Metadata):
    """Metadata that notes whether `feed` asked for the names of the columns."""

    __slots__ = ("was_asked",)
    was_asked: list[str]

    def __getattribute__(self, name: str) -> Any:
        if name in ("column_names", "column_dtypes"):
            asked = object.__getattribute__(self, "was_asked")
            if name not in asked:  # `feed` may ask with each record
                asked.append(name)
        return object.__getattribute__(self, name)

    @classmethod
    def copy_of(cls, metadata: Metadata) -> NotedMetadata:
        """Return a copy that notes no question yet."""
        made = object.__new__(cls)
        object.__setattr__(made, "was_asked", [])
        for one in fields(Metadata):
            object.__setattr__(made, one.name, getattr(metadata, one.name))
        return made


def metadata_of(config: JobConfig, readers: Mapping[TaskKind, DataReader]) -> Metadata:
    """Return the metadata that `feed` gets, for each data set in its own mode."""
    of_modes = {
        mode: NotedMetadata.copy_of(readers[kind].metadata)
        for kind, mode in KINDS
        if kind in readers
    }
    return replace(readers[main_kind(config)].metadata, of_modes=of_modes)


def main_kind(config: JobConfig) -> TaskKind:
    """Return the kind of task that the command is about."""
    return {
        "train": TaskKind.TRAINING,
        "evaluate": TaskKind.EVALUATION,
        "predict": TaskKind.PREDICTION,
    }[config.command]


def check_data(
    config: JobConfig,
    spec: ModelSpec,
    model: Predictor,
    metadata: Metadata,
    readers: Mapping[TaskKind, DataReader],
    master: MasterClient,
    worker_id: int,
    built: tuple[Trainer, ModelDescription] | None = None,
) -> None:
    """Look at the data and try the metrics, if it is this worker's turn; else wait for that worker.

    The findings are reported to the master.

    Raises:
        ElasticdlError: The job cannot give a useful result. The master knows, and ends the job.
    """
    # The worker that looks may be lost. The others then train without its result.
    deadline = time.monotonic() + _TURN_SECONDS
    while (turn := master.data_check_turn(worker_id)) is DataCheckTurn.WAIT:
        if time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_SECONDS)
    if turn is DataCheckTurn.OVER:
        return
    try:
        lines = look(config, spec, model, metadata, readers)
        check_metrics(config, model, built, readers)
    except ElasticdlError as error:
        master.data_checked(worker_id, [], str(error))
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED_EXIT_CODE:
            raise  # a signal asks this process to end
        lines = [_not_looked(error)]
    master.data_checked(worker_id, [*(f"{OF_MODEL}{note}" for note in spec.notes), *lines])


def look(
    config: JobConfig,
    spec: ModelSpec,
    model: Predictor,
    metadata: Metadata,
    readers: Mapping[TaskKind, DataReader],
) -> list[str]:
    """Return what there is to say about the data, a line each; a look that fails says so.

    Raises:
        ElasticdlError: The data gives no useful result.
    """
    looks: dict[str, LookAtData] = registry.brought("looks")
    try:
        return [
            line for at in looks.values() for line in at(config, spec, model, metadata, readers)
        ]
    except ElasticdlError:
        raise
    except Exception as error:
        return [_not_looked(error)]


def tell_notes(master: MasterClient, worker_id: int, notes: Sequence[str]) -> None:
    """Tell the master what a script's job does otherwise than expected, if nobody has."""
    if notes and master.data_check_turn(worker_id) is DataCheckTurn.YOURS:
        master.data_checked(worker_id, [f"{OF_MODEL}{note}" for note in notes])


def _not_looked(error: BaseException) -> str:
    """Return the line about a look that failed for another reason than the data."""
    where, what = place_of(error), f"{type(error).__name__}: {in_short(error, 200)}"
    return f"warning: nothing is said of the data: the look at it failed at {where}: {what}"


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
