"""`--run_eagerly`: what the user wrote runs as plain Python, and gives the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import DataError, ModelError
from elasticdl.job import Mode
from elasticdl.layers import Embedding

pytestmark = pytest.mark.keras

SIZE, STEPS = 8, 5


@pytest.fixture(autouse=True)
def traced_again():
    """Leave TensorFlow as it was for other tests."""
    yield
    tf.config.run_functions_eagerly(False)


def data():
    rng = np.random.default_rng(1)
    return [f"{a} {b}".encode() for a, b in rng.integers(0, 20, (SIZE * STEPS - 3, 2))]


class Model(keras.Model):
    def __init__(self, see=lambda rows: None):
        super().__init__()
        self.embedding = Embedding(3, name="first")
        self.again = keras.layers.Embedding(20, 3, name="small")
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.3)
        self.dense = keras.layers.Dense(1)
        self.see = see

    def call(self, ids, training=False):
        rows = self.embedding(ids)
        self.see(rows)
        flat = tf.reshape(rows + self.again(ids), [-1, 6])
        return self.dense(self.dropout(self.norm(flat, training=training), training=training))


def feed(dataset, mode, metadata):
    def parse(line):
        ids = tf.strings.to_number(tf.strings.split(line), tf.int64)
        ids = tf.ensure_shape(ids, [2])
        label = tf.cast(tf.reduce_sum(ids) % 2, tf.float32)
        return ids if mode == Mode.PREDICTION else (ids, label)

    dataset = dataset.map(parse)
    return dataset.shuffle(1000) if mode == Mode.TRAINING else dataset


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)


FUNCTIONS = {
    "loss": loss,
    "optimizer": lambda: keras.optimizers.Adam(0.05),
    "feed": feed,
    "eval_metrics_fn": lambda: {"auc": keras.metrics.AUC(from_logits=True)},
}


def results(new_job, run_eagerly):
    job = new_job(data(), SIZE, run_eagerly=run_eagerly, model=Model, **FUNCTIONS)
    losses = job.train(data(), SIZE, seed=4)
    assert len(losses) == STEPS
    metrics = job.evaluate(data(), SIZE)
    return losses, *job.parameters(), list(metrics.values()), job.predict(data(), SIZE)


def test_losses_metrics_and_predictions_are_those_of_the_traced_job(new_job):
    traced = results(new_job, run_eagerly=False)
    eager = results(new_job, run_eagerly=True)
    for ours, theirs in zip(eager, traced, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def doubled(ids, label):
    twice = tf.data.Dataset.from_tensors((ids, label))
    return twice.concatenate(twice.map(lambda ids, label: (ids, 1 - label)))


def test_a_feed_that_leaves_out_and_adds_examples_gives_what_the_pipeline_does(new_job):
    def changed(dataset, mode, metadata):
        fed = feed(dataset, mode, metadata)
        if mode == Mode.PREDICTION:
            return fed.filter(lambda ids: ids[0] % 3 > 0)
        return fed.filter(lambda ids, _: ids[0] % 3 > 0).flat_map(doubled).shuffle(7)

    found = []
    for run_eagerly in (False, True):
        job = new_job(
            data(), SIZE, run_eagerly=run_eagerly, **{**FUNCTIONS, "model": Model, "feed": changed}
        )
        losses = job.train(data(), SIZE, seed=4)
        found.append((losses, *job.parameters(), job.predict(data(), SIZE)))
    for traced, eager in zip(*found, strict=True):
        np.testing.assert_allclose(eager, traced, rtol=1e-3, atol=1e-5)


def test_values_can_be_seen_in_feed_model_and_loss_once_a_minibatch(new_job):
    seen = {"feed": [], "model": [], "loss": []}

    def seeing_feed(dataset, mode, metadata):
        def parse(line):
            seen["feed"].append(line.numpy().decode())
            ids = np.array(line.numpy().split(), np.int64)
            return ids, np.float32(0)

        return dataset.map(parse).shuffle(9)

    def seeing_loss(labels, predictions):
        seen["loss"].append(float(tf.reduce_mean(predictions).numpy()))
        return loss(labels, predictions)

    def note(rows):
        seen["model"].append(rows.numpy().shape)

    job = new_job(
        data(), SIZE, run_eagerly=True,
        **{**FUNCTIONS, "model": lambda: Model(note), "feed": seeing_feed, "loss": seeing_loss},
    )  # fmt: skip
    for values in seen.values():
        values.clear()
    job.train(data(), SIZE)
    assert sorted(seen["feed"]) == sorted(line.decode() for line in data())
    assert seen["model"] == [(SIZE, 2, 3)] * (STEPS - 1) + [(SIZE - 3, 2, 3)]
    assert len(seen["loss"]) == STEPS


def test_a_record_that_does_not_parse_is_named(new_job):
    job = new_job(data(), SIZE, run_eagerly=True, **{**FUNCTIONS, "model": Model})
    with pytest.raises(DataError, match="record 2 does not parse in feed: InvalidArgumentError"):
        job.train([b"1 2", b"3 4", b"5 six"], SIZE)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda dataset: dataset.interleave(lambda *x: dataset), "feed uses dataset.interleave"),
        (lambda dataset: dataset.filter(lambda *x: False), "leaves out the first .* records"),
        (lambda dataset: dataset.padded_batch(SIZE), "feed uses dataset.padded_batch"),
        (lambda dataset: dataset.batch(SIZE).shuffle(3), "feed uses shuffle after batch"),
        (lambda dataset: tf.data.Dataset.zip(dataset, dataset), "must return the dataset that it"),
    ],
)
def test_a_feed_that_needs_a_pipeline_is_refused(new_job, change, named):
    changed = {**FUNCTIONS, "feed": lambda *args: change(feed(*args)), "model": Model}
    with pytest.raises(ModelError, match=named):
        new_job(data(), SIZE, run_eagerly=True, **changed)


def test_a_model_that_looks_up_something_else_than_when_it_was_built_is_refused(new_job):
    class Fickle(Model):
        def call(self, ids, training=False):
            if training:
                self.embedding(ids)
            return super().call(ids, training)

    job = new_job(data(), SIZE, run_eagerly=True, **{**FUNCTIONS, "model": Fickle})
    with pytest.raises(
        ModelError, match=r"looks up embeddings first, first .* and looked up first"
    ):
        job.train(data(), SIZE)
