"""A click model with the image tower of XDL's example: 4,096 numbers of an image become 12.

Records are lines of ids: the ten images that a user has seen, and five others. The numbers of an
image are drawn once and not trained, as those of a net that was trained before.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from elasticdl import batched
from elasticdl.layers import Embedding, Remote

IMAGES, OTHERS, WIDTH = 10, 5, 4_096


def forward() -> keras.Model:
    """Return the model; its tower is in `Remote`."""
    ids = keras.Input((IMAGES + OTHERS,), dtype="int64")
    layers = [
        Embedding(WIDTH, embeddings_initializer="uniform", trainable=False, name="pixels"),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(12),
    ]
    seen = Remote(keras.Sequential(layers), name="images")(ids[:, :IMAGES])
    rows = Embedding(16, name="others")(ids[:, IMAGES:])
    parts = [keras.layers.Flatten()(part) for part in (seen, rows)]
    hidden = keras.layers.Dense(64, activation="relu")(keras.layers.Concatenate()(parts))
    return keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(hidden))


def loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Return the cross entropy."""
    return keras.losses.BinaryCrossentropy()(labels, predictions)


def optimizer() -> keras.optimizers.Optimizer:
    """Return Adagrad."""
    return keras.optimizers.Adagrad(0.01)


@batched
def feed(records, mode, metadata):  # type: ignore[no-untyped-def]
    """Parse lines of ids; the label is made of the first one."""
    ids = tf.strings.to_number(tf.strings.split(records, " ").to_tensor(), tf.int64)
    return ids, tf.cast(ids[:, :1] % 2, tf.float32)
