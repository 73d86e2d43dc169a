"""The parts of which a framework's trainer is put together: it fills each, and inherits no other's.

A feed makes minibatches. The other parts are there once the model is built: the lookups find ids,
the step computes, the evaluation counts, the exporter writes. What a framework has beyond these is
a protocol (`ChecksData` and `KeepsNames` of `base.py`, `HasTowers` of `towers.py`). The worker asks
for it before it trains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elasticdl.backends.average import EvaluationLoss
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
from elasticdl.data.base import Records
from elasticdl.job import CallbackCall, CallbackResult, MetricStates, Mode
from elasticdl.packages.frameworks.job_callbacks import JobCallbacks


class FeedPart(Protocol):
    """Turns records into minibatches."""

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Run the user's `feed`; see `Predictor.minibatches`."""
        ...


class Values(Protocol):
    """The values with which a model begins."""

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the flat dense and state vectors; see `Trainer`."""
        ...

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """Return the rows that the model file sets; see `Trainer`."""
        ...


class Lookups(Protocol):
    """Finds the ids that a model looks up."""

    @property
    def tables(self) -> Sequence[int]:
        """The table of each id site."""
        ...

    @property
    def need_parameters(self) -> bool:
        """Whether ids depend on parameters; see `Predictor.ids_need_parameters`."""
        ...

    def set_lookup(self, pull: Lookup) -> None:
        """Give the lookup for ids that depend on parameters."""
        ...

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up."""
        ...


class StepPart(Protocol):
    """Computes one minibatch."""

    def train(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Compute loss and gradients; see `Trainer.train_step`."""
        ...

    def predict(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Predictions:
        """Return the model's outputs as arrays."""
        ...


class MetricsPart(Protocol):
    """The metrics of a model file."""

    def reset(self) -> None:
        """Start with empty sums."""
        ...

    def states(self) -> MetricStates:
        """Return the sums."""
        ...

    def results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from merged sums."""
        ...


class Evaluation(ABC):
    """Counts the metrics of a model and the loss of an evaluation.

    Args:
        metrics: The metrics of the model file.
        loss: The loss of an evaluation.
    """

    def __init__(self, metrics: MetricsPart, loss: EvaluationLoss) -> None:
        self._of_file = metrics
        self._loss = loss

    @abstractmethod
    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Any]) -> None:
        """Add trained minibatches, given the predictions of their `StepResult`s."""

    @abstractmethod
    def evaluate(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch of an evaluation."""

    def reset(self) -> None:
        """Start an evaluation."""
        self._of_file.reset()
        self._loss.reset()

    def states(self) -> MetricStates:
        """Return the sums since `reset`."""
        return {**self._of_file.states(), **self._loss.states()}

    def results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from merged sums."""
        return EvaluationLoss.beside(self._of_file.results(states), states)


class Exporter(Protocol):
    """Writes a model that serves."""

    def check(self, beside: bool) -> None:
        """Look whether the model can be exported; see `ChecksExport`."""
        ...

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write the model; see `Trainer.export`."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """A model that is built.

    Attributes:
        rate: The learning rate by model version.
        has_schedule: See `Trainer`.
        callbacks: The callbacks that the job calls.
    """

    description: ModelDescription
    values: Values
    lookups: Lookups
    step: StepPart
    evaluation: Evaluation
    exporter: Exporter
    rate: Callable[[int], float]
    has_schedule: bool
    callbacks: JobCallbacks | None


class ComposedTrainer(ABC):
    """A `Trainer` that gives each call to the part that answers it.

    Args:
        feed: Makes the minibatches.
        ids_need_parameters: What is known of it before the model is built.
    """

    def __init__(self, feed: FeedPart, ids_need_parameters: bool = False) -> None:
        self._feed = feed
        self._built: Parts | None = None
        self.ids_need_parameters = ids_need_parameters
        self.callbacks: CallbackNeeds | None = None
        self.has_schedule = False

    @abstractmethod
    def _build(self, sample: Minibatch) -> Parts:
        """Build the model from a first minibatch."""

    @property
    def _parts(self) -> Parts:
        assert self._built is not None, "a model is built before it is used"
        return self._built

    def build(self, sample: Minibatch) -> ModelDescription:
        """Build the model and describe it; see `Trainer.build`.

        Raises:
            ModelError: Something of the model file cannot be applied here; says what and why.
        """
        parts = self._built = self._build(sample)
        self.ids_need_parameters = parts.lookups.need_parameters
        self.has_schedule = parts.has_schedule
        self.callbacks = None if parts.callbacks is None else parts.callbacks.needs
        return parts.description

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Run the user's `feed`; see `Predictor.minibatches`."""
        return self._feed.minibatches(records, mode, minibatch_size, seed)

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the flat dense and state vectors as initialised here."""
        return self._parts.values.initial_values()

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """Return the tables whose rows the model file sets, and the rows."""
        return self._parts.values.given_rows()

    def set_lookup(self, pull: Lookup) -> None:
        """Give the lookup for models whose ids depend on parameters; others never use it."""
        self._parts.lookups.set_lookup(pull)

    def id_sites(self) -> Sequence[int]:
        """Return the table of each id site."""
        return self._parts.lookups.tables

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up.

        Raises:
            ModelError: An id is negative, or not below its layer's `input_dim`.
        """
        return self._parts.lookups.ids(minibatch)

    def learning_rate(self, version: int) -> float:
        """Return the learning rate for a step from model version `version`."""
        return self._parts.rate(version)

    def train_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Compute loss and gradients; see `Trainer.train_step`. The arrays are read-only."""
        return self._parts.step.train(minibatch, rows, dense, state)

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Predictions]) -> None:
        """Add trained minibatches to the metrics."""
        self._parts.evaluation.measure(minibatches, predictions)

    def new_metrics(self) -> None:
        """Start an evaluation with empty metrics."""
        self._parts.evaluation.reset()

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch to the metrics."""
        self._parts.evaluation.evaluate(minibatch, rows, dense, state)

    def metric_states(self) -> MetricStates:
        """Return the sums since `new_metrics`."""
        return self._parts.evaluation.states()

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from merged states."""
        return self._parts.evaluation.results(states)

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Predictions:
        """Return the model's outputs as arrays."""
        return self._parts.step.predict(minibatch, rows, dense, state)

    def run_callbacks(self, call: CallbackCall, is_alone: bool) -> CallbackResult:
        """Call the user's callbacks; see `RunsCallbacks.run_callbacks`."""
        assert self._parts.callbacks is not None, "the job calls callbacks that there are"
        return self._parts.callbacks.run(call, is_alone)

    def check_export(self, beside: bool) -> None:
        """Look whether the model can be exported; see `ChecksExport`."""
        self._parts.exporter.check(beside)

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write a model that serves without elasticdl; see `Trainer.export`.

        Raises:
            ModelError: The model cannot be exported so.
            CheckpointError: A file cannot be written, such as on a disk that is full.
        """
        self._parts.exporter.export(directory, dense, state, tables)


class ComposedPredictor:
    """A `SavedPredictor`: an export, whose tables are part of it, with a feed and metrics.

    Args:
        feed: Makes the minibatches.
        metrics: The metrics of the model file.
    """

    ids_need_parameters = False

    def __init__(self, feed: FeedPart, metrics: MetricsPart) -> None:
        self._feed = feed
        self._of_file = metrics

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Run the user's `feed`; see `Predictor.minibatches`."""
        return self._feed.minibatches(records, mode, minibatch_size, seed)

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return no ids: the tables are part of the export."""
        return ()

    def new_metrics(self) -> None:
        """Start an evaluation with empty metrics."""
        self._of_file.reset()

    def metric_states(self) -> MetricStates:
        """Return the sums since `new_metrics`."""
        return self._of_file.states()

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from merged states."""
        return self._of_file.results(states)
