"""The compiled functions of a model on JAX: one training step, and inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import keras
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from elasticdl.backends.base import Float32, StepResult
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.momenta import change_of
from elasticdl.packages.jax.arrays import FeatureNames, ShapesSeen
from elasticdl.packages.jax.loss import JaxLoss
from elasticdl.packages.jax.placed import JaxModel, of_32_bits
from elasticdl.packages.jax.variables import seed_of
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, Structure
from elasticdl.packages.keras.internals import get_keras_mask, set_keras_mask
from elasticdl.packages.keras.model.placed import explaining
from elasticdl.packages.keras.model.state import check_assigned
from elasticdl.packages.keras.types import Nested


class OrderedRows:
    """A lookup that hands out the rows given to a step, site by site."""

    def __init__(self, placed: JaxModel, tables: Sequence[int], rows: Sequence[jax.Array]) -> None:
        self._placed = placed
        self._tables = tables
        self._rows = rows
        self._next = 0

    def __call__(self, layer: keras.layers.Layer, ids: jax.Array) -> jax.Array:
        """Return the rows of the next site, which must be of this layer."""
        site, table = self._next, self._placed.table_of(layer)
        self._next += 1
        fits = site < len(self._tables) and self._tables[site] == table
        if not fits or self._rows[site].shape[:-1] != tuple(ids.shape):
            raise ModelError(
                f"Embedding {layer.name!r} is lookup {site} of the model now and was not when "
                "its lookups were collected; call the same layers in the same order, and for the "
                "same ids, in training and inference"
            )
        return self._rows[site]


@dataclass(frozen=True, slots=True)
class GivenArrays:
    """The values that a step is computed from; see `Trainer.train_step`.

    Attributes:
        seed: The result of `seed_of`.
    """

    rows: Sequence[jax.Array]
    dense: jax.Array
    state: jax.Array
    seed: jax.Array
    tensors: Sequence[jax.Array]


@dataclass(frozen=True, slots=True)
class JaxOutputs:
    """The results of a model: its outputs, flat, and their masks."""

    leaves: Sequence[jax.Array]
    masks: Sequence[jax.Array | None]


# A compiled function takes and returns only classes that JAX knows as trees.
jax.tree_util.register_dataclass(GivenArrays, ["rows", "dense", "state", "seed", "tensors"], [])
jax.tree_util.register_dataclass(JaxOutputs, ["leaves", "masks"], [])

Computed = tuple[jax.Array, JaxOutputs, jax.Array, list[jax.Array], list[jax.Array]]
"""Loss, outputs, change of the state, and the gradients of dense variables and of rows."""


class _Outputs:
    """Takes a model's outputs apart for a compiled function, and puts them together again."""

    def __init__(self) -> None:
        self.structure: Nested = None

    def apart(self, outputs: Nested) -> JaxOutputs:
        # Traced arrays must not outlive their trace, so numbers stand in their places.
        self.structure = keras.tree.map_structure(lambda _: 0, outputs)
        leaves = keras.tree.flatten(outputs)
        return JaxOutputs(leaves, [get_keras_mask(leaf) for leaf in leaves])

    def together(self, given: JaxOutputs) -> Nested:
        for leaf, mask in zip(given.leaves, given.masks, strict=True):
            if mask is not None:
                set_keras_mask(leaf, mask)
        return keras.tree.pack_sequence_as(self.structure, list(given.leaves))


class JaxStep:
    """The training step for minibatches of one structure; each size of them is compiled."""

    def __init__(
        self,
        placed: JaxModel,
        loss: JaxLoss,
        momenta: Sequence[float],
        tables: Sequence[int],
        structure: Structure,
        shapes: ShapesSeen,
    ) -> None:
        self._placed = placed
        self._loss = loss
        self._tables = tables
        self._structure = structure
        self._momenta = placed.state.repeat(momenta)
        self._outputs = _Outputs()
        self._names = FeatureNames.of(structure)
        self._shapes = shapes
        self._function = jax.jit(self._compute)
        self._are_used: Sequence[bool] | None = None

    def prepare(self, minibatch: KerasMinibatch, given: GivenArrays) -> str:
        """Trace the step; return the text of what it computes."""
        with explaining(self._placed.model, minibatch):
            traced = jax.make_jaxpr(self._compute)(given)
        self._are_used = _used_of(traced.jaxpr, given)
        self._names.check(minibatch.tensors, self._are_used)
        return str(traced)

    def __call__(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Run one step; see `Trainer.train_step`."""
        self._placed.state.check_counters(state)
        self._shapes.note(minibatch.tensors)
        given = GivenArrays(rows, dense, state, seed_of(minibatch.seed), minibatch.tensors)
        if self._are_used is None:
            self.prepare(minibatch, given)
        else:
            self._names.check(minibatch.tensors, self._are_used)
        with explaining(self._placed.model, minibatch):
            loss, outputs, change, of_dense, of_rows = self._function(given)
        return StepResult(
            loss=float(loss),
            row_grads=[np.asarray(g) for g in of_rows],
            dense_grad=np.asarray(of_dense),
            state_delta=np.asarray(change),
            predictions=outputs,
        )

    def predictions(self, given: JaxOutputs) -> Nested:
        """Return the predictions of a `StepResult` as the model gives them."""
        return self._outputs.together(given)

    def without_gradient(self, given: GivenArrays) -> tuple[frozenset[int], frozenset[int]]:
        """Return the numbers of dense variables and of tables on which the loss does not depend."""

        def gradients(given: GivenArrays) -> list[jax.Array]:
            _, _, _, of_dense, of_rows = self._gradients(given)
            return [*of_dense, *of_rows]

        zeros = [not np.any(np.asarray(g)) for g in jax.jit(gradients)(given)]
        # A gradient may be zero by chance. The trace says whether it depends on anything.
        jaxpr = jax.make_jaxpr(gradients)(given).jaxpr if any(zeros) else None

        def is_missing(number: int) -> bool:
            if not zeros[number] or jaxpr is None:
                return False
            wanted = [k == number for k in range(len(zeros))]
            return not any(dce_jaxpr(jaxpr, wanted)[1])

        missing = [is_missing(number) for number in range(len(zeros))]
        num_dense = len(self._placed.dense.variables)
        of_rows = zip(self._tables, missing[num_dense:], strict=True)
        updated = {table for table, is_without in of_rows if not is_without}
        dense = frozenset(k for k, is_without in enumerate(missing[:num_dense]) if is_without)
        return dense, frozenset(self._tables) - updated

    def _compute(self, given: GivenArrays) -> tuple[object, ...]:
        loss, outputs, change, of_dense, of_rows = self._gradients(given)
        return loss, outputs, change, self._placed.dense.join(of_dense), of_rows

    def _gradients(self, given: GivenArrays) -> Computed:
        placed, structure = self._placed, self._structure
        features = structure.fold_features(given.tensors)
        labels = structure.fold_labels(given.tensors)
        weights = structure.fold_weights(given.tensors)
        state = placed.state.split(given.state)

        def target(
            parts: Sequence[jax.Array], rows: Sequence[jax.Array]
        ) -> tuple[jax.Array, tuple[jax.Array, JaxOutputs, jax.Array]]:
            dense = list(zip(placed.dense.variables, parts, strict=True))
            lookup = OrderedRows(placed, self._tables, rows)
            called = placed.call(
                lookup,
                features,
                True,
                dense,
                state,
                given.seed,
                lambda outputs: self._loss(labels, outputs, weights),
            )
            check_assigned(placed, called, self._loss.own_variables)
            extra = added_losses(called.losses)
            after = placed.state.join(called.state)
            outputs = self._outputs.apart(called.outputs)
            # The gradient of several values is that of their sum, as in Keras.
            return jnp.sum(called.loss) + extra, (jnp.mean(called.loss) + extra, outputs, after)

        parts = [part for _, part in placed.dense.split(given.dense)]
        with of_32_bits():
            (_, (loss, outputs, after)), (of_dense, of_rows) = jax.value_and_grad(
                target, argnums=(0, 1), has_aux=True
            )(parts, list(given.rows))
        change = change_of(after, given.state, self._momenta, jnp)
        return loss, outputs, change, of_dense, of_rows


class JaxInference:
    """The model's outputs for minibatches of one structure; each size of them is compiled.

    Attributes:
        placed: The model.
    """

    def __init__(self, placed: JaxModel, tables: Sequence[int], structure: Structure) -> None:
        self.placed = placed
        self._tables = tables
        self._structure = structure
        self._outputs = _Outputs()
        self._names = FeatureNames.of(structure)
        self._function = jax.jit(self.compute)
        self._are_used: Sequence[bool] | None = None

    def __call__(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Nested, jax.Array]:
        """Return the outputs, and what the model adds to its loss."""
        features = minibatch.tensors[: len(self._structure.feature_specs)]
        given = GivenArrays(rows, dense, state, seed_of(minibatch.seed), features)
        with explaining(self.placed.model, minibatch):
            if self._are_used is None:
                self._are_used = _used_of(jax.make_jaxpr(self.compute)(given).jaxpr, given)
            FeatureNames(self._names.names[: len(features)]).check(features, self._are_used)
            outputs, added = self._function(given)
        return self._outputs.together(outputs), added

    @property
    def structure_of_outputs(self) -> Nested:
        """The structure in which the model gives its outputs, once it was traced."""
        return self._outputs.structure

    def compute(self, given: GivenArrays) -> tuple[JaxOutputs, jax.Array]:
        """Return what `__call__` does, of arrays that JAX may be tracing."""
        placed = self.placed
        split = placed.dense.split(given.dense), placed.state.split(given.state)
        lookup = OrderedRows(placed, self._tables, given.rows)
        features = self._structure.fold_features(given.tensors)
        with of_32_bits():
            called = placed.call(lookup, features, False, *split, given.seed)
        return self._outputs.apart(called.outputs), added_losses(called.losses)


def _used_of(jaxpr: jex.Jaxpr, given: GivenArrays) -> Sequence[bool]:
    """Return which of the tensors a trace uses: its last inputs, as GivenArrays is registered."""
    used: list[bool] = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1]
    return used[len(used) - len(given.tensors) :]


def added_losses(losses: Sequence[jax.Array]) -> jax.Array:
    """Return the sum of regularization and added losses."""
    return sum((jnp.sum(jnp.asarray(x, jnp.float32)) for x in losses), jnp.zeros([], jnp.float32))
