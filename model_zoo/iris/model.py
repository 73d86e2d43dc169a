"""A small network that tells three kinds of iris by four measures from a table."""

import keras
import tensorflow as tf

from elasticdl.preprocessing.tabular import Label, Number, Table

TABLE = Table(
    [
        Number("sepal_length", mean=5.84, stddev=0.83),
        Number("sepal_width", mean=3.06, stddev=0.43),
        Number("petal_length", mean=3.76, stddev=1.76),
        Number("petal_width", mean=1.20, stddev=0.76),
    ],
    label=Label("kind", dtype="int64"),
)
feed = TABLE.feed


def forward():
    """Return the model: measures -> logits of the three kinds."""
    inputs = TABLE.inputs()
    hidden = keras.layers.Dense(16, activation="relu")(TABLE.encode(inputs).numbers)
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def loss(labels, predictions):
    """Return the mean cross-entropy."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.cast(tf.reshape(labels, [-1]), tf.int64), predictions
        )
    )


def optimizer(lr=0.02):
    """Return Adam."""
    return keras.optimizers.Adam(lr)


def eval_metrics_fn():
    """Return the share of correctly classified flowers."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
