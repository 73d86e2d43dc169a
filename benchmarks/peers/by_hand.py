"""Input pipelines for models of the zoo as an expert writes them by hand.

`feed` works record by record; these pipelines work on whole minibatches. Records are first put into
batches. `tf.io.parse_example` parses a minibatch in one operation. Minibatches are parsed in
parallel, and the next ones are made during a step. The records and the shuffle are the same.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

SHUFFLED = 1024  # records, as in every `feed` of the zoo


def minibatches(model_def: str, records: Any, size: int) -> Any:
    """Return the dataset of minibatches for a model of the zoo.

    Args:
        model_def: Its module, such as `criteo.deepfm`.
        records: A dataset of serialised `tf.train.Example`s.
        size: Records of a minibatch.
    """
    dataset = records.shuffle(SHUFFLED).repeat().batch(size, drop_remainder=True)
    return dataset.map(PARSERS[model_def], num_parallel_calls=tf.data.AUTOTUNE)


def parse_criteo(records: Any) -> Any:
    """Return features and labels of a minibatch."""
    from criteo.fields import NUM_NUMBERS, SIZES

    features = {
        "numbers": tf.io.FixedLenFeature([NUM_NUMBERS], tf.float32),
        "ids": tf.io.FixedLenFeature([len(SIZES)], tf.int64),
        "label": tf.io.FixedLenFeature([1], tf.int64),
    }
    examples = tf.io.parse_example(records, features)
    return examples, examples.pop("label")


def parse_flights(records: Any) -> Any:
    """Return features and labels of a minibatch."""
    from flights.deepfm import CROSSES, OFFSETS
    from flights.fields import FIELDS, LABEL

    features = {name: tf.io.FixedLenFeature([], tf.int64) for name in FIELDS}
    features[LABEL] = tf.io.FixedLenFeature([1], tf.int64)
    example = tf.io.parse_example(records, features)
    values = [example[name] for name in FIELDS]
    values += [example[a] * FIELDS[b] + example[b] for a, b in CROSSES]
    return {"ids": tf.stack(values, axis=1) + tf.constant(OFFSETS, tf.int64)}, example[LABEL]


def parse_digits(records: Any) -> Any:
    """Return features and labels of a minibatch."""
    features = {
        "image": tf.io.FixedLenFeature([28, 28], tf.float32),
        "label": tf.io.FixedLenFeature([1], tf.int64),
    }
    examples = tf.io.parse_example(records, features)
    return {"image": examples["image"] / 255.0}, tf.cast(examples["label"], tf.int32)


PARSERS = {
    "criteo.deepfm": parse_criteo,
    "flights.deepfm": parse_flights,
    "mnist.model": parse_digits,
}
