"""The Criteo DeepFM in plain TensorFlow: variables, loss, and updates of only the touched rows.

The TensorFlow peers of `benchmarks/store_job.py` share this module. The architecture is that of
`model_zoo/criteo/deepfm.py`. Updates use TensorFlow's own kernels in the same way as its optimizers
for sparse gradients (`tf.compat.v1.train`, and the `legacy` ones of Keras 2).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from criteo.fields import NUM_IDS, NUM_NUMBERS, SIZES
from criteo.prepare import make_columns

DIM = 8
HIDDEN = (128, 64)
LEARNING_RATE = 0.05
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


def minibatches(count: int, size: int) -> list[tuple[Any, Any, Any]]:
    """Return minibatches of (numbers, ids, labels), parsed and in memory."""
    columns = make_columns(count * size, seed=(0, 0, 0))
    parts = (columns["numbers"], columns["ids"], columns["label"][:, 0].astype(np.float32))
    cut = [np.split(part, count) for part in parts]
    return list(zip(*cut, strict=True))


def make_tables() -> tuple[Any, Any]:
    """Return the tables of vectors (NUM_IDS, DIM) and of weights (NUM_IDS, 1)."""
    vectors = tf.Variable(tf.random.uniform([NUM_IDS, DIM], -0.05, 0.05))
    return vectors, tf.Variable(tf.zeros([NUM_IDS, 1]))


def make_dense() -> list[Any]:
    """Return the parameters beside the tables."""

    def uniform(*shape: int) -> Any:
        return tf.Variable(tf.random.uniform(shape, -0.05, 0.05))

    variables = [uniform(NUM_NUMBERS, DIM), uniform(NUM_NUMBERS, 1)]
    width = (NUM_NUMBERS + len(SIZES)) * DIM
    for units in (*HIDDEN, 1):
        variables += [uniform(width, units), tf.Variable(tf.zeros([units]))]
        width = units
    return variables


def loss(dense: Sequence[Any], numbers: Any, vectors: Any, weights: Any, labels: Any) -> Any:
    """Return the mean loss.

    Args:
        dense: Weights from `make_dense`.
        numbers: Shape (b, 13).
        vectors: Rows of the ids, (b, 26, DIM).
        weights: The same with shape (b, 26, 1).
        labels: (b,).
    """
    vectors = tf.concat([numbers[:, :, None] * dense[0], vectors], 1)
    total = tf.reduce_sum(vectors, 1)
    pairs = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(vectors * vectors, 1), 1)
    linear = tf.reduce_sum(weights, [1, 2]) + tf.matmul(numbers, dense[1])[:, 0]
    hidden = tf.reshape(vectors, [-1, (NUM_NUMBERS + len(SIZES)) * DIM])
    for layer in (2, 4):
        hidden = tf.nn.relu(tf.matmul(hidden, dense[layer]) + dense[layer + 1])
    logits = (tf.matmul(hidden, dense[6]) + dense[7])[:, 0] + pairs + linear
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


class Updates:
    """TensorFlow's sparse and dense updates of some variables by one optimizer.

    Make it where the variables are made: its slots are put beside them.
    """

    def __init__(self, kind: str, variables: Sequence[Any]) -> None:
        self._update: Callable[..., None] = {
            "sgd": self._sgd,
            "adagrad": self._adagrad,
            "adam": self._adam,
        }[kind]
        fills = {"sgd": [], "adagrad": [0.1], "adam": [0.0, 0.0]}[kind]
        self._slots = []
        for variable in variables:
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                self._slots.append([tf.Variable(tf.fill(variable.shape, f)) for f in fills])
        self._step = tf.Variable(0.0)
        self._variables = list(variables)

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update each variable by its gradient, `tf.IndexedSlices` where rows were gathered."""
        tf.raw_ops.AssignAddVariableOp(resource=self._step.handle, value=tf.constant(1.0))
        for variable, slots, gradient in zip(self._variables, self._slots, gradients, strict=True):
            with tf.device(variable.device):  # on the parameter server, not on the worker
                self._update(variable, gradient, *slots)

    def _sgd(self, variable: Any, gradient: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices):
            tf.raw_ops.ResourceScatterAdd(
                resource=variable.handle,
                indices=gradient.indices,
                updates=-LEARNING_RATE * gradient.values,
            )
            return
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=LEARNING_RATE, delta=gradient
        )

    def _adagrad(self, variable: Any, gradient: Any, accumulator: Any) -> None:
        common = {
            "var": variable.handle,
            "accum": accumulator.handle,
            "lr": LEARNING_RATE,
            "epsilon": EPSILON,
        }
        if isinstance(gradient, tf.IndexedSlices):
            ids, summed = _summed(gradient)
            tf.raw_ops.ResourceSparseApplyAdagradV2(**common, grad=summed, indices=ids)
            return
        tf.raw_ops.ResourceApplyAdagradV2(**common, grad=gradient)

    def _adam(self, variable: Any, gradient: Any, first: Any, second: Any) -> None:
        powers = tf.pow([BETA_1, BETA_2], self._step)
        if not isinstance(gradient, tf.IndexedSlices):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=first.handle,
                v=second.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=LEARNING_RATE,
                beta1=BETA_1,
                beta2=BETA_2,
                epsilon=EPSILON,
                grad=gradient,
            )
            return
        # The moments of *all* rows decay in each step, as in `AdamOptimizer._apply_sparse`.
        ids, summed = _summed(gradient)
        rate = LEARNING_RATE * tf.sqrt(1.0 - powers[1]) / (1.0 - powers[0])
        moments = ((first, BETA_1, summed), (second, BETA_2, summed * summed))
        for moment, beta, added in moments:
            decayed = tf.raw_ops.ReadVariableOp(resource=moment.handle, dtype=tf.float32) * beta
            tf.raw_ops.AssignVariableOp(resource=moment.handle, value=decayed)
            tf.raw_ops.ResourceScatterAdd(
                resource=moment.handle, indices=ids, updates=(1.0 - beta) * added
            )
        m = tf.raw_ops.ReadVariableOp(resource=first.handle, dtype=tf.float32)
        v = tf.raw_ops.ReadVariableOp(resource=second.handle, dtype=tf.float32)
        tf.raw_ops.AssignSubVariableOp(
            resource=variable.handle, value=rate * m / (tf.sqrt(v) + EPSILON)
        )


def _summed(gradient: Any) -> tuple[Any, Any]:
    ids, positions = tf.unique(gradient.indices)
    return ids, tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(ids))


def rate(step: Callable[[int], object], records: int, seconds: float) -> float:
    """Call `step(0)`, `step(1)`, ... for some seconds; return records/s, each call having some."""
    for number in range(5):
        step(number)
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        step(count)
        count += 1
    return count * records / elapsed
