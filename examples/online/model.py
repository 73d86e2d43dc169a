"""Will this user click on this item? A linear part and a small network on two ids.

All rows begin at zero, so an id that was never trained has no effect on the prediction.
"""

import keras
import tensorflow as tf

from elasticdl import Mode, batched
from elasticdl.layers import Embedding

DIM = 8
ZERO = {"embeddings_initializer": "zeros"}


def forward():
    """Return the model: a user and an item -> logit of a click."""
    inputs = {name: keras.Input((1,), dtype="int64", name=name) for name in ("user", "item")}
    weights = [Embedding(1, name=f"{n}_weight", **ZERO)(inputs[n]) for n in inputs]
    vectors = [Embedding(DIM, name=f"{n}_vector", **ZERO)(inputs[n]) for n in inputs]
    hidden = keras.layers.Flatten()(keras.ops.concatenate(vectors, axis=1))
    hidden = keras.layers.Dense(16, activation="relu")(hidden)
    linear = keras.ops.sum(keras.ops.concatenate(weights, axis=1), axis=1)
    return keras.Model(inputs, linear + keras.layers.Dense(1)(hidden))


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    labels = tf.cast(labels, tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=0.05):
    """Return Adam: its steps do not become smaller, so the model follows changes."""
    return keras.optimizers.Adam(lr)


def eval_metrics_fn():
    """Return the AUC. The job measures it on each window of event time before the training."""
    return {"auc": keras.metrics.AUC(from_logits=True)}


@batched
def feed(columns, mode, metadata):
    """Take the values of the messages as they are."""
    features = {name: columns[name][:, None] for name in ("user", "item")}
    return features if mode == Mode.PREDICTION else (features, columns["clicked"][:, None])
