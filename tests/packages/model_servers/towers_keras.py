"""A model whose tower counts: rows and a variable within it grow by one with each occurrence."""

import keras
import tensorflow as tf

from elasticdl import batched
from elasticdl.layers import Embedding, Remote


@keras.saving.register_keras_serializable(package="towers")
class Counted(keras.layers.Layer):
    """Adds a variable to what it is given, so that it has the gradient of each occurrence."""

    def build(self, input_shape):
        self.count = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="count")

    def call(self, inputs):
        return inputs + self.count


def forward():
    ids = keras.Input((3,), dtype="int64")
    tower = keras.Sequential([Embedding(2, embeddings_initializer="zeros", name="met"), Counted()])
    met = Remote(tower, name="meetings")(ids)
    beside = Embedding(2, embeddings_initializer="zeros", name="beside")(ids)
    return keras.Model(ids, keras.layers.Flatten()(met + beside))


def loss(labels, predictions):
    return -tf.reduce_sum(predictions)


def optimizer():
    return keras.optimizers.SGD(1.0)


@batched
def feed(records, mode, metadata):
    ids = tf.strings.to_number(tf.strings.split(records, " ").to_tensor(), tf.int64)[:, :3]
    return ids, tf.zeros_like(ids[:, 0])
