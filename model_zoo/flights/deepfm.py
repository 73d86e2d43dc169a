"""DeepFM: will a flight that has not departed yet arrive more than 15 minutes late?

Each field of a flight is a category. A category has a weight (the linear part) and a vector of
`DIM` numbers. The factorization machine adds the products of all pairs of vectors. A small
network works on all vectors together. Guo et al., "DeepFM: A Factorization-Machine based Neural
Network for CTR Prediction", IJCAI 2017.
"""

import itertools

import keras
import tensorflow as tf

from elasticdl import Mode
from elasticdl.layers import Embedding, FactorizationMachine
from flights.fields import FIELDS, LABEL

DIM = 8
HIDDEN = (64, 32)
CROSSES = (("date", "origin"), ("date", "hour"), ("date", "carrier"))  # pairs as one category each
SIZES = [*FIELDS.values(), *(FIELDS[a] * FIELDS[b] for a, b in CROSSES)]
OFFSETS = [0, *itertools.accumulate(SIZES)]  # all categories share one range of ids
NUM_IDS = OFFSETS.pop()


def forward():
    """Return the model: ids of a flight's categories -> logit of a late arrival."""
    ids = keras.Input((len(SIZES),), dtype="int64", name="ids")
    weights = Embedding(1, input_dim=NUM_IDS, embeddings_initializer="zeros", name="weights")(ids)
    vectors = Embedding(DIM, input_dim=NUM_IDS, name="vectors")(ids)

    linear = keras.ops.sum(weights, axis=1)
    pairs = FactorizationMachine()(vectors)

    hidden = keras.layers.Flatten()(vectors)
    for units in HIDDEN:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    deep = keras.layers.Dense(1)(hidden)
    return keras.Model({"ids": ids}, linear + pairs + deep)


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    labels = tf.cast(labels, tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=0.1):
    """Return Adagrad: rare categories keep a large step, frequent ones slow down."""
    return keras.optimizers.Adagrad(lr, initial_accumulator_value=0.001)


def feed(dataset, mode, metadata):
    """Turn records (one serialised `tf.train.Example` each) into `{"ids": ...}` and labels."""
    features = {name: tf.io.FixedLenFeature([], tf.int64) for name in FIELDS}
    if mode != Mode.PREDICTION:
        features[LABEL] = tf.io.FixedLenFeature([1], tf.int64)

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        values = [example[name] for name in FIELDS]
        values += [example[a] * FIELDS[b] + example[b] for a, b in CROSSES]
        inputs = {"ids": tf.stack(values) + tf.constant(OFFSETS, tf.int64)}
        return inputs if mode == Mode.PREDICTION else (inputs, example[LABEL])

    dataset = dataset.map(parse)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(1024)
    return dataset


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {
        "auc": keras.metrics.AUC(from_logits=True),
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
    }
