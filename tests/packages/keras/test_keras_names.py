"""Embeddings of strings, whose dictionary is kept."""

import json

import keras
import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

from elasticdl._core import keys_of_strings
from elasticdl.errors import ModelError
from elasticdl.layers import Embedding

pytestmark = pytest.mark.keras

WORDS = ["one", "two", "größe", "", "two", "one two three", "x" * 70, "one"]


def feed(dataset, mode, metadata):
    def split(record):
        features = {"word": record, "words": tf.stack([record, "two"])}
        return features if mode == "prediction" else (features, tf.strings.length(record))

    return dataset.map(split)


def model():
    """Looks up a feature as it is, one that is computed, and one hashed by the user."""
    word = keras.Input((), dtype="string", name="word")
    words = keras.Input((2,), dtype="string", name="words")
    lower = keras.layers.Lambda(tf.strings.lower, output_shape=(2,), dtype="string")(words)
    hashed = keras.layers.Lambda(
        lambda x: tf.strings.to_hash_bucket_fast(x, 1000), output_shape=(), dtype="int64"
    )(word)
    parts = [
        Embedding(2, name="plain", keep_names=True)(word),
        Embedding(2, name="lower", keep_names=True, combiner="mean", mask_zero=True)(lower),
        Embedding(2, input_dim=1000, name="hashed", keep_names=True)(hashed),
    ]
    return keras.Model([word, words], keras.layers.Dense(1)(keras.layers.concatenate(parts)))


def records():
    return [word.encode() for word in WORDS]


FUNCTIONS = {
    "model": model,
    "feed": feed,
    "loss": lambda labels, outputs: tf.reduce_mean((tf.cast(labels, "float32") - outputs) ** 2),
    "optimizer": lambda: keras.optimizers.SGD(0.01),
}


def test_strings_are_found_for_the_ids_that_were_made_of_them(new_job, as_records):
    job = new_job(records(), 4, **FUNCTIONS)
    assert [table.keep_names for table in job.description.tables] == [True] * 3
    for minibatch in job.backend.minibatches(as_records(records()), "training", 4, 0):
        ids, tables = job.backend.ids(minibatch), job.backend.id_sites()
        names = job.backend.names(minibatch, [0, 1, 2])
        for site in (0, 1):
            assert keys_of_strings(names[site]).tolist() == np.ravel(ids[site]).tolist()
        given = list(zip(tables, ids, names, strict=True))
        job.client.name_keys(given)
        job.step(minibatch)
    stats = json.loads(job.client.stats())[0]["tables"]
    assert {t["name"]: t["names"] for t in stats} == {"plain": 6, "lower": 6, "hashed": 6}


def test_an_exported_model_takes_strings_and_exported_tables_show_them(
    new_job, as_records, tmp_path
):
    job = new_job(records(), 4, **FUNCTIONS)
    for minibatch in job.backend.minibatches(as_records(records()), "training", 4, 0):
        names = job.backend.names(minibatch, [0, 1, 2])
        sites = zip(job.backend.id_sites(), job.backend.ids(minibatch), names, strict=True)
        job.client.name_keys(list(sites))
        job.step(minibatch)
    expected = job.predict(records(), 8)

    (written,) = job.client.export(json.dumps({"directory": str(tmp_path / "tables")}))
    table = next(t for t in json.loads(written)["tables"] if t["name"] == "plain")
    rows = pyarrow.parquet.read_table(tmp_path / "tables" / table["file"]["path"])
    assert sorted(rows["name"].to_pylist()) == sorted(set(WORDS))

    (tmp_path / "model").mkdir()
    job.export(tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model"))
    words = tf.constant(WORDS)
    features = {"word": words, "words": tf.stack([words, tf.fill([8], "two")], 1)}
    np.testing.assert_allclose(served.serve(features).numpy(), expected, rtol=1e-5)


def test_names_of_ids_that_are_not_made_of_strings_are_refused(new_job, as_records):
    def plain():
        word = keras.Input((), dtype="string", name="word")
        length = keras.layers.Lambda(tf.strings.length, output_shape=(), dtype="int32")(word)
        words = keras.Input((2,), dtype="string", name="words")
        rows = Embedding(1, name="length", keep_names=True)(length)
        return keras.Model([word, words], rows)

    job = new_job(records(), 4, **{**FUNCTIONS, "model": plain})
    minibatch = next(job.backend.minibatches(as_records(records()), "training", 4, 0))
    with pytest.raises(ModelError, match="'length' has keep_names, so it must be called with"):
        job.backend.names(minibatch, [0])


def test_the_empty_string_is_padding():
    layer = Embedding(3, combiner="sum", mask_zero=True)
    words = tf.ragged.constant([["one", "", "two"], ["one", "two"], [""]])

    rows = layer(words).numpy()

    np.testing.assert_array_equal(rows[0], rows[1])
    assert not rows[2].any()
    assert layer.compute_mask(tf.constant(["", "a"])) is None
