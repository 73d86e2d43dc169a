"""`--run_eagerly`: the user's model and loss as plain Python, one call a minibatch.

Nothing is traced, so the ids of a minibatch are not known before its step. Each embedding layer
pulls its rows in the middle of the call, and the whole step is computed when the worker asks for
the ids. It asks for them when no update is under way, so the rows are those of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Int64, StepResult
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.gradient import LossGradient, added
from elasticdl.packages.keras.model.lookups import Pull, check_ids
from elasticdl.packages.keras.model.placed import PlacedModel, explaining
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


class EagerModel:
    """Computes a minibatch when its ids are asked for, and hands out the result afterwards."""

    def __init__(self, placed: PlacedModel, gradient: LossGradient | None) -> None:
        named = [table.name for table in placed.tables if table.keep_names]
        if named:
            raise ModelError(
                f"--run_eagerly: Embedding {named[0]!r} has keep_names, which needs a traced model"
            )
        self._placed = placed
        self._gradient = gradient
        self._done: dict[int, _Done] = {}
        self.tables = placed.first_lookups()

    def ids(self, minibatch: KerasMinibatch, pull: Pull | None) -> list[Int64]:
        """Compute a minibatch; return the ids that each lookup of it was for."""
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

    def try_out(self, sample: KerasMinibatch) -> list[tf.Tensor]:
        """Return loss and gradients of a minibatch, to find the variables without a gradient.

        They are computed from the initial values and small rows.
        """
        assert self._gradient is not None
        placed = self._placed
        dense, state = tf.constant(placed.dense.values()), tf.constant(placed.state.values())
        with explaining(placed.model, sample):
            return self._gradient.of_small_rows(sample.structure, sample.tensors, dense, state)

    def step(self, minibatch: KerasMinibatch) -> StepResult:
        """Return loss and gradients of a minibatch whose ids were asked for."""
        result = self._done.pop(id(minibatch)).result
        assert result is not None
        return result

    def outputs(self, minibatch: KerasMinibatch) -> tuple[Nested, tf.Tensor]:
        """Return what `Inference` does, for a minibatch whose ids were asked for."""
        outputs = self._done.pop(id(minibatch)).outputs
        assert outputs is not None
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
