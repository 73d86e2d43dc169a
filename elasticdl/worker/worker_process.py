"""Builds a worker and its parts, in one way for every place where it runs.

A worker runs in a process of its own (`__main__.py`), beside a user's script (`script.py`), or in
the process of the command, with the master (`cli/local.py`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from elasticdl import registry
from elasticdl.backends.base import (
    CallbackNeeds,
    ChecksExport,
    Int64,
    ModelDescription,
    Predictor,
    TellFeedWay,
    Trainer,
)
from elasticdl.backends.load import load_saved_model, load_trainer
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Metadata
from elasticdl.errors import ElasticdlError, ModelError, place_of
from elasticdl.job import Strategy, TaskKind
from elasticdl.model_spec import ModelSpec, load_model_spec
from elasticdl.observe.labels import LabelClock
from elasticdl.rpc.base import MasterClient
from elasticdl.runtime.process import IS_BUILT
from elasticdl.worker.cores import threads_of
from elasticdl.worker.data_check import check_data, metadata_of, tell_notes
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.heartbeat import Heartbeat
from elasticdl.worker.loop import Worker
from elasticdl.worker.parameters import Parameters
from elasticdl.worker.predictions import PredictionSink, make_sink
from elasticdl.worker.sources import main_sample, open_readers, waits_for
from elasticdl.worker.step_watch import StepWatch, watches_of
from elasticdl.worker.watch import Watch
from elasticdl.worker.watchdog import Watchdog

log = logging.getLogger(__name__)


@dataclass(slots=True)
class WorkerProcess:
    """One worker of a job, with its parts.

    config, worker_id, master: The job, the number of the worker, and the client of the master.
    hold: Makes the exchange with the holders of the parameters. It is called after the model is
        built, since the holders may still be starting until then.
    heartbeat: Tells the master that the worker is alive, even before its framework is imported.
    labels: Counts the time of the worker.
    device: The device on which it computes; None: the framework chooses.
    tell_feed: Called with the way in which the user's feed runs.
    may_end: Whether the watch may end the process, because another takes its place.
    exchange: The result of `hold`; empty before.
    watches: Watch the steps of training.
    """

    config: JobConfig
    worker_id: int
    master: MasterClient
    hold: Callable[[Trainer], Exchange]
    heartbeat: Heartbeat
    labels: LabelClock
    device: str | None
    tell_feed: TellFeedWay
    may_end: bool = True
    exchange: Exchange = field(default_factory=Exchange)
    watches: list[StepWatch] = field(default_factory=list)

    def of_model_file(self) -> Worker:
        """Return a worker that is ready to run, with the functions of the model file.

        Raises:
            ModelError, DataError, ConfigError: The user's file or data cannot be used.
            ModelMismatchError: The ps replicas hold another model.
        """
        config = self.config
        spec = load_model_spec(config.model, config.training.learning_rate)
        readers = self._open_readers(spec)
        metadata = metadata_of(config, readers)
        if config.checkpoint.saved_model is not None:
            model = self._saved_model(spec, metadata, readers, config.checkpoint.saved_model)
            self._look_at_data(spec, model, metadata, readers)
            return self._worker(model, readers, spec)
        trainer, description = build_trainer(
            config, spec, metadata, readers, self.device, self.tell_feed
        )
        # These checks come before the exchange is declared and the first record is trained: a job
        # that cannot be finished fails early.
        self._check_export(trainer)
        callbacks = trainer.callbacks if config.command == "train" else None
        if callbacks is not None:
            check_callbacks(config, callbacks, spec)
        self._look_at_data(spec, trainer, metadata, readers, (trainer, description))
        self._begin_exchange(trainer, description)
        if config.command == "train":
            built: dict[str, ModelBuilt] = registry.brought("model_built")
            for tell in built.values():
                tell(config, self.worker_id, self.master, trainer)
        if callbacks is not None:
            self.master.has_callbacks(self.worker_id)
        worker = self._worker(trainer, readers, spec, trainer)

        def look_up(sites: Sequence[tuple[int, Int64]], training: bool) -> Parameters:
            with worker.looking_up("ids", "compute", "evaluate", "predict"):
                return self.exchange.look_up(sites, training)

        trainer.set_lookup(look_up)
        return worker

    def of_trainer(self, trainer: Trainer, notes: Sequence[str]) -> Worker:
        """Return a worker that is ready to run, whose trainer is there without a model file.

        Args:
            trainer: Computes the gradients.
            notes: The ways in which the job does not do what its author may expect.

        Raises:
            DataError: The data cannot be read.
            ModelMismatchError: The other workers hold another model.
        """
        readers = self._open_readers(None)
        description = trainer.build(main_sample(self.config, readers, trainer))
        log.info(IS_BUILT)
        tell_notes(self.master, self.worker_id, notes)
        self._begin_exchange(trainer, description)
        return self._worker(trainer, readers, None, trainer)

    def watching(self, worker: Worker) -> Watch:
        """Report the worker's progress with the heartbeats; return the context in which it runs."""
        self.heartbeat.progress, self.heartbeat.tell_first = worker.progress, worker.tell_kept
        cluster = self.config.cluster
        return Watch(
            Watchdog(self.config.training.task_timeout_seconds),
            worker.under_way,
            self.master,
            self.worker_id,
            cluster.heartbeat_seconds,
            cluster.heartbeat_timeout_seconds,
            self.may_end,
        )

    # --- steps on the way ------------------------------------------------------------------------

    def _open_readers(self, spec: ModelSpec | None) -> dict[TaskKind, DataReader]:
        readers = open_readers(self.config, spec)
        self.heartbeat.waits_for = lambda: waits_for(readers.values())
        return readers

    def _saved_model(
        self,
        spec: ModelSpec,
        metadata: Metadata,
        readers: dict[TaskKind, DataReader],
        saved: Path,
    ) -> Predictor:
        threads = threads_of(self.config)
        log.info("%s", threads)
        model = load_saved_model(spec, metadata, saved, threads.count, self.device, self.tell_feed)
        model.check(main_sample(self.config, readers, model))
        log.info(IS_BUILT)
        return model

    def _look_at_data(
        self,
        spec: ModelSpec,
        model: Predictor,
        metadata: Metadata,
        readers: dict[TaskKind, DataReader],
        built: tuple[Trainer, ModelDescription] | None = None,
    ) -> None:
        given = self.config, spec, model, metadata, readers, self.master, self.worker_id
        check_data(*given, built)

    def _begin_exchange(self, trainer: Trainer, description: ModelDescription) -> None:
        self.exchange = self.hold(trainer)
        self.exchange.declare(description)
        sites = trainer.id_sites()
        self.watches = watches_of(self.config, self.worker_id, description, sites)

    def _check_export(self, trainer: Trainer) -> None:
        """Refuse a model that cannot be exported before it is trained; one worker looks.

        Raises:
            ModelError: The model cannot be exported.
        """
        checkpoint = self.config.checkpoint
        is_written = self.config.command == "train" and checkpoint.output is not None
        does_it = is_written and self.config.does_for_all(self.worker_id)
        if does_it and isinstance(trainer, ChecksExport):
            trainer.check_export(beside=checkpoint.output_tables == "parquet")

    def _worker(
        self,
        model: Predictor,
        readers: dict[TaskKind, DataReader],
        spec: ModelSpec | None,
        trainer: Trainer | None = None,
    ) -> Worker:
        sink = _no_predictions
        if spec is not None:
            sink = partial(make_sink, spec, self.worker_id, self.config.checkpoint.predictions)
        return Worker(
            self.config,
            self.worker_id,
            self.master,
            model,
            self.exchange,
            readers,
            sink,
            trainer,
            has_own_reader=spec is not None and spec.custom_data_reader is not None,
            labels=self.labels,
            watches=self.watches,
        )


Watching = Callable[[Worker], AbstractContextManager[object]]
"""Returns the context in which a worker runs."""
ModelBuilt = Callable[[JobConfig, int, MasterClient, Trainer], None]
"""Is told that a worker of a training job has built its model, before it trains."""
Program = Callable[[WorkerProcess, Watching, Callable[[], None]], None]
"""Runs in place of a model file. It is called with what makes a worker, with the worker's context,
and with what is to be called when the worker has run."""


def build_trainer(
    config: JobConfig,
    spec: ModelSpec,
    metadata: Metadata,
    readers: dict[TaskKind, DataReader],
    device: str | None,
    tell_feed: TellFeedWay,
) -> tuple[Trainer, ModelDescription]:
    """Return the built model of a job and its description; equal in all processes.

    Args:
        config: The job's settings.
        spec: The functions of the model file.
        metadata: The metadata that `feed` gets.
        readers: The readers of the data; the first records are read.
        device: The device on which the model computes; None: the framework chooses.
        tell_feed: Called with the way in which the user's feed runs.

    Raises:
        ModelError: The model cannot be built.
    """
    threads = threads_of(config)
    log.info("%s", threads)
    # Without ps replicas, a large Keras Embedding stays a dense variable.
    is_dense = config.has_worlds and not config.num_ps
    try:
        trainer = load_trainer(
            spec,
            metadata,
            config.training.seed,
            sys.maxsize if is_dense else config.model.embedding_threshold_bytes,
            threads.count,
            config.model.run_eagerly,
            config.model.torch_compile,
            device,
            tell_feed,
        )
        description = trainer.build(main_sample(config, readers, trainer))
    except ElasticdlError:
        raise
    except Exception as error:
        raise ModelError(
            f"--model_def={config.model.model_def}: building the model failed: "
            f"{type(error).__name__}: {error} ({place_of(error)})"
        ) from error
    log.info(IS_BUILT)
    return trainer, description


def _no_predictions() -> PredictionSink:
    raise ModelError("a script has no predictions that the job writes")


def check_callbacks(config: JobConfig, needs: CallbackNeeds, spec: ModelSpec) -> None:
    """Refuse callbacks that could not do their part, and note those that act late."""
    if config.training.deterministic:
        raise ModelError(
            "callbacks() has some that the job calls, and those act when their time comes, not at "
            "a given update: with --deterministic leave them out (a keras schedule as "
            "learning_rate is fine)"
        )
    if needs.watches and not config.data.evaluates:
        raise ModelError(
            f"callback {needs.watches} watches evaluations, but there are none during training: "
            "give --validation_data or --validation_split"
        )
    if needs.watches and config.evaluation.evaluation_steps == 0:
        raise ModelError(
            f"callback {needs.watches} watches evaluations, and with --evaluation_steps=0 there is "
            "none while training: leave it out, for one after each epoch"
        )
    is_evaluated = config.data.evaluates and config.evaluation.evaluation_steps is None
    if not (config.is_local or is_evaluated):
        spec.tell(
            "callbacks are told of the end of an epoch when the next one is under way: what they "
            "decide there comes some tasks late. An epoch waits for them with --validation_data, "
            f"and with --distribution_strategy={Strategy.LOCAL}"
        )
