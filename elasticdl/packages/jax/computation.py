"""A Keras model on JAX, as compiled functions that are made once for each structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import keras
import numpy as np

from elasticdl.backends.average import as_numbers
from elasticdl.backends.base import Float32, Int64, Lookup, Minibatch
from elasticdl.packages.jax.arrays import ShapesSeen, as_arrays
from elasticdl.packages.jax.lookups import JaxCollector
from elasticdl.packages.jax.loss import JaxLoss
from elasticdl.packages.jax.placed import JaxModel
from elasticdl.packages.jax.step import GivenArrays, JaxInference, JaxStep
from elasticdl.packages.jax.variables import seed_of
from elasticdl.packages.keras.computation import ByStructure, Compiled
from elasticdl.packages.keras.description import Untrained
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.state import VariableRules
from elasticdl.packages.keras.model.trial import check_steps, leaves_a_trace, note


class JaxComputation(Compiled[JaxStep, JaxInference]):
    """A `KerasComputation` by JAX.

    Args:
        placed: The model.
        rules: The rule by which training changes each state variable.
        loss: `loss` of the model file.
        make_loss: Makes the loss of a minibatch, given the names of the outputs.
        sample: A first minibatch.

    Attributes:
        tables: The table of each id site.
        rules, newest: See `KerasComputation`.
        collected: Returns the lookups of a minibatch.
    """

    need_parameters = False  # a model whose ids do is refused when it is traced

    def __init__(
        self,
        placed: JaxModel,
        rules: VariableRules,
        loss: Callable[..., object] | None,
        make_loss: Callable[[Sequence[str]], JaxLoss],
        sample: KerasMinibatch,
    ) -> None:
        super().__init__()
        self._placed = placed
        self.rules = rules
        self._user_loss = loss
        self._make_loss = make_loss
        self._shapes = ShapesSeen()
        self.collected = ByStructure(placed, partial(JaxCollector, placed))
        self.tables: Sequence[int] = self.collected(sample).tables

    def try_out(self, sample: KerasMinibatch) -> Untrained:
        """Trace model and loss, so that a fault is found now, before the job begins."""
        functions = self._placed.model, self._user_loss
        given = self._first_given(sample)
        before = note(*functions)
        step = self.step(sample)
        step.prepare(sample, given)
        if leaves_a_trace(before, note(*functions)):
            check_steps(*functions, (sample, sample), lambda one: [step.prepare(one, given)])
        return Untrained(*step.without_gradient(given))

    def _first_given(self, sample: KerasMinibatch) -> GivenArrays:
        """Return the initial values, and small rows."""
        ids, random = self.ids(sample), np.random.default_rng(0)
        rows = [
            0.1 * random.standard_normal((*one.shape, self._placed.tables[table].dim), np.float32)
            for one, table in zip(ids, self.tables, strict=True)
        ]
        dense, state = self._placed.dense.values(), self._placed.state.values()
        return GivenArrays(rows, dense, state, seed_of(sample.seed), sample.tensors)

    def taken(self, minibatch: Minibatch) -> KerasMinibatch:
        """Return a minibatch as it is computed on."""
        return as_arrays(minibatch)

    def set_lookup(self, pull: Lookup) -> None:
        """Give a lookup, for which no model on JAX has a use."""

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up."""
        taken = self.taken(minibatch)
        return self.collected(taken).ids(taken)

    def predict(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> object:
        """Return the outputs as arrays."""
        outputs, _ = self.infer(self.taken(minibatch), rows, dense, state)
        return keras.tree.map_structure(as_numbers, outputs)

    def make_step(self, minibatch: KerasMinibatch) -> JaxStep:
        """Return a step for minibatches like one."""
        tables = self.collected(minibatch).tables
        model, structure = self._placed, minibatch.structure
        loss = self._make_loss(model.output_names)
        # Keras makes variables of its losses in their first call, which must not be within a
        # trace.
        loss.prepare(minibatch.labels, model.sample_outputs)
        return JaxStep(model, loss, self.rules.momenta, tables, structure, self._shapes)

    def make_inference(self, minibatch: KerasMinibatch) -> JaxInference:
        """Return an inference for minibatches like one."""
        tables = self.collected(minibatch).tables
        return JaxInference(self._placed, tables, minibatch.structure)
