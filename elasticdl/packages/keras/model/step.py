"""The compiled functions of a Keras model: one training step, and inference."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32, StepResult
from elasticdl.errors import ModelError, in_short
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, describe
from elasticdl.packages.keras.metrics.kinds import mask_of, with_mask
from elasticdl.packages.keras.model.function import FlatFunction, as_tensor
from elasticdl.packages.keras.model.gradient import LossGradient, added
from elasticdl.packages.keras.model.lookups import Collector
from elasticdl.packages.keras.model.placed import Called, PlacedModel, explaining
from elasticdl.packages.keras.model.recipe import AskedIds, Leaves, functions_of, nodes_within
from elasticdl.packages.keras.types import Nested

log = logging.getLogger(__name__)

_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_ASSIGNS = re.compile(r"Assign\w*VariableOp$|ResourceScatter|LookupTableInsert")


class GivenRows:
    """A lookup that hands out the rows given to a step, site by site in the order of collection.

    Args:
        placed: The model.
        tables: The tables of each site.
        rows: The rows of each site.
        asked: Is told the ids of each site.
    """

    def __init__(
        self, placed: PlacedModel, tables: Sequence[int], rows: Sequence[tf.Tensor], asked: AskedIds
    ) -> None:
        self._placed = placed
        self.tables = tables
        self._rows = rows
        self._asked = asked
        self._next = 0

    @property
    def rows(self) -> Sequence[tf.Tensor]:
        """The rows by which the loss is differentiated."""
        return self._rows

    def watch(self, tape: tf.GradientTape) -> None:
        """Have a tape watch the rows."""
        tape.watch(self._rows)

    def __call__(self, layer: keras.layers.Layer, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows of the next site, which must be of this layer."""
        site, table = self._next, self._placed.table_of(layer)
        self._next += 1
        if site >= len(self.tables) or self.tables[site] != table:
            raise ModelError(
                f"Embedding {layer.name!r} is lookup {site} of the model now and was not when "
                "its lookups were collected; call the same layers in the same order in "
                "training and inference"
            )
        rows = self._rows[site]
        if ids.shape.rank is not None:
            # A plain layer gives this static shape, and the layers behind it may need it.
            rows = tf.ensure_shape(rows, [*ids.shape, layer.output_dim])
        self._asked.note(site, ids, rows)
        return rows


class TrainStep:
    """The training step for minibatches of one structure, of any size."""

    def __init__(
        self,
        placed: PlacedModel,
        gradient: LossGradient,
        collector: Collector,
        minibatch: KerasMinibatch,
    ) -> None:
        self._placed = placed
        self._gradient = gradient
        self._collector = collector
        self._structure = minibatch.structure
        self._outputs = _Outputs()
        specs, factor = self._structure.specs, tf.TensorSpec([], tf.float32)
        self._function = _Traced(self._trace, specs, placed, collector, minibatch, [factor])

    def __call__(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Run one step; see `Trainer.train_step`."""
        # A step gives four tensors (see `LossGradient.__call__`), and then the gradients of the
        # rows.
        end = 4 + len(rows)

        def once(factor: tf.Tensor) -> tuple[Sequence[tf.Tensor], Nested]:
            tensors = self._function(minibatch, rows, dense, state, factor)
            predictions, asked = _apart(tensors[end:], self._asked)
            self._asked.check(minibatch.pulled, asked)
            return tensors[:end], predictions

        return self._gradient.run(once, state)

    def try_out(self, minibatch: KerasMinibatch, dense: Float32, state: Float32) -> None:
        """Run one step, if its ids may differ from those that were found, and compare them.

        Raises:
            ModelError: They differ.
        """
        if self._asked.is_needed and self.can_be_tried:
            self.on_zeros(minibatch, dense, state)

    @property
    def can_be_tried(self) -> bool:
        """Whether no ids depend on rows, which nobody has yet."""
        return not any(site.stage for site in self._collector.sites)

    @property
    def runs_python(self) -> bool:
        """Whether each step calls a function in Python."""
        return self._function.runs_python

    def on_zeros(
        self, minibatch: KerasMinibatch, dense: Float32, state: Float32
    ) -> list[float | Float32]:
        """Run one step with rows of zeros; return loss, gradients and the change of the state."""
        sites = zip(self._collector.ids(minibatch, None), self._collector.tables, strict=True)
        tables = self._placed.sources
        rows = [np.zeros([*ids.shape, tables[k].dim], np.float32) for ids, k in sites]
        result = self(minibatch, rows, dense, state)
        return [result.loss, result.dense_grad, *result.row_grads, result.state_delta]

    def predictions(self, tensors: Sequence[tf.Tensor]) -> Nested:
        """Return the predictions of a `StepResult` as the model gives them."""
        return self._outputs.unpack(tensors)

    def _trace(
        self,
        tensors: Sequence[tf.Tensor],
        rows: Sequence[tf.Tensor],
        dense: tf.Tensor,
        state: tf.Tensor,
        seed: tf.Tensor,
        factor: tf.Tensor,
    ) -> list[tf.Tensor]:
        features = tensors[: len(self._structure.feature_specs)]
        self._asked = self._collector.asked(Leaves(dense, state, seed, features))
        lookup = GivenRows(self._placed, self._collector.tables, rows, self._asked)
        results, outputs = self._gradient(
            self._structure, lookup, tensors, dense, state, seed, factor
        )
        return results + self._outputs.pack(outputs) + self._asked.tensors


class Inference:
    """The model's outputs for minibatches of one structure, of any size."""

    def __init__(
        self,
        placed: PlacedModel,
        collector: Collector,
        minibatch: KerasMinibatch,
        training: bool = False,
    ) -> None:
        structure = minibatch.structure

        def infer(
            tensors: Sequence[tf.Tensor],
            rows: Sequence[tf.Tensor],
            dense: tf.Tensor,
            state: tf.Tensor,
            seed: tf.Tensor,
        ) -> list[tf.Tensor]:
            self._asked = collector.asked(Leaves(dense, state, seed, tensors))
            lookup = GivenRows(placed, collector.tables, rows, self._asked)
            split = placed.dense.split(dense), placed.state.split(state)
            called = placed.call(lookup, structure.fold_features(tensors), training, *split, seed)
            if not training:
                _tell_assigned(called)
            outputs = self._outputs.pack(called.outputs)
            return [added(called.losses), *outputs, *self._asked.tensors]

        self._outputs = _Outputs()
        specs = structure.feature_specs
        self._function = _Traced(infer, specs, placed, collector, minibatch)

    def __call__(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Nested, tf.Tensor]:
        """Return the outputs, in the structure that the model gives, and what it adds to a loss."""
        loss, *tensors = self._function(minibatch, rows, dense, state)
        outputs, asked = _apart(tensors, self._asked)
        self._asked.check(minibatch.pulled, asked)
        return self._outputs.unpack(outputs), loss


def _tell_assigned(called: Called) -> None:
    """Say which variables a model assigns though it is not trained: Keras would keep that."""
    names = sorted(variable.path for variable in called.assigned.values())
    if names:
        log.warning(
            "call() assigns %s in evaluations and predictions too; they leave it as training made "
            "it. Assign only where the argument `training` is true",
            ", ".join(names[:3]),
        )


def _apart(
    tensors: Sequence[tf.Tensor], asked: AskedIds
) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]:
    """Return the tensors of outputs, and the ids that come behind them."""
    end = len(tensors) - len(asked.tensors)
    return tensors[:end], tensors[end:]


class _Outputs:
    """Takes a model's outputs apart into tensors, and puts them together with Keras' masks."""

    def __init__(self) -> None:
        self._structure: Nested = None
        self._are_none: list[bool] = []
        self._masked: list[int] = []  # which of the outputs have a mask

    def pack(self, outputs: Nested) -> list[tf.Tensor]:
        """Return the tensors of the outputs and then the masks, while tracing."""
        self._structure = outputs
        leaves = tf.nest.flatten(outputs)
        self._masked = [k for k, leaf in enumerate(leaves) if mask_of(leaf) is not None]
        # A compiled function loses the masks that Keras attached to its outputs, so it returns them
        # too.
        masks = [tf.convert_to_tensor(mask_of(leaves[k])) for k in self._masked]
        flat = tf.nest.flatten(outputs, expand_composites=True)
        # A compiled function returns no None.
        self._are_none = [leaf is None for leaf in flat]
        return [*(leaf for leaf in flat if leaf is not None), *masks]

    def unpack(self, tensors: Sequence[tf.Tensor]) -> Nested:
        """Return the outputs in the structure that the model gives."""
        num_masks = len(self._masked)
        given, masks = tensors[: len(tensors) - num_masks], tensors[len(tensors) - num_masks :]
        coming = iter(given)
        flat = [None if is_none else next(coming) for is_none in self._are_none]
        outputs = tf.nest.pack_sequence_as(self._structure, flat, expand_composites=True)
        leaves = tf.nest.flatten(outputs)
        for k, mask in zip(self._masked, masks, strict=True):
            with_mask(leaves[k], mask)
        return outputs


def _refuse_assigned(graph: tf.Graph) -> None:
    """Refuse a model or a loss that changes what TensorFlow keeps and no other worker has.

    Raises:
        ModelError: Names the variable or table.
    """
    ops = graph.get_operations()
    found = next((op for op in ops if _ASSIGNS.match(op.type)), None)
    name = "" if found is None else _name_of(graph, found.inputs[0])
    if found is None:
        # The bodies of tf.cond, tf.while_loop and tf.function are functions beside the graph.
        called = {name for op in ops for name in functions_of(op)}
        found = next((n for n in nodes_within(graph, called) if _ASSIGNS.match(n.op)), None)
    if found is not None:
        raise ModelError(
            f"the model, or the loss, changes a tf.Variable or a table of TensorFlow {name}"
            f"({found.name}), which no other worker, no checkpoint and no export would have; make "
            "the variable with add_weight in a layer, and assign it in the layer's call"
        )


def _runs_python(graph: tf.Graph) -> bool:
    ops = graph.get_operations()
    called = {name for op in ops for name in functions_of(op)}
    return any(op.type in _PYTHON for op in ops) or any(
        node.op in _PYTHON for node in nodes_within(graph, called)
    )


def _name_of(graph: tf.Graph, resource: tf.Tensor) -> str:
    outer = next((outer for outer, inner in graph.captures if inner is resource), None)
    variables = {id(v.handle): v.name for v in graph.variables}
    name = variables.get(id(outer))
    return "" if name is None else f"{name!r} "


class _Traced:
    """A function of the model, traced once for minibatches of one structure.

    Args:
        function: Takes (tensors of a minibatch, rows of each site, dense, state, seed, and what
            `given` says); returns tensors.
        specs: The specs of the tensors that it is given: the first ones of a minibatch.
        placed, collector, minibatch: The rest of the specs follows from these.
        given: The specs of its other inputs.
    """

    def __init__(
        self,
        function: Callable[..., list[tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
        placed: PlacedModel,
        collector: Collector,
        minibatch: KerasMinibatch,
        given: Sequence[tf.TensorSpec] = (),
    ) -> None:
        self._num_tensors = count = len(specs)
        num_given = len(given)

        def flat(
            dense: tf.Tensor, state: tf.Tensor, seed: tf.Tensor, *others: tf.Tensor
        ) -> list[tf.Tensor]:
            others, more = others[num_given:], others[:num_given]
            return function(others[:count], others[count:], dense, state, seed, *more)

        signature = [
            tf.TensorSpec([placed.dense.size], tf.float32),
            tf.TensorSpec([placed.state.size], tf.float32),
            tf.TensorSpec([], tf.int64),
            *given,
            *specs,
            *(tf.TensorSpec(site.rows.shape, tf.float32) for site in collector.sites),
        ]
        with explaining(placed.model, minibatch):
            concrete = tf.function(flat, autograph=False).get_concrete_function(*signature)
        _refuse_assigned(concrete.graph)
        self.runs_python = _runs_python(concrete.graph)
        self._call = FlatFunction(concrete)

    def __call__(
        self,
        minibatch: KerasMinibatch,
        rows: Sequence[Float32],
        dense: Float32,
        state: Float32,
        *given: tf.Tensor,
    ) -> Sequence[tf.Tensor]:
        """Return what the function gives for a minibatch."""
        seed = tf.constant(minibatch.seed, tf.int64)
        tensors = minibatch.tensors[: self._num_tensors]
        inputs = [as_tensor(dense), as_tensor(state), seed, *given, *tensors, *map(as_tensor, rows)]
        try:
            return self._call(*inputs)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            said = f"{in_short(error)}{self._call.place_of_failure(inputs)}"
            parts = {"labels": minibatch.labels, "sample weights": minibatch.weights}
            fed = [f", {k} {describe(part)}" for k, part in parts.items() if part is not None]
            raise ModelError(
                f"the model fails on a minibatch of {minibatch.num_records} records, features "
                f"{describe(minibatch.features)}{''.join(fed)}: {said}"
            ) from error
