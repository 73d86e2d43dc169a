"""A `feed` that is declared batched is given many records at once: strings, or columns."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode, batched
from elasticdl.data.base import Metadata, Records
from elasticdl.data.example import encode_examples
from elasticdl.errors import DataError, ModelError
from elasticdl.packages.keras.feed.runner import FeedRunner

pytestmark = pytest.mark.keras

N = 100
SPEC = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
X = np.arange(2 * N, dtype=np.float32).reshape(N, 2)
EXAMPLES = encode_examples({"x": X, "y": np.arange(N)})


@batched
def of_examples(records, mode, metadata):
    example = tf.io.parse_example(records, SPEC)
    label = example.pop("y")
    return example if mode == Mode.PREDICTION else (example, label)


@batched
def of_columns(columns, mode, metadata):
    features = {"x": columns["x"] / 2, "word": tf.strings.length(columns["word"])}
    return features if mode == Mode.PREDICTION else (features, columns["y"])


def minibatches(feed, records, mode=Mode.TRAINING, size=16, seed=0, run_eagerly=False):
    runner = FeedRunner(feed, Metadata(), run_eagerly)
    return list(runner.minibatches(iter([records]), mode, size, seed))


def columns():
    return Records(columns={"x": X, "y": np.arange(N), "word": np.array(["é", "ab"] * 50, object)})


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_serialised_records_come_as_a_vector(run_eagerly, caplog):
    with caplog.at_level(logging.INFO):
        found = minibatches(of_examples, Records(0, EXAMPLES), run_eagerly=run_eagerly)

    assert [m.num_records for m in found] == [16] * 6 + [4]
    labels = np.concatenate([m.labels for m in found])
    assert sorted(labels.tolist()) == list(range(N))
    assert labels.tolist() != list(range(N))  # an order drawn for the task
    np.testing.assert_array_equal(np.concatenate([m.features["x"] for m in found]), X[labels])
    if not run_eagerly:
        assert "of_examples runs batched in mode training; Rust parses the records" in caplog.text


def test_columns_come_without_a_record_being_built(caplog):
    with caplog.at_level(logging.INFO):
        found = minibatches(of_columns, columns(), Mode.EVALUATION)

    np.testing.assert_array_equal(np.concatenate([m.features["x"] for m in found]), X / 2)
    assert found[0].features["word"].numpy().tolist() == [2] * 16
    assert "of_columns runs batched in mode evaluation; records come as columns" in caplog.text


def test_predictions_are_told_their_records():
    found = minibatches(of_columns, columns(), Mode.PREDICTION)

    assert np.concatenate([m.record_numbers for m in found]).tolist() == list(range(N))


def test_the_same_task_gives_the_same_minibatches():
    one, other = (minibatches(of_columns, columns(), seed=3) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)


def test_a_feed_that_looks_at_the_whole_minibatch_is_given_one_at_a_time():
    @batched
    def centred(columns, mode, metadata):
        return columns["x"] - tf.reduce_mean(columns["x"], axis=0), columns["y"]

    for minibatch in minibatches(centred, columns(), Mode.EVALUATION):
        np.testing.assert_allclose(np.mean(minibatch.features, axis=0), 0, atol=1e-4)


def test_a_record_that_does_not_parse_is_named():
    records = [*EXAMPLES[:37], b"torn", *EXAMPLES[37:]]

    with pytest.raises(DataError, match="record 37 does not parse in of_examples"):
        minibatches(of_examples, Records(0, records))


@batched
def drawing(columns, mode, metadata):
    return columns["x"] + tf.random.uniform([2]), columns["y"]


@batched
def a_dataset(columns, mode, metadata):
    return tf.data.Dataset.from_tensor_slices(columns)


@batched
def no_labels(columns, mode, metadata):
    return columns["x"]


@batched
def raising(columns, mode, metadata):
    return columns["z"]


@batched
def one_number(columns, mode, metadata):
    return tf.reduce_sum(columns["x"]), columns["y"]


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        (drawing, "drawing is batched and draws random numbers"),
        (a_dataset, "gives features and labels, and no dataset"),
        (no_labels, r"no_labels must give \(features, labels\)"),
        (raising, "^raising raised KeyError in mode training: 'z'; the records have the columns "),
        (one_number, "expected one row for each record"),
    ],
)
def test_a_batched_feed_that_cannot_be_used_is_told_what_to_change(feed, says):
    with pytest.raises(ModelError, match=says):
        minibatches(feed, columns())
