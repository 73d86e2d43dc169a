"""Matrix factorization: a user clicks on an item when their vectors point the same way."""

import keras
import tensorflow as tf

from elasticdl import Mode
from elasticdl.layers import Embedding


def forward(dim=8):
    """Return the model: a user and an item -> logit of a click."""
    user = keras.Input((), dtype="int32", name="user")
    item = keras.Input((), dtype="int32", name="item")
    user_vector = Embedding(dim, embeddings_initializer="normal", name="users")(user)
    item_vector = Embedding(dim, embeddings_initializer="normal", name="items")(item)
    logit = keras.layers.Dot(axes=1)([user_vector, item_vector])
    return keras.Model({"user": user, "item": item}, logit)


def loss(labels, predictions):
    """Return the mean binary cross-entropy."""
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions)
    )


def optimizer(lr=0.1):
    """Return Adagrad, which adapts the step to each row of a table."""
    return keras.optimizers.Adagrad(lr, initial_accumulator_value=1e-5)


def feed(dataset, mode, metadata):
    """Turn lines `user,item,clicked` into features and labels."""

    def parse(line):
        user, item, clicked = tf.io.decode_csv(line, [[0], [0], [0.0]])
        features = {"user": user, "item": item}
        return features if mode == Mode.PREDICTION else (features, [clicked])

    dataset = dataset.map(parse)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(1024)
    return dataset


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {"auc": keras.metrics.AUC(from_logits=True)}
