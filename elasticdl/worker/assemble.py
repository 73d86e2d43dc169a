"""Puts a worker together: the user's functions, readers, a backend, and where parameters live."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl._core import PsClient
from elasticdl.backends.load import load_backend
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader
from elasticdl.data.open import open_reader
from elasticdl.errors import ElasticdlError, ModelError, place_of
from elasticdl.job import MasterClient, Mode, TaskKind
from elasticdl.model_spec import ModelSpec, load_model_spec
from elasticdl.worker.exchange import Exchange, SavedModelExchange, StoreExchange
from elasticdl.worker.loop import Worker, sample_minibatch
from elasticdl.worker.predictions import make_sink
from elasticdl.worker.route import Route

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
) -> Worker:
    """Return a worker that is ready to run.

    The model is built while the ps replicas may still be starting: `connect` is called last.

    Raises:
        ModelError, DataError, ConfigError: The user's file or data cannot be used.
        ModelMismatchError: The ps replicas hold another model.
    """
    spec = load_model_spec(config.model, config.training.learning_rate)
    readers = open_readers(config, spec)
    kind, mode = _SAMPLES[config.command]
    saved_model = config.checkpoint.saved_model
    try:
        backend = load_backend(
            spec,
            readers[kind].metadata,
            config.training.seed,
            config.model.embedding_threshold_bytes,
            saved_model,
        )
        sample = sample_minibatch(readers[kind], backend, mode, config.training.minibatch_size)
        description = backend.build(sample)
    except ElasticdlError:
        raise
    except Exception as error:
        raise ModelError(
            f"--model_def={config.model.model_def}: building the model failed: "
            f"{type(error).__name__}: {error} ({place_of(error)})"
        ) from error
    exchange: Exchange
    if saved_model is not None:
        exchange = SavedModelExchange()
    else:
        store = StoreExchange(connect(), backend, route or Route(), config.training.get_model_steps)
        backend.set_lookup(store.look_up)
        exchange = store
    exchange.declare(description)
    return Worker(
        config,
        worker_id,
        master,
        backend,
        exchange,
        readers,
        sink=lambda: make_sink(spec, worker_id, config.checkpoint.output),
    )


def open_readers(config: JobConfig, spec: ModelSpec) -> dict[TaskKind, DataReader]:
    """Open the sources that the job names."""
    sources = {
        TaskKind.TRAINING: config.data.training_data,
        TaskKind.EVALUATION: config.data.validation_data,
        TaskKind.PREDICTION: config.data.prediction_data,
    }
    return {
        kind: open_reader(path, config.data.data_reader_params, spec.custom_data_reader)
        for kind, path in sources.items()
        if path
    }
