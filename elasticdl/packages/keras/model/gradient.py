"""Model and loss of one minibatch, and their gradients; traced or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32, StepResult
from elasticdl.errors import ModelError
from elasticdl.layers.row_statistics import SHOW, RowStatistics, value_of
from elasticdl.packages.frameworks.lookup import counting
from elasticdl.packages.frameworks.momenta import change_of
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, Structure
from elasticdl.packages.keras.model.placed import PlacedModel
from elasticdl.packages.keras.model.scaling import LossScale
from elasticdl.packages.keras.model.state import SmallRows, check_assigned
from elasticdl.packages.keras.types import Nested


class Counted:
    """The records of each lookup of statistics in a call of the model, as the layers say them."""

    def __init__(self) -> None:
        self._sites: list[tuple[tf.Tensor | None, tf.Tensor | None]] = []

    def __call__(self, records: tf.Tensor | None, weights: tf.Tensor | None) -> None:
        """Note the records of the ids of the next lookup, and what each id counts."""
        self._sites.append((records, weights))

    def amounts(
        self,
        said: Sequence[RowStatistics | None],
        rows: Sequence[tf.Tensor],
        labels: Nested,
        features: Nested,
    ) -> list[tf.Tensor | None]:
        """Return what each id of each lookup adds to its sums; None of one without statistics.

        Args:
            said: The statistics of each lookup of the model.
            rows: The rows of each, whose first axes are those of the ids.
            labels: The labels, as `feed` gives them.
            features: The same.

        Raises:
            ModelError: `feed` does not give a value that is counted, once for each record.
        """
        sites = iter(self._sites)
        return [
            None if of_site is None else _amounts(of_site, given, *next(sites), labels, features)
            for of_site, given in zip(said, rows, strict=True)
        ]


def _amounts(
    said: RowStatistics,
    rows: tf.Tensor,
    records: tf.Tensor | None,
    weights: tf.Tensor | None,
    labels: Nested,
    features: Nested,
) -> tf.Tensor:
    shape = tf.shape(rows)[:-1]
    columns = [
        tf.ones(shape) if name == SHOW else _of_records(name, shape, records, labels, features)
        for name in said.names
    ]
    amounts = tf.stack(columns, -1)
    return amounts if weights is None else amounts * weights[..., None]


def _of_records(
    name: str, shape: tf.Tensor, records: tf.Tensor | None, labels: Nested, features: Nested
) -> tf.Tensor:
    """Return the value of each id's record."""
    given = value_of(name, labels, features, tf.Tensor)
    if given.shape.rank is None or any(size != 1 for size in given.shape[1:]):
        raise ModelError(
            f"statistic {name!r} is counted by record: expected one number of feed for each, found "
            f"shape {given.shape}"
        )
    values = tf.cast(tf.reshape(given, [-1]), tf.float32)
    if records is not None:
        return tf.gather(values, records)
    ones = tf.ones([tf.size(shape) - 1], tf.int32)
    return tf.broadcast_to(tf.reshape(values, tf.concat([[-1], ones], 0)), shape)


Call = Callable[[tf.Tensor], tuple[Sequence[tf.Tensor], Nested]]
"""What `LossGradient.__call__` returns for a factor of the loss."""


class WatchedLookup(Protocol):
    """A lookup whose rows are differentiated by."""

    @property
    def tables(self) -> Sequence[int]:
        """The table of each lookup."""
        ...

    @property
    def rows(self) -> Sequence[tf.Tensor]:
        """The rows of each lookup so far, in their order."""
        ...

    def watch(self, tape: tf.GradientTape) -> None:
        """Have a tape watch the rows."""
        ...

    def __call__(self, layer: keras.layers.Layer, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows of `ids`."""
        ...


class StepLoss(Protocol):
    """Computes what a step differentiates: `MinibatchLoss`, or for a tower a number of its own."""

    @property
    def own_variables(self) -> frozenset[int]:
        """The variables, by `id`, that it may assign."""
        ...

    def __call__(self, labels: tf.Tensor, outputs: tf.Tensor, weights: Nested) -> tf.Tensor:
        """Return the loss of a minibatch."""
        ...


def added(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the sum of regularization and added losses."""
    return tf.add_n([tf.constant(0.0), *(tf.reduce_sum(tf.cast(x, tf.float32)) for x in losses)])


class LossGradient:
    """The gradient of the loss, and the change of the state.

    Args:
        momenta: The momenta of each state variable; see `state.py`.
        scale: The scale of the loss, for a model that computes in float16.

    Attributes:
        missing: Numbers of the dense variables that the loss did not depend on in the last call.
        missing_tables: The same of tables that were looked up.
    """

    def __init__(
        self,
        placed: PlacedModel,
        loss: StepLoss,
        momenta: Sequence[float],
        scale: LossScale | None,
    ) -> None:
        self._placed = placed
        self._loss = loss
        self._momenta = placed.state.repeat(momenta)
        self._scale = scale
        self.missing: frozenset[int] = frozenset()
        self.missing_tables: frozenset[int] = frozenset()

    def __call__(
        self,
        structure: Structure,
        lookup: WatchedLookup,
        tensors: Sequence[tf.Tensor],
        dense: tf.Tensor,
        state: tf.Tensor,
        seed: tf.Tensor,
        factor: tf.Tensor,
    ) -> tuple[list[tf.Tensor], Nested]:
        """Call model and loss on a minibatch's tensors.

        Returns:
            First a list. Its first entry says whether the gradient is finite; this is computed only
            if `factor` scales the loss. The others are the loss, the gradient of the dense vector,
            the change of the state, and the gradient of the rows of each lookup. Then the model's
            outputs.
        """
        placed, counted = self._placed, Counted()
        # Tensors stand in place of all variables, so only these tensors are watched.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            dense_parts = placed.dense.split(dense)
            tape.watch([part for _, part in dense_parts])
            lookup.watch(tape)
            features, state_parts = structure.fold_features(tensors), placed.state.split(state)
            labels, weights = structure.fold_labels(tensors), structure.fold_weights(tensors)

            def loss_of(outputs: Nested) -> tf.Tensor:
                return self._loss(labels, outputs, weights)

            with counting(counted):
                values = dense_parts, state_parts
                called = placed.call(lookup, features, True, *values, seed, loss_of)
            extra = added(called.losses)
            # The gradient of several values is that of their sum, as in Keras.
            target = tf.reduce_sum(called.loss) + extra
            target = target if self._scale is None else target * factor
        loss = tf.reduce_mean(called.loss) + extra
        check_assigned(placed, called, self._loss.own_variables)
        given = [part for _, part in dense_parts] + list(lookup.rows)
        gradients = self._completed(given, tape.gradient(target, given), lookup.tables)
        flat = [placed.dense.join(gradients[: len(dense_parts)]), *gradients[len(dense_parts) :]]
        of_tables = [placed.sources[table].statistics for table in lookup.tables]
        amounts = counted.amounts(of_tables, lookup.rows, labels, features)
        finite = tf.constant(True)
        if self._scale is not None:
            flat = [gradient / factor for gradient in flat]
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in flat])
        flat[1:] = [
            gradient if amount is None else amount
            for gradient, amount in zip(flat[1:], amounts, strict=True)
        ]
        new = placed.state.join(called.state)
        change = change_of(new, state, self._momenta, tf.experimental.numpy)
        return [finite, loss, flat[0], change, *flat[1:]], called.outputs

    def of_small_rows(
        self, structure: Structure, tensors: Sequence[tf.Tensor], dense: tf.Tensor, state: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return loss and gradients of a minibatch, with small rows for those of tables."""
        zero, one = tf.constant(0, tf.int64), tf.constant(1.0)
        lookup = SmallRows(self._placed)
        return self(structure, lookup, tensors, dense, state, zero, one)[0]

    def traced(self, minibatch: KerasMinibatch) -> tf.Graph:
        """Trace model and loss on minibatches like one; return the graph."""
        placed, structure = self._placed, minibatch.structure

        def call(dense: tf.Tensor, state: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            return self.of_small_rows(structure, tensors, dense, state)

        sizes = placed.dense.size, placed.state.size
        specs = [tf.TensorSpec([size], tf.float32) for size in sizes]
        traced = tf.function(call, autograph=False)
        return traced.get_concrete_function(*specs, *structure.specs).graph

    def run(self, call: Call, state: Float32) -> StepResult:
        """Make a step with `call`, which computes it for a factor of the loss.

        Raises:
            ModelError: A counter of the state cannot count on.
        """
        self._placed.state.check_counters(state)
        (_, loss, dense_grad, change, *row_grads), predictions = self._finite(call)
        return StepResult(
            loss=float(loss),
            row_grads=[np.asarray(g) for g in row_grads],
            dense_grad=np.asarray(dense_grad),
            state_delta=np.asarray(change),
            predictions=predictions,
        )

    def _finite(self, call: Call) -> tuple[Sequence[tf.Tensor], Nested]:
        if self._scale is None:
            return call(tf.constant(1.0))
        while True:
            results, predictions = call(tf.constant(self._scale.value, tf.float32))
            if results[0]:
                self._scale.was_finite()
                return results, predictions
            # A loss that is not finite itself does not become so by another scale.
            if not np.isfinite(float(results[1])) or not self._scale.overflowed():
                return results, predictions

    def _completed(
        self, given: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], tables: Sequence[int]
    ) -> list[tf.Tensor]:
        """Note what has no gradient, and put zeros there."""
        num_dense = len(self._placed.dense.variables)
        dense, rows = gradients[:num_dense], gradients[num_dense:]
        updated = {table for table, g in zip(tables, rows, strict=True) if g is not None}
        self.missing = frozenset(k for k, g in enumerate(dense) if g is None)
        # Statistics are counted and not differentiated, so these tables need no gradient.
        counted = {table for table in tables if self._placed.sources[table].statistics}
        self.missing_tables = frozenset(tables) - updated - counted
        return [
            # convert_to_tensor makes a dense gradient of tf.IndexedSlices.
            tf.zeros_like(part) if gradient is None else tf.convert_to_tensor(gradient)
            for part, gradient in zip(given, gradients, strict=True)
        ]
