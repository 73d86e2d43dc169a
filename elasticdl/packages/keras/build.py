"""Builds a Keras model from a first minibatch, tries it out, and counts its metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import tensorflow as tf

from elasticdl.backends.average import EvaluationLoss
from elasticdl.backends.base import Float32, Minibatch, ModelDescription
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.frameworks.parts import Evaluation, Exporter, Parts
from elasticdl.packages.keras.computation import KerasComputation
from elasticdl.packages.keras.description import (
    Untrained,
    Updates,
    describe,
    notes_of,
    read_updates,
    tell_untrained,
    tell_without_training,
)
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.metrics.collection import Metrics
from elasticdl.packages.keras.model.gradient import StepLoss
from elasticdl.packages.keras.model.held import HeldVariables
from elasticdl.packages.keras.model.placed import PlacedModel
from elasticdl.packages.keras.model.trial import note
from elasticdl.packages.keras.types import Nested


class KerasEvaluation(Evaluation):
    """Counts metrics, which may read variables of the model, and the loss.

    Args:
        metrics: The metrics of the model file.
        loss: The loss of an evaluation.
        make_loss: Makes the loss of a minibatch; None if the model file has none.
        computed: Computes the model.
        output_names: The names of its outputs.
        held: Its variables.
    """

    def __init__(
        self,
        metrics: Metrics,
        loss: EvaluationLoss,
        make_loss: Callable[[], StepLoss] | None,
        computed: KerasComputation,
        output_names: Sequence[str],
        held: HeldVariables,
    ) -> None:
        super().__init__(metrics, loss)
        self._metrics = metrics
        self._make_loss = make_loss
        self._loss_of_minibatch: StepLoss | None = None
        self._computed = computed
        self._names = output_names
        self._held = held

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Any]) -> None:
        """Add trained minibatches to the metrics."""
        parts = []
        for given, outputs in zip(minibatches, predictions, strict=True):
            minibatch = self._computed.taken(given)
            found = self._computed.predictions(minibatch, outputs)
            parts.append((minibatch.labels, found, minibatch.weights))
        # A metric may read variables of the model. They have the values of the newest step.
        with self._held.reading(*self._computed.newest):
            self._metrics.update_all(parts, self._names)

    def evaluate(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch of an evaluation to metrics and loss."""
        taken = self._computed.taken(minibatch)
        outputs, added = self._computed.infer(taken, rows, dense, state)
        with self._held.reading(dense, state):
            self._metrics.update(taken.labels, outputs, self._names, taken.weights)
            self._add_loss(taken, outputs, added)

    def _add_loss(self, minibatch: KerasMinibatch, outputs: Nested, added: tf.Tensor) -> None:
        """Add the loss of an evaluated minibatch, given what the model adds to its loss."""
        if self._make_loss is None:
            return
        if self._loss_of_minibatch is None:
            self._loss_of_minibatch = self._make_loss()
        loss = self._loss_of_minibatch

        def value() -> object:
            values = loss(minibatch.labels, outputs, minibatch.weights)
            return np.mean(np.asarray(values)) + np.asarray(added)

        self._loss.add(value, minibatch.num_records)


_Placed = TypeVar("_Placed", bound=PlacedModel)
_Computed = TypeVar("_Computed", bound=KerasComputation)


class InitialValues:
    """The `Values` of a model.

    Args:
        placed: The model.
        held: Its variables.
    """

    def __init__(self, placed: PlacedModel, held: HeldVariables) -> None:
        self._placed = placed
        self._held = held

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the flat dense and state vectors as initialised here."""
        with self._held.open():
            return self._placed.dense.values(), self._placed.state.values()

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """Return the tables whose rows the model file sets, and the rows."""
        tables = enumerate(self._placed.tables)
        return [(k, table.given) for k, table in tables if table.given is not None]


@dataclass(frozen=True, slots=True)
class Framework(Generic[_Placed, _Computed]):
    """The functions of what computes a model.

    Attributes:
        place: Builds the model.
        compute: Makes its computation, given the model and its updates.
        make_loss: Makes the loss of a minibatch, given the names of the outputs.
    """

    place: Callable[[KerasMinibatch], _Placed]
    compute: Callable[[_Placed, Updates], _Computed]
    make_loss: Callable[[Sequence[str]], StepLoss]


@dataclass(frozen=True, slots=True)
class BuiltModel(Generic[_Placed, _Computed]):
    """A model that is built, tried out and described."""

    placed: _Placed
    held: HeldVariables
    updates: Updates
    computed: _Computed
    evaluation: KerasEvaluation
    description: ModelDescription

    def parts(self, exporter: Exporter) -> Parts:
        """Return the parts of a trainer of the model."""
        return Parts(
            description=self.description,
            values=InitialValues(self.placed, self.held),
            lookups=self.computed,
            step=self.computed,
            evaluation=self.evaluation,
            exporter=exporter,
            rate=self.updates.rate,
            has_schedule=self.updates.has_schedule,
            callbacks=self.updates.callbacks,
        )


def build(
    spec: ModelSpec, seed: int, sample: KerasMinibatch, framework: Framework[_Placed, _Computed]
) -> BuiltModel[_Placed, _Computed]:
    """Build a model.

    Args:
        spec: The functions of the model file.
        seed: The seed of the initial values.
        sample: A first minibatch.
        framework: The framework that computes the model.

    Raises:
        ModelError: Something of the model file cannot be applied here; says what and why.
    """
    is_trained = sample.mode is Mode.TRAINING
    if is_trained and spec.loss is None:
        raise ModelError(
            "training needs a function loss(labels, predictions) in the model file; found none"
        )
    placed = framework.place(sample)
    names = placed.output_names
    metrics = Metrics(spec.eval_metrics_fn, spec.weighted_metrics_fn, spec.tell)
    if sample.labels is not None:
        metrics.resolve(sample.labels, placed.sample_outputs, names)
    updates = read_updates(spec, placed, metrics.watched())
    # A trial calls the user's code more often than a job does, so its traces are put back.
    with note(placed.model, spec.loss):
        computed = framework.compute(placed, updates)
        untrained = Untrained()
        if is_trained:
            tell_without_training(placed.model)
            untrained = computed.try_out(sample)
            tell_untrained(placed, untrained)
    description = describe(placed, updates, computed.rules, untrained, seed)
    if is_trained:
        for told in notes_of(placed, updates, description):
            spec.tell(told)
    # From here on others hold the values. The trials above still read the model's own ones.
    held = HeldVariables(placed.dense, placed.state)
    updates.check_rate()
    watches_loss = updates.callbacks is not None and updates.callbacks.needs.watches_loss
    evaluation = KerasEvaluation(
        metrics,
        EvaluationLoss(watches_loss),
        None if spec.loss is None else lambda: framework.make_loss(names),
        computed,
        names,
        held,
    )
    return BuiltModel(placed, held, updates, computed, evaluation, description)
