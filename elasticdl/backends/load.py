"""Chooses the framework of a model by the result of its model function, or by a script's model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from elasticdl.backends.base import TellFeedWay, Trainer, tell_nobody
from elasticdl.backends.exported import ExportKind, kind_of_export
from elasticdl.backends.handover import Handover
from elasticdl.backends.script import AskingTrainer
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.layers.lookup import looking_up
from elasticdl.model_spec import ModelSpec

# Each of these imports its framework, and a process needs one at most.
if TYPE_CHECKING:
    from elasticdl.backends.keras.predictor import SavedModelPredictor
    from elasticdl.backends.numpy_predictor import SavedArraysPredictor
    from elasticdl.backends.torch.predictor import ExportedPredictor


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
    from elasticdl.backends.numpy import ArrayModel, NumpyTrainer

    def in_keras() -> Trainer:
        if torch_compile:
            raise _not_in_torch("Keras, whose steps TensorFlow compiles in any case")
        from elasticdl.backends.keras.choice import is_on_jax
        from elasticdl.backends.keras.threads import compute_with

        of_file = spec, metadata, seed, embedding_threshold_bytes, run_eagerly, tell_feed
        if is_on_jax():
            from elasticdl.backends.keras.on_jax.device import compute_by_jax
            from elasticdl.backends.keras.on_jax.trainer import JaxTrainer

            compute_by_jax(num_threads, device)
            return JaxTrainer(*of_file)
        from elasticdl.backends.keras.trainer import KerasTrainer

        compute_with(num_threads, device)
        # The trainer of Keras builds the model, because it watches the embeddings as they are made.
        # It also raises the error for an object that is no Keras model.
        return KerasTrainer(*of_file)

    # A file without PyTorch has a model of Keras, which only its trainer may build.
    if _imported("keras", "tensorflow") and not _imported("torch"):
        return in_keras()
    model = _call(spec, seed, num_threads)
    if isinstance(model, ArrayModel):
        if torch_compile:
            raise _not_in_torch("NumPy arrays")
        if device not in (None, "cpu"):
            raise ModelError(
                f"--worker_devices: a model on NumPy arrays is computed on the CPU, found {device}"
            )
        return NumpyTrainer(spec, model, metadata, seed)
    if _is_a(model, "torch.nn", "Module"):
        from elasticdl.backends.torch.device import open_device
        from elasticdl.backends.torch.trainer import TorchTrainer

        where = open_device(device or "cpu")
        return TorchTrainer(spec, model, metadata, seed, run_eagerly, torch_compile, where)
    if _is_a(model, "keras", "Model"):
        return in_keras()
    raise ModelError(
        "the model function: expected a keras.Model, a torch.nn.Module or an "
        f"elasticdl.ArrayModel, found {type(model).__module__}.{type(model).__qualname__}"
    )


def _not_in_torch(what: str) -> ModelError:
    return ModelError(
        "--torch_compile=true: expected a model in PyTorch, found one of "
        f"{what}; leave the flag out"
    )


def _call(spec: ModelSpec, seed: int, num_threads: int | None) -> object:
    """Call the model function as PyTorch's models need it, which changes nothing for others.

    If no number of threads is given, nothing is prepared: the process has its own.
    """
    knew_torch = _imported("torch")
    with looking_up(_no_rows_yet):
        if knew_torch:
            _prepare_torch(seed, num_threads)
        model = spec.model()
        if not knew_torch and _is_a(model, "torch.nn", "Module"):  # the function has imported it
            _prepare_torch(seed, num_threads)
            # The first call drew its values without the seed, so the model is made again.
            model = spec.model()
    return model


def _prepare_torch(seed: int, num_threads: int | None) -> None:
    if num_threads is None:
        return
    from elasticdl.backends.torch.device import prepare

    prepare(seed, num_threads)


def _no_rows_yet(layer: object, ids: object) -> NoReturn:
    raise ModelError(
        f"the model function calls {type(layer).__name__} itself; its rows come when the model "
        "that it returns is called"
    )


def _imported(*names: str) -> bool:
    return not sys.modules.keys().isdisjoint(names)


def _is_a(model: object, module: str, name: str) -> bool:
    """Say whether a model has a class of a framework; the framework need not be imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(model, kind)


def has_tables() -> bool:
    """Whether a model file that was imported uses an `Embedding` of `elasticdl.layers`."""
    return _imported("elasticdl.layers.embedding", "elasticdl.layers.torch")


def load_saved_model(
    spec: ModelSpec,
    metadata: Metadata,
    directory: Path,
    num_threads: int | None,
    device: str | None = None,
    tell_feed: TellFeedWay = tell_nobody,
) -> SavedModelPredictor | ExportedPredictor | SavedArraysPredictor:
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
    kind = kind_of_export(directory)
    if kind is ExportKind.NUMPY:
        from elasticdl.backends.numpy import ArrayModel
        from elasticdl.backends.numpy_predictor import SavedArraysPredictor

        model = _call(spec, 0, num_threads)
        if not isinstance(model, ArrayModel):
            raise _of_another(kind, directory, model)
        return SavedArraysPredictor(spec, model, metadata, directory)
    if kind is ExportKind.TORCH:
        model = _call(spec, 0, num_threads)
        if not _is_a(model, "torch.nn", "Module"):
            raise _of_another(kind, directory, model)
        from elasticdl.backends.torch.device import open_device
        from elasticdl.backends.torch.predictor import ExportedPredictor

        return ExportedPredictor(spec, model, metadata, directory, open_device(device or "cpu"))
    from elasticdl.backends.keras.predictor import SavedModelPredictor
    from elasticdl.backends.keras.threads import compute_with

    if num_threads is not None:
        compute_with(num_threads, device)
    return SavedModelPredictor(spec, metadata, directory, tell_feed)


def _of_another(kind: ExportKind, directory: Path, model: object) -> ModelError:
    return ModelError(
        f"--saved_model={directory} is an export of {kind}, but the model function "
        f"returns {type(model).__module__}.{type(model).__qualname__}"
    )


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
        if _imported("torch"):
            self._errors["torch"] = _error_of(lambda: _torch_on(seed, num_threads, device))
        if _imported("keras", "tensorflow"):
            self._errors["keras"] = _error_of(lambda: _keras_on(seed, num_threads, device))
        if needs_one and not self._errors:
            raise ModelError(
                "elasticdl.controller.init(): expected the script to have imported torch, keras "
                "or tensorflow before it, found none of them; they are told there with how many "
                "threads, and where, they compute"
            )
        for error in self._errors.values():
            if error is not None and len(self._errors) == 1:
                raise error

    def has(self, name: str) -> bool:
        """Say whether a framework, "torch" or "keras", is one of them."""
        return name in self._errors

    def trainer(self, handover: Handover, model: object, optimizer: object) -> AskingTrainer:
        """Return the trainer of a script's model.

        Raises:
            ModelError: Model or optimizer cannot be used here; says what and why.
        """
        if _is_a(model, "keras", "Model"):  # on PyTorch it is a torch.nn.Module too
            self._check("keras")
            from elasticdl.backends.keras.script import ScriptTrainer as InKeras

            return InKeras(handover, model, optimizer, self._seed)
        if _is_a(model, "torch.nn", "Module"):
            self._check("torch")
            from elasticdl.backends.torch.device import open_device
            from elasticdl.backends.torch.script import ScriptTrainer as InTorch

            return InTorch(handover, model, optimizer, self._seed, open_device(self._device))
        raise ModelError(
            "wrap(model, optimizer): expected a torch.nn.Module or a keras.Model, found "
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


def _error_of(tell: Callable[[], None]) -> ModelError | None:
    try:
        tell()
    except ModelError as error:
        return error
    return None


def _torch_on(seed: int, num_threads: int, device: str) -> None:
    from elasticdl.backends.torch.device import open_device, prepare

    open_device(device)  # refuses one that is not there
    prepare(seed, num_threads)


def _keras_on(seed: int, num_threads: int, device: str) -> None:
    from elasticdl.backends.keras.threads import prepare

    prepare(seed, num_threads, device)
