"""A Keras model on TensorFlow, as compiled functions that are made once for each structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from elasticdl.backends.base import Int64, Minibatch
from elasticdl.packages.keras.computation import ByStructure, Compiled
from elasticdl.packages.keras.description import Untrained
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.gradient import LossGradient
from elasticdl.packages.keras.model.lookups import Collector
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
from elasticdl.packages.keras.on_tensorflow import OnTensorFlow


class TracedModel(OnTensorFlow, Compiled[TrainStep, Inference]):
    """A `KerasComputation` of a model whose steps are traced.

    Args:
        placed, rules, gradient, loss: See `OnTensorFlow`.
        sample: A first minibatch.
    """

    def __init__(
        self,
        placed: PlacedModel,
        rules: VariableRules,
        gradient: LossGradient | None,
        loss: Callable[..., object] | None,
        sample: KerasMinibatch,
    ) -> None:
        super().__init__(placed, rules, gradient, loss)
        self._collected = ByStructure(placed, partial(Collector, placed))
        self._find_ids(sample)

    def _find_ids(self, sample: KerasMinibatch) -> None:
        """Find which tables are looked up, and whether that depends on other rows."""
        collector = self._collected(sample)
        self.tables = collector.tables
        self.need_parameters = any(site.stage for site in collector.sites)

    def begin_again(self, sample: KerasMinibatch) -> None:
        """Forget what was traced: the model looks up something else from now on."""
        self.forget_compiled()
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

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up."""
        taken = self.taken(minibatch)
        return self._collected(taken).ids(taken, self._pull)

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> Sequence[Sequence[str]]:
        """Return the strings behind the ids of some sites; see `KeepsNames`."""
        taken = self.taken(minibatch)
        return self._collected(taken).names(taken, sites)

    def make_step(self, minibatch: KerasMinibatch) -> TrainStep:
        """Return a step for minibatches like one."""
        assert self._gradient is not None, "build() takes no model without a loss to train"
        return TrainStep(self._placed, self._gradient, self._collected(minibatch), minibatch)

    def make_inference(self, minibatch: KerasMinibatch) -> Inference:
        """Return an inference for minibatches like one."""
        return Inference(self._placed, self._collected(minibatch), minibatch)
