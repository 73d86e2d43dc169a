"""Rust parses `tf.train.Example`s where `feed` begins with it, and gives what TensorFlow gives."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode
from elasticdl.data.base import Metadata, Records
from elasticdl.data.example import encode_examples
from elasticdl.errors import DataError
from elasticdl.packages.keras.feed.compile import relaxed
from elasticdl.packages.keras.feed.examples import ParsedByRust, UnfitError
from elasticdl.packages.keras.feed.proof import same
from elasticdl.packages.keras.feed.records import RecordBatch, string_tensor
from elasticdl.packages.keras.feed.runner import FeedRunner
from elasticdl.packages.keras.model.function import StructuredFunction

pytestmark = pytest.mark.keras

N = 200
RNG = np.random.default_rng(0)
LISTS = [RNG.integers(0, 9, RNG.integers(0, 4)).tolist() for _ in range(N)]
WORDS = [f"w{i % 7}" if i % 5 else None for i in range(N)]
RECORDS = encode_examples(
    {
        "ids": RNG.integers(-(2**62), 2**62, (N, 3)),
        "x": RNG.normal(size=N).astype(np.float32),
        "maybe": [float(i) if i % 3 else None for i in range(N)],
        "word": WORDS,
        "list": LISTS,
        "label": RNG.integers(0, 2, N),
    }
)
FIXED = {
    "ids": tf.io.FixedLenFeature([3], tf.int64),
    "x": tf.io.FixedLenFeature([], tf.float32),
    "maybe": tf.io.FixedLenFeature([1], tf.float32, [-1.5]),
    "word": tf.io.FixedLenFeature([], tf.string, "none"),
    "label": tf.io.FixedLenFeature([1], tf.int64),
}


def batch_of(records):
    return RecordBatch(records, np.arange(len(records)))


def function_of(run, records=RECORDS):
    return StructuredFunction(run, relaxed(batch_of(records).tensors()))


def fixed(records):
    return tf.io.parse_example(records, FIXED)


def with_lists(records):
    lists = {"list": tf.io.VarLenFeature(tf.int64), "word": tf.io.VarLenFeature(tf.string)}
    return tf.io.parse_example(records, lists)


def ragged(records):
    return tf.io.parse_example(records, {"list": tf.io.RaggedFeature(tf.int64)})


def computed(records):
    parsed = fixed(records)
    numbers = tf.range(tf.shape(records)[0])
    return {"n": numbers, "x": parsed["x"] * 2.0, "ids": parsed["ids"]}, parsed["label"]


@pytest.mark.parametrize("run", [fixed, with_lists, ragged, computed])
@pytest.mark.parametrize("count", [1, 2, N])
def test_what_rust_parses_is_what_tensorflow_parses(run, count):
    function = function_of(run)
    by_rust = ParsedByRust(function)
    batch = batch_of(RECORDS[:count])

    found = by_rust(batch)

    assert same(function(batch.tensors()), found) == ""
    assert by_rust.num_undecoded == 0


def test_a_feed_of_maps_is_parsed_by_rust_and_the_job_says_so(caplog):
    def feed(dataset, mode, metadata):
        def parse(record):
            example = tf.io.parse_single_example(record, FIXED)
            label = example.pop("label")
            example["bucket"] = tf.strings.to_hash_bucket_fast(example["word"], 10)
            return example, label

        return dataset.map(parse)

    runner = FeedRunner(feed, Metadata())
    with caplog.at_level(logging.INFO):
        (minibatch,) = runner.minibatches(iter([Records(0, RECORDS)]), Mode.TRAINING, N, 0)

    assert "feed runs vectorised in mode training; Rust parses the records" in caplog.text
    expected = fixed(tf.constant(RECORDS))
    np.testing.assert_array_equal(minibatch.features["ids"], expected["ids"])
    np.testing.assert_array_equal(minibatch.features["maybe"], expected["maybe"])
    buckets = tf.strings.to_hash_bucket_fast(expected["word"], 10)
    np.testing.assert_array_equal(minibatch.features["bucket"], buckets)


def test_a_record_that_rust_does_not_decode_goes_to_tensorflow():
    function = function_of(lambda records: tf.io.parse_example(records, {"x": FIXED["x"]}))
    by_rust = ParsedByRust(function)
    # Two values of one feature, merged: TensorFlow takes the last one.
    twice = [RECORDS[0] + RECORDS[1]]

    found = by_rust(batch_of(twice))

    assert by_rust.num_undecoded == 1
    assert same(function(tf.constant(twice)), found) == ""


def test_a_record_that_lacks_a_feature_is_named():
    def feed(dataset, mode, metadata):
        return dataset.map(
            lambda record: (tf.io.parse_single_example(record, {"x": FIXED["x"]})["x"], 0.0)
        )

    records = [*RECORDS[:20], b"", *RECORDS[20:]]
    runner = FeedRunner(feed, Metadata())

    with pytest.raises(DataError, match="record 20 does not parse in feed"):
        list(runner.minibatches(iter([Records(0, records)]), Mode.TRAINING, 8, 0))


def outside(records):
    return fixed(records)["x"], tf.strings.length(records)


def twice(records):
    return fixed(records)["x"], fixed(records)["ids"]


def padded(records):
    spec = {"list": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    return tf.io.parse_example(records, spec)["list"]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (outside, "uses the records in another way"),
        (twice, "parses the records more than once"),
        (padded, "'list' is padded to the longest record"),
        (lambda records: tf.strings.length(records), "does not begin with parse_single_example"),
    ],
)
def test_what_rust_cannot_parse_says_why(run, why):
    with pytest.raises(UnfitError, match=why):
        ParsedByRust(function_of(run))


@pytest.mark.parametrize(
    "values",
    [[b"a", b"", b"bc"], [b""], [b"", b""], [b"x\x1fy", b"z"], [b"\xff\x00", b"q"], []],
)
def test_strings_are_cut_by_tensorflow_as_they_were(values):
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int64)

    assert string_tensor(b"".join(values), offsets).numpy().tolist() == values
