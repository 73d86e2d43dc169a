"""Chooses the framework of a model by the result of its model function."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from elasticdl.backends.backend import Backend, TrainerSettings
from elasticdl.backends.base import SavedPredictor, TellFeedWay, Trainer, tell_nobody
from elasticdl.backends.exported import backend_of_export
from elasticdl.backends.known import known, listed, with_article
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.model_spec import ModelSpec


def load_trainer(
    spec: ModelSpec,
    metadata: Metadata,
    seed: int,
    embedding_threshold_bytes: int,
    num_threads: int,
    run_eagerly: bool,
    torch_compile: bool = False,
    device: str | None = None,
    tell_feed: TellFeedWay = tell_nobody,
) -> Trainer:
    """Return the trainer for a model file, importing its framework only now.

    Args:
        spec: The functions of the model file.
        metadata: The description of the data, for `feed`.
        seed: The seed of the initial values.
        embedding_threshold_bytes: Above it a table of Keras is moved to the ps replicas.
        num_threads: The number of threads to compute with.
        run_eagerly: Whether feed, model and loss run as plain Python.
        torch_compile: Whether steps of PyTorch are compiled.
        device: Where it computes; None: PyTorch on the CPU, TensorFlow where it wants to.
        tell_feed: Is told which way `feed` runs, where there are several.

    Raises:
        ModelError: The model function returns something that no framework here knows, or that
            `torch_compile` is not for; or there is no such device.
    """
    settings = TrainerSettings(
        metadata=metadata,
        seed=seed,
        embedding_threshold_bytes=embedding_threshold_bytes,
        num_threads=num_threads,
        run_eagerly=run_eagerly,
        torch_compile=torch_compile,
        device=device,
        tell_feed=tell_feed,
    )
    backends = list(known().values())
    imported = [backend for backend in backends if backend.is_imported()]
    if imported and all(backend.builds_model for backend in imported):
        return imported[0].trainer(spec, None, settings)
    model = _call(spec, seed, num_threads)
    for backend in backends:
        if backend.is_model(model):
            return backend.trainer(spec, model, settings)
    classes = list(dict.fromkeys(with_article(backend.model_class) for backend in backends))
    raise ModelError(
        f"the model function: expected {listed(classes)}, found "
        f"{type(model).__module__}.{type(model).__qualname__}"
    )


def _call(spec: ModelSpec, seed: int, num_threads: int | None) -> object:
    """Call the model function; the frameworks that it needs are prepared before it.

    If no number of threads is given, nothing is prepared: the process has its own.
    """
    others = [backend for backend in known().values() if not backend.is_imported()]
    with ExitStack() as building:
        for backend in known().values():
            building.enter_context(backend.building())
        _prepare([each for each in known().values() if each not in others], seed, num_threads)
        model = spec.model()
        # The function may import its framework.
        late = [
            each
            for each in others
            if each.is_imported() and each.is_model(model) and not each.builds_model
        ]
        if late:
            _prepare(late, seed, num_threads)
            # The first call drew its values without the seed, so the model is made again.
            model = spec.model()
    return model


def _prepare(backends: Iterable[Backend], seed: int, num_threads: int | None) -> None:
    if num_threads is not None:
        for backend in backends:
            backend.prepare(seed, num_threads)


def has_tables() -> bool:
    """Whether a model file that was imported uses an `Embedding` of `elasticdl.layers`."""
    layers = {module for backend in known().values() for module in backend.table_layers}
    return not layers.isdisjoint(sys.modules)


def load_saved_model(
    spec: ModelSpec,
    metadata: Metadata,
    directory: Path,
    num_threads: int | None,
    device: str | None = None,
    tell_feed: TellFeedWay = tell_nobody,
) -> SavedPredictor:
    """Return an exported model, importing its framework only now.

    Args:
        spec: The functions of the model file.
        metadata: The description of the data, for `feed`.
        directory: The export.
        num_threads: To compute with; None: as this process does already.
        device: Where it computes; None: PyTorch on the CPU, TensorFlow where it wants to.
        tell_feed: Is told which way `feed` runs, where there are several.

    Raises:
        ModelError: The folder holds no export of a framework, or there is no such device.
    """
    backend = backend_of_export(directory)
    model = None
    if not backend.builds_model:
        model = _call(spec, 0, num_threads)
        if not backend.is_model(model):
            raise ModelError(
                f"--saved_model={directory} is an export of {backend.name}, but the model "
                f"function returns {type(model).__module__}.{type(model).__qualname__}"
            )
    return backend.predictor(spec, model, metadata, directory, num_threads, device, tell_feed)
