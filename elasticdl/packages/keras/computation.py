"""What TensorFlow or JAX does for a Keras model: its lookups, its steps and its inference."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from elasticdl.backends.base import Float32, Minibatch, StepResult
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.frameworks.parts import Lookups, StepPart
from elasticdl.packages.keras.description import Untrained
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.placed import PlacedModel
from elasticdl.packages.keras.model.state import VariableRules
from elasticdl.packages.keras.types import Nested


class KerasComputation(Lookups, StepPart, Protocol):
    """Computes a model that is placed.

    Attributes:
        rules: The rule by which training changes each state variable.
        newest: The dense and state vectors of the newest step; empty before.
    """

    rules: VariableRules
    newest: tuple[Float32, ...]

    def try_out(self, sample: KerasMinibatch) -> Untrained:
        """Call model and loss, so that a fault is found now, before the job begins."""
        ...

    def taken(self, minibatch: Minibatch) -> KerasMinibatch:
        """Return a minibatch as it is computed on."""
        ...

    def infer(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Nested, Any]:
        """Return the outputs, and what the model adds to its loss."""
        ...

    def predictions(self, minibatch: KerasMinibatch, outputs: Any) -> Nested:
        """Return the predictions of a `StepResult` as the model gives them."""
        ...


class _Step(Protocol):
    def __call__(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32, /
    ) -> StepResult: ...

    def predictions(self, outputs: Any) -> Nested: ...


class _Inference(Protocol):
    def __call__(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32, /
    ) -> tuple[Nested, Any]: ...


_StepKind = TypeVar("_StepKind", bound=_Step)
_InferenceKind = TypeVar("_InferenceKind", bound=_Inference)


class Computes(ABC):
    """What the parts of a `KerasComputation` ask of each other."""

    newest: tuple[Float32, ...] = ()

    @abstractmethod
    def taken(self, minibatch: Minibatch) -> KerasMinibatch:
        """Return a minibatch as it is computed on."""

    @abstractmethod
    def infer(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Nested, Any]:
        """Return the outputs, and what the model adds to its loss."""


class Compiled(Computes, Generic[_StepKind, _InferenceKind]):
    """The part of a computation that compiles its steps, once for each structure."""

    def __init__(self) -> None:
        self._steps: dict[object, _StepKind] = {}
        self._inferences: dict[object, _InferenceKind] = {}

    @abstractmethod
    def make_step(self, minibatch: KerasMinibatch) -> _StepKind:
        """Return a step for minibatches like one."""

    @abstractmethod
    def make_inference(self, minibatch: KerasMinibatch) -> _InferenceKind:
        """Return an inference for minibatches like one."""

    def step(self, minibatch: KerasMinibatch) -> _StepKind:
        """Return the step of minibatches like one."""
        key = minibatch.structure.key
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = self.make_step(minibatch)
        return step

    def train(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Compute loss and gradients; see `Trainer.train_step`."""
        taken = self.taken(minibatch)
        self.newest = dense, state
        return self.step(taken)(taken, rows, dense, state)

    def infer(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Nested, Any]:
        """Return the outputs, and what the model adds to its loss."""
        key = minibatch.structure.key
        inference = self._inferences.get(key)
        if inference is None:
            inference = self._inferences[key] = self.make_inference(minibatch)
        return inference(minibatch, rows, dense, state)

    def predictions(self, minibatch: KerasMinibatch, outputs: Any) -> Nested:
        """Return the predictions of a `StepResult` as the model gives them."""
        return self.step(minibatch).predictions(outputs)

    def forget_compiled(self) -> None:
        """Compile anew what is needed from now on."""
        self._steps.clear()
        self._inferences.clear()


class _HasTables(Protocol):
    @property
    def tables(self) -> list[int]: ...


_Collects = TypeVar("_Collects", bound=_HasTables)


class ByStructure(Generic[_Collects]):
    """Keeps what collects the lookups of a minibatch, made once for each structure.

    Args:
        placed: The model.
        make: Makes one, given a minibatch and whether it is trained on.
    """

    def __init__(
        self, placed: PlacedModel, make: Callable[[KerasMinibatch, bool], _Collects]
    ) -> None:
        self._placed = placed
        self._make = make
        self._making = threading.Lock()
        self._known: dict[tuple[object, bool], _Collects] = {}

    def __call__(self, minibatch: KerasMinibatch) -> _Collects:
        """Return the one of a minibatch.

        Raises:
            ModelError: It looks up other tables than those that were made before.
        """
        training = minibatch.mode == Mode.TRAINING
        key = (minibatch.structure.key, training)
        with self._making:
            found = self._known.get(key)
            if found is None:
                found = self._make(minibatch, training)
                known = next(iter(self._known.values()), None)
                if known is not None:
                    self._refuse_other_tables(known.tables, found.tables)
                self._known[key] = found
            return found

    def forget(self) -> None:
        """Forget all: the model looks up something else from now on."""
        self._known.clear()

    def _refuse_other_tables(self, known: Sequence[int], found: Sequence[int]) -> None:
        if known != found:
            names = [[self._placed.sources[t].name for t in tables] for tables in (known, found)]
            raise ModelError(
                "the model looks up other embeddings in training than in inference: "
                f"{', '.join(names[0])} at first, now {', '.join(names[1])}"
            )
