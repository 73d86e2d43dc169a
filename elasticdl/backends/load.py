"""Chooses the framework of a model by the result of its model function, or by a script's model."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from elasticdl.backends.backend import Backend, TrainerSettings
from elasticdl.backends.base import SavedPredictor, TellFeedWay, Trainer, tell_nobody
from elasticdl.backends.exported import backend_of_export
from elasticdl.backends.handover import Handover
from elasticdl.backends.known import known, listed
from elasticdl.backends.script import AskingTrainer, LoaderBatches
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.layers.lookup import looking_up
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
    classes = list(dict.fromkeys(_with_article(backend.model_class) for backend in backends))
    raise ModelError(
        f"the model function: expected {listed(classes)}, found "
        f"{type(model).__module__}.{type(model).__qualname__}"
    )


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _call(spec: ModelSpec, seed: int, num_threads: int | None) -> object:
    """Call the model function; the frameworks that it needs are prepared before it.

    If no number of threads is given, nothing is prepared: the process has its own.
    """
    others = [backend for backend in known().values() if not backend.is_imported()]
    with looking_up(_no_rows_yet):
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


def _no_rows_yet(layer: object, ids: object) -> NoReturn:
    raise ModelError(
        f"the model function calls {type(layer).__name__} itself; its rows come when the model "
        "that it returns is called"
    )


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


class ScriptFrameworks:
    """The frameworks that a script has imported, told what to compute with.

    Only these are touched: a process that imports both PyTorch and TensorFlow may be aborted.
    """

    def __init__(self, seed: int, num_threads: int, device: str, needs_one: bool = True) -> None:
        """Tell each of them.

        Args:
            seed: The seed of their random numbers.
            num_threads: The number of threads that they compute with.
            device: Where.
            needs_one: Whether a script without any of them is refused.

        Raises:
            ModelError: There is none, or the only one cannot compute there.
        """
        self._seed, self._device = seed, device
        self._errors: dict[str, ModelError | None] = {}
        self._backends = {
            name: backend for name, backend in known().items() if backend.runs_scripts
        }
        for name, backend in self._backends.items():
            if backend.is_imported():
                self._errors[name] = _error_of(backend, seed, num_threads, device)
        if needs_one and not self._errors:
            modules = [name for backend in self._backends.values() for name in backend.imports]
            raise ModelError(
                "elasticdl.controller.init(): expected the script to have imported "
                f"{listed(modules) or 'a framework'} before it, found none; they are told there "
                "with how many threads, and where, they compute"
            )
        for error in self._errors.values():
            if error is not None and len(self._errors) == 1:
                raise error

    def loader_batches(self) -> LoaderBatches | None:
        """Return what a loader of one of them is made on; None: they have no loader."""
        found = (self._backends[name].loader_batches() for name in self._errors)
        return next((batches for batches in found if batches is not None), None)

    def trainer(self, handover: Handover, model: object, optimizer: object) -> AskingTrainer:
        """Return the trainer of a script's model.

        Raises:
            ModelError: Model or optimizer cannot be used here; says what and why.
        """
        for name, backend in self._backends.items():
            if backend.is_model(model):
                self._check(name)
                return backend.script_trainer(handover, model, optimizer, self._seed, self._device)
        classes = [_with_article(backend.model_class) for backend in self._backends.values()]
        raise ModelError(
            f"wrap(model, optimizer): expected {listed(classes) or 'a model'}, found "
            f"{type(model).__module__}.{type(model).__qualname__}; loops in other frameworks are "
            "not run so far"
        )

    def _check(self, name: str) -> None:
        if name not in self._errors:
            raise ModelError(
                f"wrap(model, optimizer): expected {name} to be imported before "
                "elasticdl.controller.init(), which tells it with how many threads it computes"
            )
        error = self._errors[name]
        if error is not None:
            raise error


def _error_of(backend: Backend, seed: int, num_threads: int, device: str) -> ModelError | None:
    try:
        backend.prepare_script(seed, num_threads, device)
    except ModelError as error:
        return error
    return None
