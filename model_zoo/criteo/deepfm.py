"""DeepFM on 13 numbers and 26 categories: will the advertisement be clicked?

Each category has a weight (the linear part) and a vector of `DIM` numbers. Each number scales its
own weight and vector. The factorization machine adds the products of all pairs of vectors. A small
network works on all vectors together. Guo et al., "DeepFM: A
Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017.
"""

import keras
import tensorflow as tf

from criteo.fields import NUM_IDS, NUM_NUMBERS, SIZES
from elasticdl import Mode, batched
from elasticdl.layers import Embedding, FactorizationMachine

DIM = 8
HIDDEN = (128, 64)


class ScaledVectors(keras.layers.Layer):
    """Makes a vector of `dim` for each of n numbers, scaled by it: (b, n) -> (b, n, dim)."""

    def __init__(self, dim, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim

    def build(self, shape):
        """Make the vectors."""
        self.vectors = self.add_weight(
            shape=(shape[-1], self.dim),
            initializer=keras.initializers.RandomUniform(-0.05, 0.05),
            name="vectors",
        )

    def call(self, numbers):
        """Scale the vectors."""
        return numbers[:, :, None] * self.vectors

    def get_config(self):
        """Return the arguments of the layer."""
        return {**super().get_config(), "dim": self.dim}


def forward():
    """Return the model: numbers and ids -> logit of a click."""
    numbers = keras.Input((NUM_NUMBERS,), dtype="float32", name="numbers")
    ids = keras.Input((len(SIZES),), dtype="int64", name="ids")
    weights = Embedding(1, input_dim=NUM_IDS, embeddings_initializer="zeros", name="weights")(ids)
    vectors = Embedding(DIM, input_dim=NUM_IDS, name="vectors")(ids)
    vectors = keras.ops.concatenate([ScaledVectors(DIM)(numbers), vectors], axis=1)

    linear = keras.ops.sum(weights, axis=1) + keras.layers.Dense(1, use_bias=False)(numbers)
    pairs = FactorizationMachine()(vectors)

    hidden = keras.layers.Flatten()(vectors)
    for units in HIDDEN:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    deep = keras.layers.Dense(1)(hidden)
    return keras.Model({"numbers": numbers, "ids": ids}, linear + pairs + deep)


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    labels = tf.cast(labels, tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=0.05):
    """Return Adagrad: rare ids keep a large step, frequent ones slow down."""
    return keras.optimizers.Adagrad(lr)


def sgd(lr=0.05):
    """Return plain gradient descent, for `--optimizer=sgd`."""
    return keras.optimizers.SGD(lr)


def adam(lr=0.001):
    """Return Adam, for `--optimizer=adam`."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Turn records (one serialised `tf.train.Example` each) into features and labels."""
    features = {
        "numbers": tf.io.FixedLenFeature([NUM_NUMBERS], tf.float32),
        "ids": tf.io.FixedLenFeature([len(SIZES)], tf.int64),
    }
    if mode != Mode.PREDICTION:
        features["label"] = tf.io.FixedLenFeature([1], tf.int64)

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        label = example.pop("label", None)
        return example if label is None else (example, label)

    dataset = dataset.map(parse)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(1024)
    return dataset


@batched
def feed_columns(columns, mode, metadata):
    """Take the columns of Parquet files as they are, for `--feed=feed_columns`."""
    features = {"numbers": columns["numbers"], "ids": columns["ids"]}
    return features if mode == Mode.PREDICTION else (features, columns["label"][:, None])


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {"auc": keras.metrics.AUC(from_logits=True)}
