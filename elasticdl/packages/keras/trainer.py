"""A user's Keras model on TensorFlow, one step on one minibatch at a time.

`feed.runner` makes minibatches of records, `model.placed` builds the model, `model.lookups` finds
the ids it looks up, `model.step` computes, `metrics` evaluates, `export` writes.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.average import EvaluationLoss
from elasticdl.backends.base import (
    CallbackNeeds,
    ClipSpec,
    Float32,
    Int64,
    Minibatch,
    ModelDescription,
    OptimizerSpec,
    StepResult,
    TableDescription,
    TableSource,
    TellFeedWay,
    VariableDescription,
    tell_nobody,
)
from elasticdl.backends.call_order import as_keras
from elasticdl.backends.exported import may_be_loaded
from elasticdl.backends.job_callbacks import JobCallbacks
from elasticdl.backends.model_notes import of_endless, of_frozen, of_moved
from elasticdl.data.base import Metadata, Records
from elasticdl.data.strings import Array
from elasticdl.errors import CheckpointError, ModelError
from elasticdl.job import CallbackCall, CallbackResult, MetricStates, Mode
from elasticdl.layers.row_rules import KeptStatistics
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.keras.callbacks import is_scheduled, job_callbacks, learning_rate_of
from elasticdl.packages.keras.export import ask, check_export, export_model
from elasticdl.packages.keras.export_beside import ask_beside, check_export_beside, export_beside
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.feed.runner import FeedRunner
from elasticdl.packages.keras.metrics.collection import Metrics
from elasticdl.packages.keras.model.eager import EagerModel
from elasticdl.packages.keras.model.expected_data import problem_of_labels, vocabularies_of
from elasticdl.packages.keras.model.gradient import LossGradient, StepLoss
from elasticdl.packages.keras.model.held import HeldVariables
from elasticdl.packages.keras.model.lookups import Collector, Pull
from elasticdl.packages.keras.model.loss import MinibatchLoss
from elasticdl.packages.keras.model.placed import PlacedModel, takes_training
from elasticdl.packages.keras.model.placement import MovedEmbedding
from elasticdl.packages.keras.model.scaling import LossScale, loss_scale_of
from elasticdl.packages.keras.model.state import StateStep, VariableRules, find_rules
from elasticdl.packages.keras.model.step import Inference, TrainStep
from elasticdl.packages.keras.model.towers import KerasTower, towers_of
from elasticdl.packages.keras.model.trial import (
    check_steps,
    is_of_a_library,
    leaves_a_trace,
    note,
    text_of,
    with_another,
)
from elasticdl.packages.keras.optimizer import (
    describe_clip,
    describe_optimizer,
    describe_updates,
    has_schedule,
    make_optimizer,
    rule_of_table,
    what_updates_change,
)
from elasticdl.packages.keras.types import Nested

log = logging.getLogger(__name__)
T = TypeVar("T")


class _HasTables(Protocol):
    @property
    def tables(self) -> list[int]: ...


_Collects = TypeVar("_Collects", bound=_HasTables)
# These layers do something else in training than in inference; see `tell_without_training`.
_RESTING = (
    keras.layers.BatchNormalization,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.AlphaDropout,
)


@dataclass(frozen=True, slots=True)
class _Updates:
    """The updates of a model: the user's optimizer, if there is one, and what the store is told.

    rule: The rule of all that has no rule of its own; "sgd" where nothing is trained.
    dense: The dense variables, each with what an update does to it.
    """

    optimizer: keras.optimizers.Optimizer
    rule: OptimizerSpec
    clip: ClipSpec | None
    dense: Sequence[VariableDescription]


class KerasTrainer:
    """A `Trainer` for a Keras model.

    Args:
        spec: The functions of the user's model file.
        metadata: The description of the data, for `feed`.
        seed: The seed of the initial values.
        embedding_threshold_bytes: Plain `keras.layers.Embedding`s with tables above this are
            moved to the ps replicas.
        run_eagerly: `feed`, model and loss are plain Python; the worker asks for the ids of a
            minibatch when no update is under way.
        tell_feed: Is told which way `feed` runs.
    """

    def __init__(
        self,
        spec: ModelSpec,
        metadata: Metadata,
        seed: int,
        embedding_threshold_bytes: int,
        run_eagerly: bool = False,
        tell_feed: TellFeedWay = tell_nobody,
    ) -> None:
        self._spec = replace(spec, loss=as_keras(spec.loss, "loss", spec.tell))
        self._seed = seed
        self._threshold_bytes = embedding_threshold_bytes
        if run_eagerly:
            tf.config.run_functions_eagerly(True)  # functions that the user wrapped in tf.function
        self._feed = FeedRunner(spec.feed, metadata, run_eagerly, tell_feed)
        self._run_eagerly = self.ids_need_parameters = run_eagerly
        self._eager: EagerModel | None = None
        self._callbacks: JobCallbacks | None = None
        self._evaluation_loss = EvaluationLoss()
        self._loss: StepLoss | None = None  # of an evaluation
        self.callbacks: CallbackNeeds | None = None
        self.has_schedule = False
        self._pull: Pull | None = None
        self._compiling = threading.Lock()
        self._collectors: dict[tuple[object, bool], Collector] = {}
        self._steps: dict[object, TrainStep] = {}
        self._inferences: dict[object, Inference] = {}
        self._sample: KerasMinibatch | None = None
        self._scale: LossScale | None = None
        self._newest: tuple[Float32, ...] = ()  # dense and state vectors of the newest step

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Run the user's `feed`; see `Predictor.minibatches`."""
        return self._feed.minibatches(records, mode, minibatch_size, seed)

    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """Return the words of features that the model looks up; see `ChecksData`."""
        return {} if self._sample is None else vocabularies_of(self._placed.model)

    def problem_of_labels(self, labels: Array) -> str:
        """Say which label is none of the classes of the model; see `ChecksData`."""
        if self._sample is None:
            return ""
        return problem_of_labels(self._spec.loss, self._placed.sample_outputs, labels)

    def set_lookup(self, pull: Pull) -> None:
        """Give the lookup for models whose ids depend on parameters; others never use it.

        Args:
            pull: `PsClient.pull`, or what does the same.
        """
        self._pull = pull

    def build(self, sample: Minibatch) -> ModelDescription:
        """Build the model and describe it; see `Trainer.build`.

        If there is no `optimizer` function (an evaluation needs none), the description says "sgd".
        """
        sample = self._of(sample)
        if sample.mode is Mode.TRAINING and self._spec.loss is None:
            raise ModelError(
                "training needs a function loss(labels, predictions) in the model file; found none"
            )
        self._sample = sample
        self._placed = self._place(sample)
        spec = self._spec
        self._metrics = Metrics(spec.eval_metrics_fn, spec.weighted_metrics_fn, spec.tell)
        if sample.labels is not None:
            outputs = self._placed.sample_outputs
            self._metrics.resolve(sample.labels, outputs, self._placed.output_names)
        updates = self._read_optimizer()
        # A trial calls the user's code more often than a job does, so its traces are put back.
        with note(self._placed.model, self._spec.loss):
            frozen, frozen_tables = self._try_out(sample)
        description = self._description(updates, frozen, frozen_tables)
        if sample.mode is Mode.TRAINING:
            self._tell_notes(updates, description)
        # From here on others hold the values. The trials above still read the model's own ones.
        self._held = HeldVariables(self._placed.dense, self._placed.state)
        if has_schedule(updates.optimizer):
            self._learning_rate(0)  # a schedule that cannot be computed fails now
        return description

    def _tell_notes(self, updates: _Updates, description: ModelDescription) -> None:
        moved = [t for t in self._placed.tables if isinstance(t.layer, MovedEmbedding)]
        names = [t.name for t in moved if t.layer.trainable]
        for told in (
            *of_moved(names, updates.rule, type(updates.optimizer).__name__),
            *of_frozen(description.tables),
            *of_endless(description.state, self._placed.state.values()),
        ):
            self._spec.tell(told)

    def _of(self, minibatch: Minibatch) -> KerasMinibatch:
        """Return a minibatch as this trainer takes it."""
        return KerasMinibatch.of(minibatch)

    def _place(self, sample: KerasMinibatch) -> PlacedModel:
        """Build the model from a first minibatch."""
        return PlacedModel(self._spec.model, sample, self._seed, self._threshold_bytes)

    def _try_out(self, sample: KerasMinibatch) -> tuple[frozenset[int], frozenset[int]]:
        """Call model and loss, so that a fault is found now, before the job begins.

        Returns:
            Numbers of the dense variables that no gradient reaches, and of tables.
        """
        self._find_rules(
            sample.mode is Mode.TRAINING,
            lambda: StateStep(self._placed, sample, self._run_eagerly),
        )
        self._gradient = gradient = self._make_gradient()
        self._find_ids(sample)
        if sample.mode != Mode.TRAINING or gradient is None:
            return frozenset(), frozenset()
        tell_without_training(self._placed.model)
        functions = self._placed.model, self._spec.loss
        if self._eager is not None:
            check_steps(*functions, with_another(sample), self._eager.try_out)
        else:
            values = self._placed.dense.values(), self._placed.state.values()
            # A step that leaves nothing in Python when it is traced needs no comparison of two
            # traces.
            before = note(*functions)
            step = self._step(sample)
            if leaves_a_trace(before, note(*functions)):
                check_steps(
                    *functions, (sample, sample), lambda one: [text_of(gradient.traced(one))]
                )
            step.try_out(sample, *values)
            if step.runs_python and step.can_be_tried:
                check_steps(
                    *functions, with_another(sample), lambda one: step.on_zeros(one, *values)
                )
        self._tell_untrained(gradient.missing, gradient.missing_tables)
        return gradient.missing, gradient.missing_tables

    def _find_rules(self, is_trained: bool, make_step: Callable[[], StateStep]) -> None:
        """Find what training makes of the state."""
        count = len(self._placed.state.variables)
        rules = VariableRules([1.0] * count, [False] * count)
        if is_trained:
            rules = find_rules(self._placed, make_step)
        self._momenta, self._moving = rules.momenta, rules.are_assigned

    def _read_optimizer(self) -> _Updates:
        """Take from the user's optimizer and callbacks what a step and the job need of them."""
        dense = self._placed.dense.describe()
        if self._spec.optimizer is None:
            return _Updates(None, OptimizerSpec("sgd"), None, dense)
        optimizer = make_optimizer(self._spec.optimizer)
        optimizer, self._scale = loss_scale_of(optimizer, self._placed.model)
        self._placed.refuse_reading(
            what_updates_change(optimizer, self._spec.callbacks is not None)
        )
        rule = describe_optimizer(optimizer, self._placed.dense.variables)
        clip = describe_clip(optimizer)
        dense = describe_updates(optimizer, self._placed.dense.variables, dense)
        self._learning_rate = learning_rate_of(optimizer, self._spec.callbacks, self._spec.tell)
        self.has_schedule = is_scheduled(optimizer, self._spec.callbacks)
        self._callbacks = job_callbacks(self._spec.callbacks, optimizer, self._spec.eval_metrics_fn)
        if self._callbacks is not None:
            self.callbacks = self._callbacks.needs
            self._evaluation_loss = EvaluationLoss(self.callbacks.watches_loss)
        return _Updates(optimizer, rule, clip, dense)

    def _find_ids(self, sample: KerasMinibatch) -> None:
        """Find which tables are looked up, and whether that depends on other rows."""
        if self._run_eagerly:
            self._eager = EagerModel(self._placed, self._gradient)
            self._sites = self._eager.tables
        else:
            collector = self._collector(sample)
            self._sites = collector.tables
            self.ids_need_parameters = any(site.stage for site in collector.sites)

    def _description(
        self, updates: _Updates, frozen: frozenset[int], frozen_tables: frozenset[int]
    ) -> ModelDescription:
        """Describe the model for the processes that hold its parameters.

        Args:
            updates: The updates of the model.
            frozen: Numbers of the dense variables that no gradient reaches.
            frozen_tables: The same of tables.
        """
        return ModelDescription(
            tables=tuple(
                self._describe_table(k, updates, trainable=k not in frozen_tables)
                for k in range(len(self._placed.tables))
            ),
            dense=tuple(
                replace(variable, trainable=k not in frozen)
                for k, variable in enumerate(updates.dense)
            ),
            state=tuple(
                replace(variable, momentum=momentum, trainable=moves)
                for variable, momentum, moves in zip(
                    self._placed.state.describe(), self._momenta, self._moving, strict=True
                )
            ),
            optimizer=updates.rule,
            seed=self._seed,
            clip=updates.clip,
        )

    def _describe_table(self, k: int, updates: _Updates, trainable: bool) -> TableDescription:
        t = self._placed.tables[k]
        if t.statistics is not None:
            kept = KeptStatistics(k, t.statistics)
            return TableDescription.of_statistics(t.name, kept, t.layer.expiry_of_rows)
        return TableDescription(
            t.name,
            t.dim,
            t.initializer,
            rule_of_table(updates.optimizer, updates.rule, t.path),
            t.input_dim,
            t.wire_dtype,
            t.admission,
            t.expiry,
            t.keep_names,
            t.constraint,
            trainable=trainable,
            given_rows=t.given is not None,
        )

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the flat dense and state vectors as initialised here."""
        with self._held.open():
            return self._placed.dense.values(), self._placed.state.values()

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """Return the tables whose rows the model file sets, and the rows."""
        tables = enumerate(self._placed.tables)
        return [(k, table.given) for k, table in tables if table.given is not None]

    def id_sites(self) -> Sequence[int]:
        """Return the table of each id site."""
        return self._sites

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up.

        Raises:
            ModelError: An id is negative, or not below its layer's `input_dim`.
        """
        minibatch = self._of(minibatch)
        if self._eager is not None:
            return self._eager.ids(minibatch, self._pull)
        return self._collector(minibatch).ids(minibatch, self._pull)

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> Sequence[Sequence[str]]:
        """Return the strings behind the ids of some sites.

        Raises:
            ModelError: A layer with `keep_names` is called with ids that are not made of strings.
        """
        minibatch = self._of(minibatch)
        return self._collector(minibatch).names(minibatch, sites)

    def towers(self) -> Sequence[KerasTower]:
        """Return the towers of the model; see `HasTowers`."""
        with self._held.open():
            return towers_of(self._placed, self._seed)

    def place_towers(self) -> None:
        """Look up what towers give from now on; see `HasTowers`."""
        assert self._sample is not None, "a model is built before its towers are placed"
        owned = {id(v) for tower in self.towers() for v in tower.variables}
        self._placed.place_towers()
        # These were traced with the towers inside of the model.
        for known in (self._collectors, self._steps, self._inferences):
            known.clear()
        self._find_ids(self._sample)
        if self.ids_need_parameters:
            raise ModelError(
                "with --num_model_servers no ids may depend on what a layer gives: expected ids "
                "that are features, or made of features alone"
            )
        if self._sample.mode != Mode.TRAINING or self._gradient is None:
            return
        self._step(self._sample)
        used = enumerate(self._placed.dense.variables)
        shared = [v.path for k, v in used if id(v) in owned and k not in self._gradient.missing]
        if shared:
            raise ModelError(
                f"variable {shared[0]!r} is of a tower in elasticdl.layers.Remote, and the model "
                "uses it outside of the tower, or adds a loss of it, too: with --num_model_servers "
                "a tower has its variables for itself"
            )

    def learning_rate(self, version: int) -> float:
        """Return the learning rate for a step from model version `version`."""
        return self._learning_rate(version)

    def train_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Compute loss and gradients; see `Trainer.train_step`. The arrays are read-only."""
        minibatch = self._of(minibatch)
        self._newest = dense, state
        if self._eager is not None:
            return self._eager.step(minibatch)
        return self._step(minibatch)(minibatch, rows, dense, state)

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[tf.Tensor]) -> None:
        """Add trained minibatches to the metrics."""
        parts = []
        for given, outputs in zip(minibatches, predictions, strict=True):
            minibatch = self._of(given)
            if self._eager is None:
                outputs = self._steps[minibatch.structure.key].predictions(outputs)
            parts.append((minibatch.labels, outputs, minibatch.weights))
        # A metric may read variables of the model. They have the values of the newest step.
        with self._held.reading(*self._newest):
            self._metrics.update_all(parts, self._placed.output_names)

    def new_metrics(self) -> None:
        """Start an evaluation with empty metrics."""
        self._metrics.reset()
        self._evaluation_loss.reset()

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch to the metrics."""
        minibatch = self._of(minibatch)
        outputs, added = self._infer(minibatch, rows, dense, state)
        with self._held.reading(dense, state):
            self._metrics.update(
                minibatch.labels, outputs, self._placed.output_names, minibatch.weights
            )
            self._add_loss(minibatch, outputs, added)

    def _add_loss(self, minibatch: KerasMinibatch, outputs: Nested, added: tf.Tensor) -> None:
        """Add the loss of an evaluated minibatch, given what the model adds to its loss."""
        if self._spec.loss is None:
            return
        if self._loss is None:
            self._loss = self._make_loss()
        loss = self._loss

        def value() -> object:
            values = loss(minibatch.labels, outputs, minibatch.weights)
            return np.mean(np.asarray(values)) + np.asarray(added)

        self._evaluation_loss.add(value, minibatch.num_records)

    def metric_states(self) -> MetricStates:
        """Return the sums since `new_metrics`."""
        return {**self._metrics.states(), **self._evaluation_loss.states()}

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from merged states."""
        return EvaluationLoss.beside(self._metrics.results(states), states)

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> object:
        """Return the model's outputs as arrays."""
        outputs, _ = self._infer(self._of(minibatch), rows, dense, state)
        return tf.nest.map_structure(np.asarray, outputs)

    def run_callbacks(self, call: CallbackCall) -> CallbackResult:
        """Call the user's callbacks; see `Trainer.run_callbacks`."""
        assert self._callbacks is not None, "the job calls callbacks that there are"
        return self._callbacks.run(call)

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write a SavedModel that serves without elasticdl.

        Raises:
            ModelError: The model cannot be exported so.
            CheckpointError: A file cannot be written, such as on a disk that is full.
        """
        with writing(directory), self._exported() as sample:
            self._export(directory, dense, state, tables)
            if may_be_loaded(directory):
                (ask_beside if tables is None else ask)(directory, sample)

    def check_export(self, beside: bool) -> None:
        """Look whether the model can be exported; see `ChecksExport`."""
        with self._exported() as sample:
            self._check_export(sample, beside)

    @contextmanager
    def _exported(self) -> Iterator[KerasMinibatch]:
        """Return a context in which an export is made or asked, and a minibatch for it."""
        if self._sample is None:
            raise ModelError("a model is exported after it was built; call build first")
        runs_eagerly = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(False)  # an export is a traced model
        try:
            with self._held.open():
                yield self._sample
        finally:
            tf.config.run_functions_eagerly(runs_eagerly)

    def _check_export(self, sample: KerasMinibatch, beside: bool) -> None:
        if beside:
            sites = Collector(self._placed, sample, training=False).sites
            check_export_beside(self._placed, sample, sites)
        else:
            check_export(self._placed, sample)

    def _export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        assert self._sample is not None
        if tables is None:
            sites = Collector(self._placed, self._sample, training=False).sites
            export_beside(self._placed, self._sample, sites, directory, dense, state)
        else:
            export_model(self._placed, self._sample, directory, dense, state, tables)

    def _make_gradient(self) -> LossGradient | None:
        if self._spec.loss is None:
            return None
        return LossGradient(self._placed, self._make_loss(), self._momenta, self._scale)

    def _make_loss(self) -> StepLoss:
        """Return the loss of a minibatch."""
        names, weights = self._placed.output_names, self._spec.loss_weights
        return MinibatchLoss(self._spec.loss, names, weights)

    def _step(self, minibatch: KerasMinibatch) -> TrainStep:
        key = minibatch.structure.key
        step = self._steps.get(key)
        if step is None:
            assert self._gradient is not None, "build() takes no model without a loss to train"
            collector = self._collector(minibatch)
            step = TrainStep(self._placed, self._gradient, collector, minibatch)
            self._steps[key] = step
        return step

    def _tell_untrained(self, dense: frozenset[int], tables: frozenset[int]) -> None:
        placed = self._placed
        names = [v.path for k, v in enumerate(placed.dense.variables) if k in dense]
        names += [t.name for k, t in enumerate(placed.tables) if k in tables and t.layer.trainable]
        if not names:
            return
        if len(dense) + len(tables) == len(placed.dense.variables) + len(placed.tables):
            raise ModelError(
                "loss(labels, predictions) has no gradient for any variable of the model; does it, "
                "or the model, use argmax, a comparison, a cast to integers or stop_gradient?"
            )
        log.warning("the loss does not depend on %s: never updated", ", ".join(names))

    def _infer(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Nested, tf.Tensor]:
        if self._eager is not None:
            return self._eager.outputs(minibatch)
        key = minibatch.structure.key
        inference = self._inferences.get(key)
        if inference is None:
            inference = Inference(self._placed, self._collector(minibatch), minibatch)
            self._inferences[key] = inference
        return inference(minibatch, rows, dense, state)

    def _collector(self, minibatch: KerasMinibatch) -> Collector:
        def make(training: bool) -> Collector:
            return Collector(self._placed, minibatch, training)

        return self._collected(self._collectors, minibatch, make)

    def _collected(
        self,
        collectors: dict[tuple[object, bool], _Collects],
        minibatch: KerasMinibatch,
        make: Callable[[bool], _Collects],
    ) -> _Collects:
        """Return what collects the lookups of a minibatch, made once for each structure.

        `make` is told whether the minibatch is trained on.

        Raises:
            ModelError: It looks up other tables than those that were made before.
        """
        training = minibatch.mode == Mode.TRAINING
        key = (minibatch.structure.key, training)
        with self._compiling:
            collector = collectors.get(key)
            if collector is None:
                collector = make(training)
                known = next(iter(collectors.values()), None)
                if known is not None:
                    self._refuse_other_tables(known.tables, collector.tables)
                collectors[key] = collector
            return collector

    def _refuse_other_tables(self, known: Sequence[int], found: Sequence[int]) -> None:
        if known != found:
            names = [[self._placed.sources[t].name for t in tables] for tables in (known, found)]
            raise ModelError(
                "the model looks up other embeddings in training than in inference: "
                f"{', '.join(names[0])} at first, now {', '.join(names[1])}"
            )


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Raise a plain error if TensorFlow cannot write a model into a folder.

    Raises:
        CheckpointError: A file cannot be written, such as on a disk that is full.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:  # what TensorFlow calls a full disk
        why = re.sub(r"\{\{.*?\}\} |\[Op:.*?\]", "", error.message).strip()
        raise CheckpointError(f"{directory}: the model cannot be written: {why}") from error


def tell_without_training(model: keras.Model) -> None:
    """Say what rests in training because the model's call has no parameter `training`."""
    resting = [
        layer.name
        for layer in model._flatten_layers(include_self=False)
        if takes_training(layer) and (isinstance(layer, _RESTING) or not is_of_a_library(layer))
    ]
    if resting and not takes_training(model):
        log.warning(
            "call() of model %r has no parameter training, so Keras, and this job, call its layers "
            "as in inference: %s. Write call(self, inputs, training=None)",
            model.name,
            ", ".join(resting[:3]),
        )
