"""The two models of `redis_store.py`: parameters beside the tables stay in the worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import criteo_tensorflow
import numpy as np
import tensorflow as tf
from criteo_tensorflow import DIM, LEARNING_RATE, rate

from criteo.fields import NUM_NUMBERS

__all__ = ["CriteoModel", "FlightsModel", "rate"]

FLIGHTS = Path(__file__).parents[2] / "demo" / "data" / "train"
ROWS = [tf.TensorSpec([None, DIM]), tf.TensorSpec([None, 1])]
POSITIONS = tf.TensorSpec([None, None], tf.int32)


class CriteoModel:
    """The DeepFM of `model_zoo/criteo`."""

    DIM = DIM

    def __init__(self) -> None:
        self._dense = criteo_tensorflow.make_dense()
        numbers = tf.TensorSpec([None, NUM_NUMBERS])
        self.step = _step(self._dense, criteo_tensorflow.loss, numbers)

    def minibatches(self, count: int, size: int, rank: int) -> list[Any]:
        """Return (numbers, ids, labels) of minibatches; each worker has its own."""
        everything = criteo_tensorflow.minibatches(count * (rank + 1), size)
        return everything[count * rank :]


class FlightsModel:
    """The DeepFM of `model_zoo/flights`."""

    DIM = DIM

    def __init__(self) -> None:
        from flights.deepfm import HIDDEN, SIZES

        self._dense = []
        width = len(SIZES) * DIM
        for units in (*HIDDEN, 1):
            kernel = tf.random.uniform([width, units], -0.05, 0.05)
            self._dense += [tf.Variable(kernel), tf.Variable(tf.zeros([units]))]
            width = units
        self.step = _step(self._dense, self._loss, tf.TensorSpec([]))

    def minibatches(self, count: int, size: int, rank: int) -> list[Any]:
        """Return (nothing, ids, labels) of minibatches; each worker has its own."""
        from elasticdl import Mode
        from elasticdl._core import RecordReader
        from elasticdl.data.base import Metadata
        from flights import deepfm

        reader = RecordReader(sorted(FLIGHTS.glob("*.recordio"))[rank % 4])
        records = tf.data.Dataset.from_tensor_slices(reader.read(0, count * size))
        parsed = deepfm.feed(records, Mode.EVALUATION, Metadata()).batch(size)
        return [
            (np.float32(0), inputs["ids"].numpy(), labels.numpy()[:, 0].astype(np.float32))
            for inputs, labels in parsed
        ]

    @staticmethod
    def _loss(dense: Any, _nothing: Any, vectors: Any, weights: Any, labels: Any) -> Any:
        total = tf.reduce_sum(vectors, 1)
        pairs = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(vectors * vectors, 1), 1)
        hidden = tf.reshape(vectors, [tf.shape(vectors)[0], dense[0].shape[0]])
        for layer in (0, 2):
            hidden = tf.nn.relu(tf.matmul(hidden, dense[layer]) + dense[layer + 1])
        logits = (tf.matmul(hidden, dense[4]) + dense[5])[:, 0]
        logits += pairs + tf.reduce_sum(weights, [1, 2])
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def _step(dense: Any, loss: Any, inputs: Any) -> Any:
    """Return a function that updates `dense` and gives the gradients of unique rows."""

    @tf.function(input_signature=[inputs, *ROWS, POSITIONS, tf.TensorSpec([None])])
    def step(given, vectors, weights, positions, labels):  # type: ignore[no-untyped-def]
        with tf.GradientTape() as tape:
            rows = [tf.gather(vectors, positions), tf.gather(weights, positions)]
            tape.watch(rows)
            value = loss(dense, given, *rows, labels)
        gradients = tape.gradient(value, [*dense, *rows])
        for variable, gradient in zip(dense, gradients, strict=False):
            variable.assign_sub(LEARNING_RATE * gradient)
        count, flat = tf.shape(vectors)[0], tf.reshape(positions, [-1])
        return [
            tf.math.unsorted_segment_sum(tf.reshape(gradient, [-1, width]), flat, count)
            for gradient, width in zip(gradients[-2:], (DIM, 1), strict=True)
        ]

    return step
