"""A model whose gradients a user's own training loop computes, whatever its framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from elasticdl.backends.base import (
    CallbackNeeds,
    Float32,
    Int64,
    Lookup,
    Minibatch,
    ModelDescription,
    Predictions,
    StepResult,
    TableSource,
)
from elasticdl.backends.numpy import picker
from elasticdl.data.base import Records
from elasticdl.errors import ModelError
from elasticdl.job import MetricStates, Mode
from elasticdl.packages.own_loops.handover import GradientRequest, Handover


@dataclass(frozen=True, slots=True)
class ScriptMinibatch(Minibatch):
    """Records as the script gets them, and the seed of the random numbers of the step."""

    seed: int


class Loader(Protocol):
    """Makes what the script gets of the records of each minibatch."""

    def loaded(self, cut: Sequence[list[Any]]) -> Iterator[Any]:
        """Yield it for each minibatch of a task, in their order."""
        ...


class LoaderBatches(Protocol):
    """The minibatches of a task, which a script gives to a loader of its framework."""

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the records of each minibatch."""
        ...

    def __len__(self) -> int:
        """Return the number of minibatches."""
        ...

    def loaded_by(self, loader: object, seed: int) -> Loader:
        """Check a loader that was made on these batches, and begin its processes.

        Args:
            loader: The script's loader.
            seed: The seed of what the loader draws for its processes.

        Raises:
            ModelError: It would not give the minibatches of tasks.
        """
        ...


class OnlyTraining:
    """The part of a `Trainer` that the job of a script has no use for."""

    callbacks: CallbackNeeds | None = None
    has_schedule = False
    ids_need_parameters = False
    notes: Sequence[str] = ()  # what the job does otherwise than expected, for the start

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Predictions]) -> None:
        """Add nothing: metrics are the script's."""

    def new_metrics(self) -> None:
        """There are none."""

    def metric_states(self) -> MetricStates:
        """There are none."""
        return {}

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """There are none."""
        return {}

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """There are no tables."""
        return ()

    def set_lookup(self, pull: Lookup) -> None:
        """There are no tables."""

    def id_sites(self) -> Sequence[int]:
        """There are no tables."""
        return ()

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """There are no tables."""
        return ()

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Never called: the job of a script has no evaluations."""
        raise ModelError("the job of a script has no evaluations")

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Predictions:
        """Never called: the job of a script has no predictions."""
        raise ModelError("the job of a script has no predictions")


class AskingTrainer(OnlyTraining, ABC):
    """A `Trainer` that asks a script for its steps. Evaluation is the script's own affair.

    All ranks compute a round on the same parameters and state. So the new value of a state
    variable is the old one and the mean of the changes, whatever the layer does with it.

    Attributes:
        answer: The answer of the script to a step, written by the script.
        loader: Makes what the script gets of the records; None: the script does that.
    """

    answer: str

    def __init__(self, handover: Handover, seed: int) -> None:
        self._handover = handover
        self._seed = seed
        self.loader: Loader | None = None

    # --- the script's side -----------------------------------------------------------------------

    @abstractmethod
    def load(self, dense: Float32, state: Float32) -> None:
        """Give the script's model these parameters."""

    def begin_step(self, step: GradientRequest) -> Any:
        """Make the model ready for a step; return its records, or what a loader made of them."""
        assert isinstance(step.minibatch, ScriptMinibatch)
        self._begin(step, step.minibatch.seed)
        return step.minibatch.features

    @abstractmethod
    def _begin(self, step: GradientRequest, seed: int) -> None:
        """Make the model ready for a step, whose random numbers begin with a seed."""

    @abstractmethod
    def end_step(
        self,
        step: GradientRequest,
        loss: object,
        gradients: Iterable[tuple[object, object]] | None = None,
    ) -> StepResult:
        """Return what a script has computed.

        Args:
            step: The step that the script was given.
            loss: Its mean over the minibatch.
            gradients: Pairs of gradient and variable; None where they lie in the parameters.

        Raises:
            ModelError: They cannot be used, or something was changed that the job would not see.
        """

    @abstractmethod
    def zero_grad(self) -> None:
        """Forget gradients that lie in the parameters."""

    def load_with(self, loader: object, batches: LoaderBatches, seed: int) -> None:
        """Have a user's loader make what the script gets of the records.

        Raises:
            ModelError: It cannot be used here; says what and why.
        """
        self.loader = batches.loaded_by(loader, seed)

    # --- the worker's side -----------------------------------------------------------------------

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Cut the records of a task into minibatches, in an order drawn from the seed."""
        chunks = [chunk for chunk in records if len(chunk)]
        if not chunks:
            return
        pick = picker(chunks, False)
        order = np.arange(sum(len(chunk) for chunk in chunks))
        np.random.default_rng(seed).shuffle(order)
        starts = range(0, len(order), minibatch_size)
        cut = [pick(order[start : start + minibatch_size]) for start in starts]
        loaded = cut if self.loader is None else self.loader.loaded(cut)
        for start, batch, features in zip(starts, cut, loaded, strict=True):
            (drawn,) = np.random.SeedSequence([seed, start]).generate_state(1, np.uint64)
            # TensorFlow takes a seed as a signed number of 64 bits, so one bit is dropped.
            yield ScriptMinibatch(features, None, len(batch), seed=int(drawn) >> 1)

    @abstractmethod
    def build(self, sample: Minibatch) -> ModelDescription:
        """Describe the model; the sample is not needed."""

    @abstractmethod
    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the values that the model has now."""

    @abstractmethod
    def learning_rate(self, version: int) -> float:
        """Return the learning rate for a step from model version `version`."""

    def train_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Ask the script."""
        return self._handover.compute(GradientRequest(minibatch, dense, state))

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write the parameters and state; what calls the model is the script's."""

        # The model belongs to the script's thread, so this runs there.
        def write() -> None:
            self.load(dense, state)
            self._write(directory)

        self._handover.call(write)

    @abstractmethod
    def _write(self, directory: Path) -> None:
        """Write the values that the model has now."""
