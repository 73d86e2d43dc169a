"""A model with a tower whose layers all learn."""

import keras
import tensorflow as tf

from elasticdl import batched
from elasticdl.layers import Embedding, Remote


def forward():
    ids = keras.Input((3,), dtype="int64")
    tower = keras.Sequential([Embedding(16), keras.layers.Dense(8, "tanh"), keras.layers.Dense(4)])
    images = keras.layers.Flatten()(Remote(tower, name="images")(ids))
    beside = keras.layers.Flatten()(Embedding(4)(ids))
    both = keras.layers.Concatenate()([images, beside])
    return keras.Model(ids, keras.layers.Dense(1, "sigmoid")(both))


def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy()(labels, predictions)


def optimizer():
    return keras.optimizers.Adagrad(0.1)


@batched
def feed(records, mode, metadata):
    ids = tf.strings.to_number(tf.strings.split(records, " ").to_tensor(), tf.int64)[:, :3]
    return ids, tf.cast(ids[:, :1] % 2, tf.float32)
