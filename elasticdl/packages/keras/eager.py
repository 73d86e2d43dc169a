"""`--run_eagerly`: the user's model and loss as plain Python, one call a minibatch.

Nothing is traced, so the ids of a minibatch are not known before its step. Each embedding layer
pulls its rows in the middle of the call, and the whole step is computed when the worker asks for
the ids. It asks for them when no update is under way, so the rows are those of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32, Int64, Minibatch, StepResult
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.keras.description import Untrained
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.gradient import LossGradient, added
from elasticdl.packages.keras.model.lookups import Pull, check_ids
from elasticdl.packages.keras.model.placed import PlacedModel, explaining
from elasticdl.packages.keras.model.state import VariableRules
from elasticdl.packages.keras.model.trial import check_steps, with_another
from elasticdl.packages.keras.on_tensorflow import OnTensorFlow
from elasticdl.packages.keras.types import Nested

_KEPT = 16  # minibatches whose lease was lost are never computed on


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of a call: a step's result in training, otherwise the model's outputs."""

    minibatch: KerasMinibatch  # kept alive, so that no other one has its identity
    result: StepResult | None
    outputs: tuple[Nested, tf.Tensor] | None  # and what is added to the loss


class LiveRows:
    """A lookup that pulls the rows of each call when it is made."""

    def __init__(self, placed: PlacedModel, pull: Pull, training: bool) -> None:
        self._placed = placed
        self._pull = pull
        self._training = training
        self._tape: tf.GradientTape | None = None
        self.begin()

    def begin(self) -> None:
        """Forget the lookups of a call that is made again."""
        self.tables: list[int] = []
        self.ids: list[Int64] = []
        self.rows: list[tf.Tensor] = []

    def watch(self, tape: tf.GradientTape) -> None:
        """Have a tape watch the rows that come."""
        self._tape = tape

    def __call__(self, layer: keras.layers.Layer, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows of ids."""
        table = self._placed.table_of(layer)
        numbers = np.ascontiguousarray(ids.numpy(), np.int64)
        check_ids(self._placed.tables[table], numbers)
        rows = tf.constant(self._pull([(table, numbers)], training=self._training).rows[0])
        if self._tape is not None:
            self._tape.watch(rows)
        self.tables.append(table)
        self.ids.append(numbers)
        self.rows.append(rows)
        return rows


class EagerModel(OnTensorFlow):
    """A `KerasComputation` that computes a minibatch when its ids are asked for.

    It hands out the result afterwards. The arguments are those of `TracedModel`.
    """

    need_parameters = True

    def __init__(
        self,
        placed: PlacedModel,
        rules: VariableRules,
        gradient: LossGradient | None,
        loss: Callable[..., object] | None,
        sample: KerasMinibatch,
    ) -> None:
        named = [table.name for table in placed.tables if table.keep_names]
        if named:
            raise ModelError(
                f"--run_eagerly: Embedding {named[0]!r} has keep_names, which needs a traced model"
            )
        super().__init__(placed, rules, gradient, loss)
        self._done: dict[int, _Done] = {}
        self.begin_again(sample)

    def begin_again(self, sample: KerasMinibatch) -> None:
        """Find what the model looks up; it does so at first."""
        self.tables = self._placed.first_lookups()

    def ids(self, minibatch: Minibatch) -> list[Int64]:
        """Compute a minibatch; return the ids that each lookup of it was for."""
        minibatch, pull = self.taken(minibatch), self._pull
        assert pull is not None, "the worker sets the lookup before it runs"
        training = minibatch.mode is Mode.TRAINING
        lookup = LiveRows(self._placed, pull, training)
        # A pull without tables brings the dense and state vectors alone.
        given = pull([], training=training)
        dense, state = tf.constant(given.dense), tf.constant(given.state)
        seed = tf.constant(minibatch.seed, tf.int64)
        compute: Callable[..., _Done] = self._train if training else self._infer
        with explaining(self._placed.model, minibatch):
            done = compute(minibatch, lookup, dense, state, seed)
        self._refuse_other_lookups(lookup)
        while len(self._done) >= _KEPT:
            # A dict keeps the order of its keys, so the first one is the oldest.
            self._done.pop(next(iter(self._done)))
        self._done[id(minibatch)] = done
        return lookup.ids

    def try_out(self, sample: KerasMinibatch) -> Untrained:
        """Call model and loss, so that a fault is found now, before the job begins."""
        assert self._gradient is not None
        model = self._placed.model
        check_steps(model, self._user_loss, with_another(sample), self._on_small_rows)
        return Untrained(self._gradient.missing, self._gradient.missing_tables)

    def _on_small_rows(self, sample: KerasMinibatch) -> list[tf.Tensor]:
        """Return loss and gradients, from the initial values and small rows."""
        assert self._gradient is not None
        placed = self._placed
        dense, state = tf.constant(placed.dense.values()), tf.constant(placed.state.values())
        with explaining(placed.model, sample):
            return self._gradient.of_small_rows(sample.structure, sample.tensors, dense, state)

    def train(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Return loss and gradients of a minibatch whose ids were asked for."""
        self.newest = dense, state
        result = self._done.pop(id(minibatch)).result
        assert result is not None
        return result

    def infer(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Nested, tf.Tensor]:
        """Return what `TracedModel.infer` does, for a minibatch whose ids were asked for."""
        outputs = self._done.pop(id(minibatch)).outputs
        assert outputs is not None
        return outputs

    def predictions(self, minibatch: KerasMinibatch, outputs: Any) -> Nested:
        """Return the predictions of a `StepResult`, which are as the model gives them."""
        return outputs

    def _train(
        self,
        minibatch: KerasMinibatch,
        lookup: LiveRows,
        dense: tf.Tensor,
        state: tf.Tensor,
        seed: tf.Tensor,
    ) -> _Done:
        gradient = self._gradient
        assert gradient is not None, "no model without a loss is trained"

        def once(factor: tf.Tensor) -> tuple[list[tf.Tensor], Nested]:
            lookup.begin()
            given = (minibatch.structure, lookup, minibatch.tensors, dense, state, seed)
            return gradient(*given, factor)

        return _Done(minibatch, gradient.run(once, state.numpy()), None)

    def _infer(
        self,
        minibatch: KerasMinibatch,
        lookup: LiveRows,
        dense: tf.Tensor,
        state: tf.Tensor,
        seed: tf.Tensor,
    ) -> _Done:
        split = self._placed.dense.split(dense), self._placed.state.split(state)
        called = self._placed.call(lookup, minibatch.features, False, *split, seed)
        return _Done(minibatch, None, (called.outputs, added(called.losses)))

    def _refuse_other_lookups(self, lookup: LiveRows) -> None:
        if lookup.tables != self.tables:
            expected, found = (
                ", ".join(self._placed.tables[table].name for table in tables)
                for tables in (self.tables, lookup.tables)
            )
            raise ModelError(
                f"the model looks up embeddings {found or 'none'} for this minibatch and looked up "
                f"{expected or 'none'} when it was built; call the same layers in the same order"
            )
