"""The compiled functions of a Keras model: one training step, and inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from elasticdl.backends.base import Float32, StepResult
from elasticdl.backends.keras.feed.minibatch import KerasMinibatch, describe
from elasticdl.backends.keras.metrics.kinds import mask_of, with_mask
from elasticdl.backends.keras.model.function import FlatFunction, as_tensor
from elasticdl.backends.keras.model.gradient import LossGradient, added
from elasticdl.backends.keras.model.lookups import Collector
from elasticdl.backends.keras.model.placed import PlacedModel, explaining
from elasticdl.errors import ModelError


class GivenRows:
    """A lookup that hands out the rows given to a step, site by site in the order of collection."""

    def __init__(self, placed: PlacedModel, tables: Sequence[int], rows: Sequence[Any]) -> None:
        self._placed = placed
        self.tables = tables
        self._rows = rows
        self._next = 0

    @property
    def rows(self) -> Sequence[Any]:
        """What is differentiated by."""
        return self._rows

    def watch(self, tape: Any) -> None:
        """Have a tape watch the rows."""
        tape.watch(self._rows)

    def __call__(self, layer: Any, ids: Any) -> Any:
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
            rows = tf.ensure_shape(rows, [*ids.shape, layer.output_dim])
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
        self._tables = collector.tables
        self._structure = minibatch.structure
        self._outputs = _Outputs()
        specs, factor = self._structure.specs, tf.TensorSpec([], tf.float32)
        self._function = _Traced(self._trace, specs, placed, collector, minibatch, [factor])

    def __call__(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Run one step; see `Trainer.train_step`."""
        end = 4 + len(rows)

        def once(factor: Any) -> tuple[Sequence[Any], Any]:
            tensors = self._function(minibatch, rows, dense, state, factor)
            return tensors[:end], tensors[end:]

        return self._gradient.run(once, state)

    def predictions(self, tensors: Sequence[Any]) -> Any:
        """Return the predictions of a `StepResult` as the model gives them."""
        return self._outputs.unpack(tensors)

    def _trace(
        self,
        tensors: Sequence[Any],
        rows: Sequence[Any],
        dense: Any,
        state: Any,
        seed: Any,
        factor: Any,
    ) -> list[Any]:
        lookup = GivenRows(self._placed, self._tables, rows)
        results, outputs = self._gradient(
            self._structure, lookup, tensors, dense, state, seed, factor
        )
        return results + self._outputs.pack(outputs)


class Inference:
    """The model's outputs for minibatches of one structure, of any size."""

    def __init__(
        self, placed: PlacedModel, collector: Collector, minibatch: KerasMinibatch
    ) -> None:
        structure = minibatch.structure

        def infer(
            tensors: Sequence[Any], rows: Sequence[Any], dense: Any, state: Any, seed: Any
        ) -> list[Any]:
            lookup = GivenRows(placed, collector.tables, rows)
            split = placed.dense.split(dense), placed.state.split(state)
            called = placed.call(lookup, structure.fold_features(tensors), False, *split, seed)
            return [added(called.losses), *self._outputs.pack(called.outputs)]

        self._outputs = _Outputs()
        specs = structure.feature_specs
        self._function = _Traced(infer, specs, placed, collector, minibatch)

    def __call__(
        self, minibatch: KerasMinibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tuple[Any, Any]:
        """Return the outputs, in the structure that the model gives, and what it adds to a loss."""
        loss, *outputs = self._function(minibatch, rows, dense, state)
        return self._outputs.unpack(outputs), loss


class _Outputs:
    """Takes a model's outputs apart into tensors, and puts them together with Keras' masks."""

    def __init__(self) -> None:
        self._structure: Any = None
        self._masked: list[int] = []  # which of the outputs have a mask

    def pack(self, outputs: Any) -> list[Any]:
        """Return the tensors of the outputs and then the masks, while tracing."""
        self._structure = outputs
        leaves = tf.nest.flatten(outputs)
        self._masked = [k for k, leaf in enumerate(leaves) if mask_of(leaf) is not None]
        masks = [tf.convert_to_tensor(mask_of(leaves[k])) for k in self._masked]
        return [*tf.nest.flatten(outputs, expand_composites=True), *masks]

    def unpack(self, tensors: Sequence[Any]) -> Any:
        """Return the outputs in the structure that the model gives."""
        num_masks = len(self._masked)
        flat, masks = tensors[: len(tensors) - num_masks], tensors[len(tensors) - num_masks :]
        outputs = tf.nest.pack_sequence_as(self._structure, list(flat), expand_composites=True)
        leaves = tf.nest.flatten(outputs)
        for k, mask in zip(self._masked, masks, strict=True):
            with_mask(leaves[k], mask)
        return outputs


class _Traced:
    """A function of the model, traced once for minibatches of one structure.

    Args:
        function: Of (tensors of a minibatch, rows of each site, dense, state, seed, and what
            `given` says); returns tensors.
        specs: Of the first of a minibatch's tensors, which are those that it is given.
        placed, collector, minibatch: What the specs of all else follow from.
        given: Specs of what else it is given.
    """

    def __init__(
        self,
        function: Callable[..., list[Any]],
        specs: Sequence[Any],
        placed: PlacedModel,
        collector: Collector,
        minibatch: KerasMinibatch,
        given: Sequence[Any] = (),
    ) -> None:
        self._num_tensors = count = len(specs)
        num_given = len(given)

        def flat(dense: Any, state: Any, seed: Any, *others: Any) -> list[Any]:
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
        self._call = FlatFunction(concrete)

    def __call__(
        self,
        minibatch: KerasMinibatch,
        rows: Sequence[Float32],
        dense: Float32,
        state: Float32,
        *given: Any,
    ) -> Sequence[Any]:
        """Return what the function gives for a minibatch."""
        seed = tf.constant(minibatch.seed, tf.int64)
        tensors = minibatch.tensors[: self._num_tensors]
        inputs = [as_tensor(dense), as_tensor(state), seed, *given, *tensors, *map(as_tensor, rows)]
        try:
            return self._call(*inputs)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            message = " ".join(getattr(error, "message", str(error)).split())[:1000]
            raise ModelError(
                f"the model fails on a minibatch of {minibatch.num_records} records, features "
                f"{describe(minibatch.features)}: {message}"
            ) from error
