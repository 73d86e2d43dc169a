"""The towers of a Keras model, each a small model of its own over the same layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32, Int64, Minibatch
from elasticdl.errors import ModelError
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.layers.remote import Remote
from elasticdl.packages.keras.model.gradient import LossGradient
from elasticdl.packages.keras.model.lookups import Collector
from elasticdl.packages.keras.model.placed import PlacedModel, zero_rows
from elasticdl.packages.keras.model.step import Inference, TrainStep
from elasticdl.packages.keras.types import Nested

_NO_STATE = np.zeros(0, np.float32)


def towers_of(placed: PlacedModel, seed: int) -> list[KerasTower]:
    """Return the towers of a model.

    Raises:
        ModelError: There is none, or one cannot be computed elsewhere.
    """
    remotes = placed.remotes()
    if not remotes:
        raise ModelError(
            "--num_model_servers: the model has no part in elasticdl.layers.Remote that they could "
            "compute; leave the flag out, or put a tower into that layer"
        )
    return [KerasTower(placed, remote, seed) for remote in remotes]


class KerasTower:
    """A `Tower` of a Keras model.

    Args:
        placed: The whole model.
        remote: The layer with the tower.
        seed: The seed of the model.

    Attributes:
        name, dim, dense, tables: See `Tower`.
        variables: Its own.
    """

    def __init__(self, placed: PlacedModel, remote: Remote, seed: int) -> None:
        self.name = remote.name
        sample = _minibatch(np.zeros(1, np.int64))
        # No size is above sys.maxsize: the whole model has moved its large tables already.
        self._placed = PlacedModel(lambda: _Alone(remote), sample, seed, sys.maxsize)
        _check(remote, self._placed, sample)
        self.dim = remote.output_dim
        self.variables: Sequence[keras.Variable] = self._placed.dense.variables
        numbers = {id(v): k for k, v in enumerate(placed.dense.variables)}
        self.dense = [placed.dense.parts[numbers[id(v)]] for v in self.variables]
        self._collector = Collector(self._placed, sample, training=True)
        if any(site.stage for site in self._collector.sites):
            raise ModelError(
                f"Remote {remote.name!r}: the tower looks up ids that depend on its parameters; "
                "with --num_model_servers expected ids that are made of the ids that it is given"
            )
        layers = [self._placed.tables[k].layer for k in self._collector.tables]
        self.tables = [placed.table_of(layer) for layer in layers]
        self._inferences: dict[bool, Inference] = {}
        self._step: TrainStep | None = None

    def ids(self, ids: Int64) -> Sequence[Int64]:
        """Return the ids that each site looks up."""
        return self._collector.ids(_minibatch(ids), None)

    def forward(
        self, ids: Int64, rows: Sequence[Float32], dense: Float32, training: bool
    ) -> Float32:
        """Return what the tower gives; see `Tower.forward`."""
        minibatch = _minibatch(ids)
        minibatch.pulled[:] = self.ids(ids)
        if training not in self._inferences:
            made = Inference(self._placed, self._collector, minibatch, training)
            self._inferences[training] = made
        outputs, _ = self._inferences[training](minibatch, rows, dense, _NO_STATE)
        return np.asarray(outputs)

    def backward(
        self, ids: Int64, gradients: Float32, rows: Sequence[Float32], dense: Float32
    ) -> tuple[Sequence[Float32], Float32]:
        """Return gradients; see `Tower.backward`."""
        minibatch = _minibatch(ids, gradients)
        minibatch.pulled[:] = self.ids(ids)
        if self._step is None:
            gradient = LossGradient(self._placed, _Product(), (), None)
            self._step = TrainStep(self._placed, gradient, self._collector, minibatch)
        result = self._step(minibatch, rows, dense, _NO_STATE)
        return result.row_grads, result.dense_grad


class _Alone(keras.Model):  # type: ignore[misc]  # keras has no types
    """A tower as a model of ids."""

    def __init__(self, remote: Remote) -> None:
        super().__init__(name=remote.name)
        self.remote = remote

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Return what the tower gives for ids of shape (n,)."""
        return self.remote.of_ids(ids)


class _Product:
    """Computes a number whose gradient inside the tower equals the gradient that is asked for."""

    @property
    def own_variables(self) -> frozenset[int]:
        """None: it assigns nothing."""
        return frozenset()

    def __call__(self, labels: tf.Tensor, outputs: tf.Tensor, weights: Nested) -> tf.Tensor:
        """Return the sum of the outputs times their gradients."""
        return tf.reduce_sum(labels * outputs)


def _minibatch(ids: Int64, gradients: Float32 | None = None) -> KerasMinibatch:
    return KerasMinibatch.of(Minibatch(ids, gradients, len(ids)))


def _check(remote: Remote, placed: PlacedModel, sample: KerasMinibatch) -> None:
    """Refuse a tower whose output depends on more than an id and trained parameters.

    Raises:
        ModelError: Names the tower and the fault.
    """
    what = f"Remote {remote.name!r}: with --num_model_servers a tower "
    if any(isinstance(layer, Remote) for layer in remote.tower._flatten_layers()):
        raise ModelError(f"{what}may have no other Remote within it")
    kept = [*placed.state.variables, *placed.seeds.variables, *placed.constants]
    if kept:
        raise ModelError(
            f"{what}keeps no state and draws nothing, since each id is computed once for several "
            f"workers: found {kept[0].path!r}; take batch normalization, dropout and layers that "
            "are not trained to the rest of the model (a frozen Embedding may stay if it is larger "
            "than --embedding_threshold_bytes)"
        )
    if any(table.admission is not None for table in placed.tables):
        raise ModelError(f"{what}has tables without admission: ids are not counted there")
    if any(table.keep_names for table in placed.tables):
        raise ModelError(f"{what}has tables without keep_names: it is given ids, and no strings")

    def zeros(layer: keras.layers.Layer, ids: tf.Tensor) -> tf.Tensor:
        return zero_rows(ids, layer.output_dim)

    dense = placed.dense.split(tf.constant(placed.dense.values()))
    called = placed.call(zeros, sample.features, True, dense, [], tf.constant(0, tf.int64))
    if called.losses:
        raise ModelError(
            f"{what}adds no loss of its own: leave out its regularizers, add_loss and the like"
        )
