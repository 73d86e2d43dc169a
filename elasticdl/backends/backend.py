"""A backend: what the program needs of a framework that models are written in.

A package brings it: `backends` of `registry.Package`. Its module is imported in each process, also
in those that compute nothing. So it imports its framework only inside its methods.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from elasticdl.errors import ModelError

if TYPE_CHECKING:
    from elasticdl.backends.base import SavedPredictor, TellFeedWay, Trainer
    from elasticdl.backends.served import ServedModel
    from elasticdl.config import JobConfig
    from elasticdl.data.base import Metadata
    from elasticdl.model_spec import ModelSpec


End = Callable[[], None]
"""Ends a framework's profile and writes it; called by the thread that began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What a trainer needs beside the model file.

    Attributes:
        metadata: The description of the data, for `feed`.
        seed: The seed of the initial values.
        embedding_threshold_bytes: Above it a table of the framework is moved to the ps replicas.
        num_threads: The number of threads to compute with.
        run_eagerly: Whether feed, model and loss run as plain Python.
        torch_compile: Whether steps of PyTorch are compiled.
        device: Where it computes; None: where the framework usually does.
        tell_feed: Is told which way `feed` runs, where there are several.
    """

    metadata: Metadata
    seed: int
    embedding_threshold_bytes: int
    num_threads: int
    run_eagerly: bool
    torch_compile: bool
    device: str | None
    tell_feed: TellFeedWay


class Backend(ABC):
    """A framework that models are written in. It has no state.

    If several backends have imported a model's framework, the first one trains it.

    Attributes:
        name: The framework's name in messages, such as "PyTorch".
        model_class: The class of its models, such as "torch.nn.Module".
        imports: Modules; a model file in this framework imports one of them.
        export_files: Files of which an exported model of this framework has one.
        program: The file of an export with the program that `elasticdl serve` calls; "": none.
        table_layers: Modules with layers whose tables lie on the ps replicas.
        builds_model: Whether the trainer calls the model function itself, and nobody else may.
    """

    name: ClassVar[str]
    model_class: ClassVar[str]
    imports: ClassVar[tuple[str, ...]] = ()
    export_files: ClassVar[tuple[str, ...]] = ()
    program: ClassVar[str] = ""
    table_layers: ClassVar[tuple[str, ...]] = ()
    builds_model: ClassVar[bool] = False

    def loads(self, config: JobConfig) -> str:
        """Return the name of what the processes of a job load, if its model is in this framework.

        "": The model is in another one.
        """
        return self.name

    def is_imported(self) -> bool:
        """Return whether this process has imported the framework."""
        return not sys.modules.keys().isdisjoint(self.imports)

    def is_model(self, model: object) -> bool:
        """Return whether a model is in this framework, which need not be imported."""
        module, _, name = self.model_class.rpartition(".")
        kind = getattr(sys.modules.get(module), name, None)
        return kind is not None and isinstance(model, kind)

    def prepare(self, seed: int, num_threads: int) -> None:  # noqa: B027  # many need nothing
        """Make the framework ready for a call of the model function."""

    def building(self) -> AbstractContextManager[None]:
        """Return a context in which the model function is called."""
        return nullcontext()

    @abstractmethod
    def trainer(self, spec: ModelSpec, model: object, settings: TrainerSettings) -> Trainer:
        """Return the trainer of a model.

        Args:
            spec: The functions of the model file.
            model: The result of the model function; not used if `builds_model`.
            settings: All else.

        Raises:
            ModelError: The model or a setting is not for this framework.
        """

    @abstractmethod
    def predictor(
        self,
        spec: ModelSpec,
        model: object,
        metadata: Metadata,
        directory: Path,
        num_threads: int | None,
        device: str | None,
        tell_feed: TellFeedWay,
    ) -> SavedPredictor:
        """Return an exported model; see `load_saved_model` and `trainer`.

        Raises:
            ModelError: The export cannot be read, or there is no such device.
        """

    def served(self, folder: Path) -> ServedModel:
        """Load the program of an export; only called if the folder has the file `program`.

        Raises:
            ExportError: It cannot be served.
        """
        raise NotImplementedError(f"models in {self.name} have no program")

    def begin_profile(self, folder: Path) -> End | None:
        """Begin to record what the framework does; None if it trains nothing in this process.

        The thread that computes calls it.
        """
        return None


def not_compiled(what: str) -> ModelError:
    """Return the error for `--torch_compile` and a model that is not in PyTorch."""
    return ModelError(
        f"--torch_compile=true: expected a model in PyTorch, found one of {what}; leave the flag "
        "out"
    )
