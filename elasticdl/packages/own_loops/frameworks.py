"""Chooses the framework of a script by its model."""

from __future__ import annotations

from abc import ABC, abstractmethod

from elasticdl import registry
from elasticdl.backends.known import known, listed, with_article
from elasticdl.errors import ModelError
from elasticdl.packages.own_loops.asking import AskingTrainer, LoaderBatches
from elasticdl.packages.own_loops.handover import Handover


class ScriptFramework(ABC):
    """Runs loops in a framework; the package of the framework brings it."""

    @abstractmethod
    def prepare(self, seed: int, num_threads: int, device: str) -> None:
        """Tell the framework of a script how many threads compute, and where.

        Raises:
            ModelError: There is no such device, or the framework has begun already.
        """

    @abstractmethod
    def trainer(
        self, handover: Handover, model: object, optimizer: object, seed: int, device: str
    ) -> AskingTrainer:
        """Return the trainer of a script's model.

        Raises:
            ModelError: Model or optimizer cannot be used here; says what and why.
        """

    def loader_batches(self) -> LoaderBatches | None:
        """Return the batches that a loader of this framework is made on; None: it has none."""
        return None


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
        frameworks: dict[str, ScriptFramework] = registry.brought("script_frameworks")
        self._frameworks = frameworks
        self._backends = {name: each for name, each in known().items() if name in frameworks}
        for name, backend in self._backends.items():
            if backend.is_imported():
                self._errors[name] = _error_of(frameworks[name], seed, num_threads, device)
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
        found = (self._frameworks[name].loader_batches() for name in self._errors)
        return next((batches for batches in found if batches is not None), None)

    def trainer(self, handover: Handover, model: object, optimizer: object) -> AskingTrainer:
        """Return the trainer of a script's model.

        Raises:
            ModelError: Model or optimizer cannot be used here; says what and why.
        """
        for name, backend in self._backends.items():
            if backend.is_model(model):
                self._check(name)
                return self._frameworks[name].trainer(
                    handover, model, optimizer, self._seed, self._device
                )
        classes = [with_article(backend.model_class) for backend in self._backends.values()]
        raise ModelError(
            f"wrap(model, optimizer): expected {listed(classes) or 'a model'}, found "
            f"{type(model).__module__}.{type(model).__qualname__}; other frameworks are not "
            "supported"
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


def _error_of(
    framework: ScriptFramework, seed: int, num_threads: int, device: str
) -> ModelError | None:
    try:
        framework.prepare(seed, num_threads, device)
    except ModelError as error:
        return error
    return None
