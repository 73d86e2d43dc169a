"""A user's Keras model on TensorFlow, one step on one minibatch at a time.

`feed.runner` makes minibatches of records. `build` builds the model and counts its metrics.
`traced` and `eager` find the ids that it looks up, and compute. `exporter` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from elasticdl.backends.base import Minibatch, TellFeedWay, tell_nobody
from elasticdl.backends.call_order import as_keras
from elasticdl.data.base import Metadata
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.frameworks.parts import ComposedTrainer, Parts
from elasticdl.packages.keras.build import Framework, build
from elasticdl.packages.keras.description import Updates
from elasticdl.packages.keras.eager import EagerModel
from elasticdl.packages.keras.exporter import TensorFlowExporter
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.feed.runner import FeedRunner
from elasticdl.packages.keras.model.expected_data import ExpectedData
from elasticdl.packages.keras.model.gradient import LossGradient
from elasticdl.packages.keras.model.loss import MinibatchLoss
from elasticdl.packages.keras.model.placed import PlacedModel
from elasticdl.packages.keras.model.scaling import LossScale
from elasticdl.packages.keras.model.state import StateStep, rules_of
from elasticdl.packages.keras.model.towers import KerasTower, towers_of
from elasticdl.packages.keras.traced import TracedModel


class KerasTrainer(ComposedTrainer):
    """A `Trainer` for a Keras model that TensorFlow computes.

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
        if run_eagerly:
            tf.config.run_functions_eagerly(True)  # functions that the user wrapped in tf.function
        super().__init__(FeedRunner(spec.feed, metadata, run_eagerly, tell_feed), run_eagerly)
        self._spec = replace(spec, loss=as_keras(spec.loss, "loss", spec.tell))
        self._seed = seed
        self._threshold_bytes = embedding_threshold_bytes
        self._kind: type[EagerModel] | type[TracedModel] = (
            EagerModel if run_eagerly else TracedModel
        )
        self._run_eagerly = run_eagerly
        self._expected: ExpectedData | None = None

    def _build(self, sample: Minibatch) -> Parts:
        self._sample = KerasMinibatch.of(sample)
        framework = Framework(self._place, self._compute, self._make_loss)
        built = build(self._spec, self._seed, self._sample, framework)
        self._placed, self._held, self._computed = built.placed, built.held, built.computed
        self._expected = ExpectedData(built.placed, self._spec.loss)
        return built.parts(TensorFlowExporter(built.placed, self._sample, built.held))

    def _place(self, sample: KerasMinibatch) -> PlacedModel:
        return PlacedModel(self._spec.model, sample, self._seed, self._threshold_bytes)

    def _compute(self, placed: PlacedModel, updates: Updates) -> EagerModel | TracedModel:
        sample, loss = self._sample, self._spec.loss
        self._scale: LossScale | None = updates.scale
        rules = rules_of(placed, sample.mode, lambda: StateStep(placed, sample, self._run_eagerly))
        gradient = None
        if loss is not None:
            of_step = self._make_loss(placed.output_names)
            gradient = LossGradient(placed, of_step, rules.momenta, updates.scale)
        self._gradient = gradient
        return self._kind(placed, rules, gradient, loss, sample)

    def _make_loss(self, output_names: Sequence[str]) -> MinibatchLoss:
        return MinibatchLoss(self._spec.loss, output_names, self._spec.loss_weights)

    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """Return the words of features that the model looks up; see `ChecksData`."""
        return {} if self._expected is None else self._expected.vocabularies()

    def problem_of_labels(self, labels: Array) -> str:
        """Say which label is none of the classes of the model; see `ChecksData`."""
        return "" if self._expected is None else self._expected.problem_of_labels(labels)

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> Sequence[Sequence[str]]:
        """Return the strings behind the ids of some sites; see `KeepsNames`.

        Raises:
            ModelError: A layer with `keep_names` is called with ids that are not made of strings.
        """
        assert isinstance(self._computed, TracedModel), "an eager model with names is refused"
        return self._computed.names(minibatch, sites)

    def towers(self) -> Sequence[KerasTower]:
        """Return the towers of the model; see `HasTowers`."""
        with self._held.open():
            return towers_of(self._placed, self._seed)

    def place_towers(self) -> None:
        """Look up what towers give from now on; see `HasTowers`."""
        owned = {id(v) for tower in self.towers() for v in tower.variables}
        self._placed.place_towers()
        # Steps and lookups were traced with the towers inside of the model.
        self._computed.begin_again(self._sample)
        if self._computed.need_parameters:
            raise ModelError(
                "with --num_model_servers no ids may depend on what a layer gives: expected ids "
                "that are features, or made of features alone"
            )
        if self._sample.mode != Mode.TRAINING or self._gradient is None:
            return
        assert isinstance(self._computed, TracedModel), "the ids of another need parameters"
        self._computed.step(self._sample)
        used = enumerate(self._placed.dense.variables)
        shared = [v.path for k, v in used if id(v) in owned and k not in self._gradient.missing]
        if shared:
            raise ModelError(
                f"variable {shared[0]!r} is of a tower in elasticdl.layers.Remote, and the model "
                "uses it outside of the tower, or adds a loss of it, too: with --num_model_servers "
                "a tower has its variables for itself"
            )
