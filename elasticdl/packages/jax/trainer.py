"""A user's Keras model on JAX, one step on one minibatch at a time. `feed` is TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import keras

from elasticdl.backends.base import Float32, Minibatch, TellFeedWay, tell_nobody
from elasticdl.backends.call_order import as_keras
from elasticdl.data.base import Metadata, Records
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.frameworks.parts import ComposedTrainer, Parts
from elasticdl.packages.jax.arrays import as_arrays
from elasticdl.packages.jax.computation import JaxComputation
from elasticdl.packages.jax.export import JaxExporter
from elasticdl.packages.jax.loss import JaxLoss, costs_nothing
from elasticdl.packages.jax.placed import JaxModel, of_32_bits
from elasticdl.packages.keras.build import Framework, build
from elasticdl.packages.keras.description import Updates
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.feed.runner import FeedRunner
from elasticdl.packages.keras.model.expected_data import ExpectedData
from elasticdl.packages.keras.model.state import StateStep, check_assigned, rules_of


def small_rows(placed: JaxModel, layer: keras.layers.Layer, ids: jax.Array) -> jax.Array:
    """Return small random rows, always the same, for calls that nothing comes of."""
    placed.table_of(layer)
    shape = (*ids.shape, layer.output_dim)
    return 0.1 * jax.random.normal(jax.random.key(1), shape, jnp.float32)


class JaxStateStep(StateStep):
    """Calls the model in training from any state, by JAX."""

    def _prepared(
        self, tensors: Sequence[jax.Array], eagerly: bool
    ) -> Callable[[Float32], jax.Array]:
        function, dense = jax.jit(self._computed), self.placed.dense.values()
        return lambda state: function(dense, state, *tensors)

    def _computed(self, dense: jax.Array, state: jax.Array, *features: jax.Array) -> jax.Array:
        placed = self.placed
        assert isinstance(placed, JaxModel), "a model on JAX"

        def look_up(layer: keras.layers.Layer, ids: jax.Array) -> jax.Array:
            assert isinstance(placed, JaxModel), "a model on JAX"
            return small_rows(placed, layer, ids)

        with of_32_bits():
            called = placed.call(
                look_up,
                self._structure.fold_features(features),
                True,
                placed.dense.split(dense),
                placed.state.split(state),
                jnp.uint32(0),
            )
        check_assigned(placed, called)
        self.assigned = set(called.assigned)
        return placed.state.join(called.state)


_TENSORFLOW = "say KERAS_BACKEND=tensorflow"


class JaxTrainer(ComposedTrainer):
    """A `Trainer` for a Keras model that JAX computes. It has no towers and keeps no names.

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
        super().__init__(FeedOfArrays(FeedRunner(spec.feed, metadata, tell=tell_feed)))
        self._spec = replace(spec, loss=as_keras(spec.loss, "loss", spec.tell))
        self._seed = seed
        self._threshold_bytes = embedding_threshold_bytes
        self._expected: ExpectedData | None = None

    def _build(self, sample: Minibatch) -> Parts:
        self._sample = self._of(sample)
        framework = Framework(self._place, self._compute, self._make_loss)
        built = build(self._spec, self._seed, self._sample, framework)
        self._placed, self._held = built.placed, built.held
        self._expected = ExpectedData(built.placed, self._spec.loss, costs_nothing)
        return built.parts(JaxExporter(built.placed, built.computed, self._sample, built.held))

    def _of(self, minibatch: Minibatch) -> KerasMinibatch:
        """Return a minibatch as this trainer takes it."""
        return as_arrays(minibatch)

    def _place(self, sample: KerasMinibatch) -> JaxModel:
        return JaxModel(self._spec.model, sample, self._seed, self._threshold_bytes)

    def _compute(self, placed: JaxModel, updates: Updates) -> JaxComputation:
        if updates.scale is not None:
            raise ModelError(
                "the model computes in float16, which needs loss scaling; this is not supported "
                f"with Keras on JAX: use the policy mixed_bfloat16 or float32, or {_TENSORFLOW}"
            )
        sample = self._sample
        rules = rules_of(placed, sample.mode, lambda: JaxStateStep(placed, sample, False))
        return JaxComputation(placed, rules, self._spec.loss, self._make_loss, sample)

    def _make_loss(self, output_names: Sequence[str]) -> JaxLoss:
        return JaxLoss(self._spec.loss, output_names, self._spec.loss_weights)

    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """Return the words of features that the model looks up; see `ChecksData`."""
        return {} if self._expected is None else self._expected.vocabularies()

    def problem_of_labels(self, labels: Array) -> str:
        """Say which label is none of the classes of the model; see `ChecksData`."""
        return "" if self._expected is None else self._expected.problem_of_labels(labels)


class FeedOfArrays:
    """A `FeedPart` whose minibatches are arrays.

    Args:
        feed: Makes the minibatches.
    """

    def __init__(self, feed: FeedRunner) -> None:
        self._feed = feed

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Run the user's `feed`; see `Predictor.minibatches`."""
        return map(as_arrays, self._feed.minibatches(records, mode, minibatch_size, seed))
