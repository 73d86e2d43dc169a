"""A user's Keras model on JAX, one step on one minibatch at a time. `feed` is TensorFlow's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import jax
import keras
import numpy as np

from elasticdl.backends.base import (
    Float32,
    Int64,
    Minibatch,
    Predictions,
    StepResult,
    TableSource,
    TellFeedWay,
    tell_nobody,
)
from elasticdl.backends.exported import may_be_loaded
from elasticdl.data.base import Metadata, Records
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.jax.any_size import problem_of_any_size
from elasticdl.packages.jax.arrays import in_arrays
from elasticdl.packages.jax.export import (
    compiling_for_any_size,
    export_inside,
    export_with_rows_beside,
    problem_in_tensorflow,
)
from elasticdl.packages.jax.lookups import JaxCollector
from elasticdl.packages.jax.loss import JaxLoss, costs_nothing
from elasticdl.packages.jax.placed import JaxModel
from elasticdl.packages.jax.state import JaxStateStep
from elasticdl.packages.jax.step import (
    GivenArrays,
    JaxInference,
    JaxOutputs,
    JaxStep,
)
from elasticdl.packages.jax.variables import seed_of
from elasticdl.packages.keras.export import ask
from elasticdl.packages.keras.export_beside import ask_beside
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.expected_data import problem_of_labels
from elasticdl.packages.keras.model.trial import check_steps, leaves_a_trace, note
from elasticdl.packages.keras.trainer import KerasTrainer, tell_without_training, writing
from elasticdl.packages.keras.types import Nested

_TENSORFLOW = "say KERAS_BACKEND=tensorflow"


class JaxTrainer(KerasTrainer):
    """A `Trainer` for a Keras model that JAX computes.

    Args:
        spec: The functions of the user's model file.
        metadata: The description of the data, for `feed`.
        seed: The seed of the initial values.
        embedding_threshold_bytes: See `KerasTrainer`.
        run_eagerly: Refused.
        tell_feed: Is told which way `feed` runs.

    Raises:
        ModelError: `run_eagerly` is said.
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
        if run_eagerly:
            raise ModelError(
                "--run_eagerly=true: expected a model on TensorFlow, found KERAS_BACKEND=jax, "
                "whose steps are compiled: look into them by jax.debug.print, or "
                f"{_TENSORFLOW}"
            )
        super().__init__(spec, metadata, seed, embedding_threshold_bytes, False, tell_feed)
        self._found: dict[tuple[object, bool], JaxCollector] = {}
        self._trained: dict[object, JaxStep] = {}
        self._inferred: dict[object, JaxInference] = {}

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Run the user's `feed`; see `Predictor.minibatches`."""
        return map(self._of, super().minibatches(records, mode, minibatch_size, seed))

    def problem_of_labels(self, labels: Array) -> str:
        """Say which label is none of the classes of the model; see `ChecksData`."""
        if self._sample is None:
            return ""
        outputs = self._placed.sample_outputs
        return problem_of_labels(self._spec.loss, outputs, labels, costs_nothing)

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up.

        Raises:
            ModelError: An id is negative, or not below its layer's `input_dim`.
        """
        of_arrays = self._of(minibatch)
        return self._found_in(of_arrays).ids(of_arrays)

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> NoReturn:
        """Never called: no table of a model on JAX keeps names."""
        raise ModelError("a model on JAX keeps no names of ids")

    def towers(self) -> NoReturn:
        """Refuse: no tower of a model on JAX is computed elsewhere."""
        raise ModelError(
            "--num_model_servers: expected a model on TensorFlow or in PyTorch, found "
            f"KERAS_BACKEND=jax; leave the flag out, or {_TENSORFLOW}"
        )

    def place_towers(self) -> NoReturn:
        """Do as `towers`."""
        self.towers()

    def train_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Compute loss and gradients; see `Trainer.train_step`."""
        of_arrays = self._of(minibatch)
        self._newest = dense, state
        return self._trained_by(of_arrays)(of_arrays, rows, dense, state)

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Predictions]) -> None:
        """Add trained minibatches to the metrics."""
        names = self._placed.output_names
        with self._held.reading(*self._newest):
            for given, outputs in zip(minibatches, predictions, strict=True):
                minibatch = self._of(given)
                assert isinstance(outputs, JaxOutputs), "of a step of this trainer"
                found = self._trained_by(minibatch).predictions(outputs)
                self._metrics.update(minibatch.labels, found, names, minibatch.weights)

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> object:
        """Return the model's outputs as arrays."""
        outputs, _ = self._infer(self._of(minibatch), rows, dense, state)
        return keras.tree.map_structure(np.asarray, outputs)

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write a SavedModel that serves without elasticdl, Keras or JAX; see `Trainer.export`."""
        with writing(directory), self._exported() as of_training:
            # A served model runs in inference, and its lookups are those of inference.
            sample = replace(of_training, mode=Mode.PREDICTION)
            given = self._array_model, self._found_in(sample), sample, directory, dense, state
            with compiling_for_any_size():
                if tables is None:
                    export_with_rows_beside(*given)
                else:
                    export_inside(*given, tables)
            if may_be_loaded(directory):
                (ask_beside if tables is None else ask)(directory, sample)

    def _of(self, minibatch: Minibatch) -> KerasMinibatch:
        taken = KerasMinibatch.of(minibatch)
        is_done = all(isinstance(tensor, np.ndarray) for tensor in taken.tensors)
        return taken if is_done else in_arrays(taken)

    def _place(self, sample: KerasMinibatch) -> JaxModel:
        return JaxModel(self._spec.model, sample, self._seed, self._threshold_bytes)

    def _make_loss(self) -> JaxLoss:
        return JaxLoss(self._spec.loss, self._placed.output_names, self._spec.loss_weights)

    def _try_out(self, sample: KerasMinibatch) -> tuple[frozenset[int], frozenset[int]]:
        self._refuse_float16()
        is_trained = sample.mode is Mode.TRAINING
        self._find_rules(is_trained, lambda: JaxStateStep(self._placed, sample, False))
        self._sites = self._found_in(sample).tables
        if not is_trained:
            return frozenset(), frozenset()
        tell_without_training(self._placed.model)
        return self._try_step(sample)

    def _try_step(self, sample: KerasMinibatch) -> tuple[frozenset[int], frozenset[int]]:
        functions = self._placed.model, self._spec.loss
        given = self._first_given(sample)
        before = note(*functions)
        step = self._trained_by(sample)
        step.prepare(sample, given)
        if leaves_a_trace(before, note(*functions)):
            check_steps(*functions, (sample, sample), lambda one: [step.prepare(one, given)])
        missing, missing_tables = step.without_gradient(given)
        self._tell_untrained(missing, missing_tables)
        return missing, missing_tables

    def _check_export(self, sample: KerasMinibatch, beside: bool) -> None:
        inferred = replace(sample, mode=Mode.PREDICTION)
        model, found = self._array_model, self._found_in(inferred)
        if problem := problem_of_any_size(model, found, inferred):
            raise ModelError(
                "--output could not export this model: JAX cannot trace it for any number of "
                f"records, as one that is served needs it: {problem}. Take the sizes of shapes "
                "from keras.ops.shape(x), say -1 in a reshape, or KERAS_BACKEND=tensorflow"
            )
        if problem := problem_in_tensorflow(model, found, inferred):
            raise ModelError(
                "--output could not export this model: TensorFlow, which runs what is exported, "
                f"cannot run what JAX compiles of it: {problem}. Write it with other operations, "
                "or KERAS_BACKEND=tensorflow"
            )

    def _first_given(self, sample: KerasMinibatch) -> GivenArrays:
        """Return the initial values, and small rows."""
        ids, random = self._found_in(sample).ids(sample), np.random.default_rng(0)
        rows = [
            0.1 * random.standard_normal((*one.shape, self._placed.tables[table].dim), np.float32)
            for one, table in zip(ids, self._sites, strict=True)
        ]
        dense, state = self._placed.dense.values(), self._placed.state.values()
        return GivenArrays(rows, dense, state, seed_of(sample.seed), sample.tensors)

    def _refuse_float16(self) -> None:
        if self._scale is not None:
            raise ModelError(
                "the model computes in float16, whose loss must be scaled, which Keras on JAX has "
                f"not so far: use the policy mixed_bfloat16 or float32, or {_TENSORFLOW}"
            )

    def _infer(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Nested, jax.Array]:
        key = minibatch.structure.key
        inference = self._inferred.get(key)
        if inference is None:
            tables = self._found_in(minibatch).tables
            inference = JaxInference(self._array_model, tables, minibatch.structure)
            self._inferred[key] = inference
        return inference(minibatch, rows, dense, state)

    def _trained_by(self, minibatch: KerasMinibatch) -> JaxStep:
        key = minibatch.structure.key
        step = self._trained.get(key)
        if step is None:
            tables = self._found_in(minibatch).tables
            structure = minibatch.structure
            model, loss = self._array_model, self._make_loss()
            # Keras makes variables of its losses in their first call, which must not be within a
            # trace.
            loss.prepare(minibatch.labels, model.sample_outputs)
            step = JaxStep(model, loss, self._momenta, tables, structure)
            self._trained[key] = step
        return step

    def _found_in(self, minibatch: KerasMinibatch) -> JaxCollector:
        def make(training: bool) -> JaxCollector:
            return JaxCollector(self._array_model, minibatch, training)

        return self._collected(self._found, minibatch, make)

    @property
    def _array_model(self) -> JaxModel:
        assert isinstance(self._placed, JaxModel), "a model on JAX"
        return self._placed
