"""Puts a worker together: the user's functions, readers, a backend, and where parameters live."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from elasticdl._core import PsClient
from elasticdl.backends.base import (
    CallbackNeeds,
    Int64,
    Minibatch,
    Predictor,
    TellFeedWay,
    Trainer,
    tell_nobody,
)
from elasticdl.backends.load import has_tables, load_saved_model, load_trainer
from elasticdl.checkpoints.publishing import program_name, write_program
from elasticdl.config import JobConfig
from elasticdl.data.aligned import aligned
from elasticdl.data.base import DataReader, Metadata
from elasticdl.data.open import open_reader
from elasticdl.data.shuffled import with_shuffle
from elasticdl.data.topic import reader_params
from elasticdl.errors import ElasticdlError, ModelError, place_of
from elasticdl.job import Mode, Strategy, TaskKind
from elasticdl.model_spec import ModelSpec, load_model_spec
from elasticdl.observe.labels import LabelClock
from elasticdl.rpc.base import MasterClient
from elasticdl.runtime.process import IS_BUILT
from elasticdl.worker.all_reduce import RingExchange
from elasticdl.worker.cores import Threads, choose_threads, usable_cores
from elasticdl.worker.data_check import check_data, metadata_of
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.loop import Worker
from elasticdl.worker.parameters import Parameters
from elasticdl.worker.predictions import PredictionSink, make_sink
from elasticdl.worker.records import sample_minibatch
from elasticdl.worker.route import Route
from elasticdl.worker.stores import StoreExchange

log = logging.getLogger(__name__)

_SAMPLES = {
    "train": (TaskKind.TRAINING, Mode.TRAINING),
    "evaluate": (TaskKind.EVALUATION, Mode.EVALUATION),
    "predict": (TaskKind.PREDICTION, Mode.PREDICTION),
}


def assemble(
    config: JobConfig,
    worker_id: int,
    master: MasterClient,
    connect: Callable[[], PsClient],
    route: Route | None = None,
    labels: LabelClock | None = None,
    reduce: Callable[[Trainer], RingExchange] | None = None,
    device: str | None = None,
    tell_feed: TellFeedWay = tell_nobody,
) -> Worker:
    """Return a worker that is ready to run, on a device or where its framework wants to be.

    The model is built while the ps replicas may still be starting: `connect` is called last; or
    `reduce` too, in a job whose workers hold the dense parameters.

    Raises:
        ModelError, DataError, ConfigError: The user's file or data cannot be used.
        ModelMismatchError: The ps replicas hold another model.
    """
    spec = load_model_spec(config.model, config.training.learning_rate)
    readers = open_readers(config, spec)
    metadata = metadata_of(config, readers)
    threads = threads_of(config)
    log.info("%s", threads)
    if config.checkpoint.saved_model is None:
        return _assemble_trainer(
            config,
            worker_id,
            master,
            connect,
            route,
            spec,
            readers,
            metadata,
            threads.count,
            labels,
            reduce,
            device,
            tell_feed,
        )
    model = load_saved_model(
        spec, metadata, config.checkpoint.saved_model, threads.count, device, tell_feed
    )
    model.check(_sample(config, readers, model))
    log.info(IS_BUILT)
    check_data(config, spec, model, metadata, readers, master, worker_id)
    sink = partial(make_sink, spec, worker_id, config.checkpoint.predictions)
    has_own_reader = spec.custom_data_reader is not None
    return Worker(
        config,
        worker_id,
        master,
        model,
        Exchange(),
        readers,
        sink,
        has_own_reader=has_own_reader,
        labels=labels,
    )


def _assemble_trainer(
    config: JobConfig,
    worker_id: int,
    master: MasterClient,
    connect: Callable[[], PsClient],
    route: Route | None,
    spec: ModelSpec,
    readers: dict[TaskKind, DataReader],
    metadata: Metadata,
    num_threads: int,
    labels: LabelClock | None,
    reduce: Callable[[Trainer], RingExchange] | None,
    device: str | None,
    tell_feed: TellFeedWay,
) -> Worker:
    # Without ps replicas a large Keras Embedding stays what it is: a dense variable.
    is_dense = config.has_worlds and not config.num_ps
    threshold = sys.maxsize if is_dense else config.model.embedding_threshold_bytes
    try:
        trainer = load_trainer(
            spec,
            metadata,
            config.training.seed,
            threshold,
            num_threads,
            config.model.run_eagerly,
            config.model.torch_compile,
            device,
            tell_feed,
        )
        description = trainer.build(_sample(config, readers, trainer))
        log.info(IS_BUILT)
    except ElasticdlError:
        raise
    except Exception as error:
        raise ModelError(
            f"--model_def={config.model.model_def}: building the model failed: "
            f"{type(error).__name__}: {error} ({place_of(error)})"
        ) from error
    check_data(config, spec, trainer, metadata, readers, master, worker_id)
    stores = None
    if reduce is None or config.num_ps:
        stores = StoreExchange(connect(), trainer, route, config.training.get_model_steps)
    exchange = Exchange(stores, None if reduce is None else reduce(trainer))
    exchange.declare(description)
    if config.command == "train":
        _write_program(config, worker_id, trainer)
    if config.command == "train" and trainer.callbacks is not None:
        _check_callbacks(config, trainer.callbacks)
        master.has_callbacks(worker_id)
    sink = partial(make_sink, spec, worker_id, config.checkpoint.predictions)
    has_own_reader = spec.custom_data_reader is not None
    worker = Worker(
        config,
        worker_id,
        master,
        trainer,
        exchange,
        readers,
        sink,
        trainer,
        has_own_reader,
        labels,
    )

    def look_up(sites: Sequence[tuple[int, Int64]], training: bool) -> Parameters:
        with worker.looking_up("ids", "compute", "evaluate", "predict"):
            return exchange.look_up(sites, training)

    trainer.set_lookup(look_up)
    return worker


def _write_program(config: JobConfig, worker_id: int, trainer: Trainer) -> None:
    """Write the model without its parameters for those who serve, unless another worker does.

    The first worker does it, and any that comes later and finds none.

    Raises:
        ModelError: The model cannot be served so.
    """
    directory, cluster = config.checkpoint.export_dir, config.cluster
    if directory is None or 0 < worker_id < cluster.num_workers:
        return
    dense, state = trainer.initial_values()

    def write(folder: Path) -> None:
        trainer.export(folder, dense, state, None)

    write_program(directory, program_name(cluster.job_name, cluster.job_dir), write)


def assemble_script(
    config: JobConfig,
    worker_id: int,
    master: MasterClient,
    trainer: Trainer,
    hold: Callable[[Trainer], Exchange],
    labels: LabelClock | None = None,
) -> Worker:
    """Return a worker whose gradients are computed by a script.

    `hold` is called last, and returns what holds the parameters.

    Raises:
        DataError: The data cannot be read.
        ModelMismatchError: The other workers hold another model.
    """
    readers = open_readers(config, None)
    description = trainer.build(_sample(config, readers, trainer))
    log.info(IS_BUILT)
    exchange = hold(trainer)
    exchange.declare(description)

    def no_predictions() -> PredictionSink:
        raise ModelError("a script has no predictions that the job writes")

    return Worker(
        config,
        worker_id,
        master,
        trainer,
        exchange,
        readers,
        no_predictions,
        trainer,
        labels=labels,
    )


def _check_callbacks(config: JobConfig, needs: CallbackNeeds) -> None:
    if config.training.deterministic:
        raise ModelError(
            "callbacks() has some that the job calls, and those act when their time comes, not at "
            "a given update: with --deterministic leave them out (a keras schedule as "
            "learning_rate is fine)"
        )
    if needs.watches and not config.data.validation_data:
        raise ModelError(
            f"callback {needs.watches} watches evaluations, of which there is none while training: "
            "say --validation_data"
        )
    if needs.watches and config.evaluation.evaluation_steps == 0:
        raise ModelError(
            f"callback {needs.watches} watches evaluations, and with --evaluation_steps=0 there is "
            "none while training: leave it out, for one after each epoch"
        )


def threads_of(config: JobConfig) -> Threads:
    """Say with how many threads a worker of this host computes, once the model file is imported."""
    is_local = config.training.distribution_strategy is Strategy.LOCAL
    return choose_threads(
        config.cluster.worker_threads,
        usable_cores(),
        1 if is_local else config.cluster.num_workers,
        has_tables(),
        os.environ,
        config.training.deterministic,
    )


def _sample(config: JobConfig, readers: dict[TaskKind, DataReader], model: Predictor) -> Minibatch:
    kind, mode = _SAMPLES[config.command]
    return sample_minibatch(readers[kind], model, mode, config.training.minibatch_size)


def open_readers(config: JobConfig, spec: ModelSpec | None) -> dict[TaskKind, DataReader]:
    """Open the sources that the job names; training data is read in the order that it asks for."""
    sources = {
        TaskKind.TRAINING: config.data.training_data,
        TaskKind.EVALUATION: config.data.validation_data,
        TaskKind.PREDICTION: config.data.prediction_data,
    }
    own = None if spec is None else spec.custom_data_reader
    readers = {
        kind: open_reader(path, reader_params(config.data, path), own)
        for kind, path in sources.items()
        if path
    }
    main = readers[_SAMPLES[config.command][0]].metadata
    readers = {kind: aligned(reader, main) for kind, reader in readers.items()}
    if TaskKind.TRAINING in readers:
        readers[TaskKind.TRAINING] = with_shuffle(readers[TaskKind.TRAINING], config.training)
    return readers
