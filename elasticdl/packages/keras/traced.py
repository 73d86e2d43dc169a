"""A Keras model on TensorFlow, as compiled functions that are made once for each structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32, Int64, Minibatch, StepResult
from elasticdl.packages.keras.computation import ByStructure
from elasticdl.packages.keras.description import Untrained
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.gradient import LossGradient
from elasticdl.packages.keras.model.lookups import Collector, Pull
from elasticdl.packages.keras.model.placed import PlacedModel
from elasticdl.packages.keras.model.state import VariableRules
from elasticdl.packages.keras.model.step import Inference, TrainStep
from elasticdl.packages.keras.model.trial import (
    check_steps,
    leaves_a_trace,
    note,
    text_of,
    with_another,
)
from elasticdl.packages.keras.types import Nested


class TracedModel:
    """A `KerasComputation` of a model whose steps are traced.

    Args:
        placed: The model.
        rules: What training makes of its state.
        gradient: Its gradient; None if the model file has no loss.
        loss: `loss` of the model file.
        sample: A first minibatch.

    Attributes:
        tables, need_parameters: See `Lookups`.
        newest, rules: See `KerasComputation`.
    """

    def __init__(
        self,
        placed: PlacedModel,
        rules: VariableRules,
        gradient: LossGradient | None,
        loss: Callable[..., object] | None,
        sample: KerasMinibatch,
    ) -> None:
        self._placed = placed
        self.rules = rules
        self.newest: tuple[Float32, ...] = ()
        self._gradient = gradient
        self._user_loss = loss
        self._pull: Pull | None = None
        self._collected = ByStructure(placed, partial(Collector, placed))
        self._steps: dict[object, TrainStep] = {}
        self._inferences: dict[object, Inference] = {}
        self._find_ids(sample)

    def _find_ids(self, sample: KerasMinibatch) -> None:
        """Find which tables are looked up, and whether that depends on other rows."""
        collector = self._collected(sample)
        self.tables: Sequence[int] = collector.tables
        self.need_parameters = any(site.stage for site in collector.sites)

    def begin_again(self, sample: KerasMinibatch) -> None:
        """Forget what was traced: the model looks up something else from now on."""
        for known in (self._steps, self._inferences):
            known.clear()
        self._collected.forget()
        self._find_ids(sample)

    def try_out(self, sample: KerasMinibatch) -> Untrained:
        """Call model and loss, so that a fault is found now, before the job begins."""
        gradient = self._gradient
        assert gradient is not None, "no model without a loss is trained"
        functions = self._placed.model, self._user_loss
        values = self._placed.dense.values(), self._placed.state.values()
        # A step that leaves nothing in Python when it is traced needs no comparison of two traces.
        before = note(*functions)
        step = self.step(sample)
        if leaves_a_trace(before, note(*functions)):
            check_steps(*functions, (sample, sample), lambda one: [text_of(gradient.traced(one))])
        step.try_out(sample, *values)
        if step.runs_python and step.can_be_tried:
            check_steps(*functions, with_another(sample), lambda one: step.on_zeros(one, *values))
        return Untrained(gradient.missing, gradient.missing_tables)

    def taken(self, minibatch: Minibatch) -> KerasMinibatch:
        """Return a minibatch as it is computed on."""
        return KerasMinibatch.of(minibatch)

    def set_lookup(self, pull: Pull) -> None:
        """Give the lookup for ids that depend on parameters."""
        self._pull = pull

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up."""
        taken = self.taken(minibatch)
        return self._collected(taken).ids(taken, self._pull)

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> Sequence[Sequence[str]]:
        """Return the strings behind the ids of some sites; see `KeepsNames`."""
        taken = self.taken(minibatch)
        return self._collected(taken).names(taken, sites)

    def step(self, minibatch: KerasMinibatch) -> TrainStep:
        """Return the step of minibatches like one."""
        key = minibatch.structure.key
        step = self._steps.get(key)
        if step is None:
            assert self._gradient is not None, "build() takes no model without a loss to train"
            collector = self._collected(minibatch)
            step = TrainStep(self._placed, self._gradient, collector, minibatch)
            self._steps[key] = step
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
    ) -> tuple[Nested, tf.Tensor]:
        """Return the outputs, and what the model adds to its loss."""
        key = minibatch.structure.key
        inference = self._inferences.get(key)
        if inference is None:
            inference = Inference(self._placed, self._collected(minibatch), minibatch)
            self._inferences[key] = inference
        return inference(minibatch, rows, dense, state)

    def predict(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> object:
        """Return the outputs as arrays."""
        outputs, _ = self.infer(self.taken(minibatch), rows, dense, state)
        return tf.nest.map_structure(np.asarray, outputs)

    def predictions(self, minibatch: KerasMinibatch, outputs: Any) -> Nested:
        """Return the predictions of a `StepResult` as the model gives them."""
        return self._steps[minibatch.structure.key].predictions(outputs)
