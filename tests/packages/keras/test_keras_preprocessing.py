"""Preprocessing layers in a job's model, and in what it exports."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import preprocessing
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.layers import Embedding

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]

RECORDS = [b"3.5,12,cat,a|b", b"-1,,dog,", b"900.25,7,cow,b", b"0,0,cat,c|c|a"]
HASHED = 1000  # small enough for a float32


def feed(dataset, mode, metadata):
    def parse(line):
        number, count, animal, tags = tf.io.decode_csv(line, [[0.0], [""], [""], [""]])
        features = {"number": number, "count": count, "animal": animal, "tags": tags}
        features = {name: value[None] for name, value in features.items()}
        return features if mode == Mode.PREDICTION else (features, number)

    return dataset.map(parse)


def model():
    number = keras.Input((1,), name="number")
    count, animal, tags = (
        keras.Input((1,), name=name, dtype="string") for name in ("count", "animal", "tags")
    )
    places = preprocessing.Discretization([0.0, 10.0])(number)
    index = preprocessing.IndexLookup(["cat", "dog"], 2)(animal)
    lists = preprocessing.ToRagged("|")(tags)
    sparse = preprocessing.ToSparse(sep="|")(tags)
    cross = preprocessing.HashedCross(7_000_000_000)([animal, lists])
    values = [
        preprocessing.Normalizer(2.0, 4.0)(number),
        places,
        preprocessing.LogRound(5, 4)(number),
        preprocessing.RoundIdentity(100, 99)(number),
        preprocessing.ToNumber("float32", -1)(count),
        index,
        preprocessing.Hashing(HASHED)(animal),
    ]
    ids = preprocessing.ConcatenateWithOffset([0, 3])([places, index])
    rows = [
        keras.layers.Flatten()(Embedding(2, input_dim=7, name="shared")(ids)),
        preprocessing.SparseEmbedding(None, 2, combiner="mean", name="tags_mean")(lists),
        preprocessing.SparseEmbedding(None, 2, combiner="sqrtn", name="tags_sqrtn")(sparse),
        preprocessing.SparseEmbedding(None, 2, combiner="tile", max_ids=2, name="tile")(lists),
        preprocessing.SparseEmbedding(None, 2, combiner="sum", name="cross")(cross),
    ]
    outputs = keras.layers.Concatenate()([keras.ops.cast(v, "float32") for v in values] + rows)
    return keras.Model([number, count, animal, tags], outputs)


VALUES = np.array(
    [
        [0.375, 1, 1, 4, 12, 0],
        [-0.75, 0, 4, 99, -1, 1],
        [224.5625, 2, 4, 99, 7, 2],
        [-0.5, 1, 4, 0, 0, 0],
    ]
)  # of RECORDS: the numbers and the index; the hash stands in its own column

# Nothing of elasticdl can be imported here.
SCORE = """
import json, sys
sys.modules["elasticdl"] = None
import tensorflow as tf
features = {name: tf.constant(values) for name, values in json.loads(sys.argv[2]).items()}
loaded = tf.saved_model.load(sys.argv[1])
print(json.dumps([
    loaded.serve(features).numpy().tolist(),
    loaded.signatures["serving_default"](**features)["output_0"].numpy().tolist(),
]))
"""


@pytest.mark.long
def test_layers_train_in_a_job_and_answer_in_plain_tensorflow(new_job, tmp_path):
    job = new_job(
        RECORDS, 2, model=model, feed=feed,
        loss=lambda y, p: tf.reduce_mean(tf.reduce_sum(p, 1)),
        optimizer=lambda: keras.optimizers.SGD(0.1),
    )  # fmt: skip
    before = job.predict(RECORDS, 2)

    job.train(RECORDS * 8, 2)
    job.export(tmp_path)
    predicted = job.predict(RECORDS, 4)

    np.testing.assert_allclose(predicted[:, :6], VALUES, rtol=1e-6)
    hashes = preprocessing.Hashing(HASHED)(tf.constant(["cat", "dog", "cow", "cat"]))
    np.testing.assert_array_equal(predicted[:, 6], hashes)
    moved = np.abs(predicted - before)[:, 7:]
    assert moved[0].min() > 0.1  # every table is trained
    # "-1,,dog," has no tags: no id, no row, no gradient.
    np.testing.assert_array_equal(predicted[1, 11:], 0)
    features = {
        "number": [[3.5], [-1.0], [900.25], [0.0]],
        "count": [["12"], [""], ["7"], ["0"]],
        "animal": [["cat"], ["dog"], ["cow"], ["cat"]],
        "tags": [["a|b"], [""], ["b"], ["c|c|a"]],
    }
    command = [sys.executable, "-c", SCORE, str(tmp_path), json.dumps(features)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    for served in json.loads(done.stdout):
        np.testing.assert_allclose(served, predicted, rtol=1e-6)


def test_ragged_and_sparse_features_of_feed_reach_the_layers(new_job, tmp_path):
    def lists(dataset, mode, metadata):
        def parse(line):
            return tf.strings.to_number(tf.strings.split(line), tf.int64), 0.0

        def fold(ids, label):
            features = {"ragged": ids, "sparse": ids.to_sparse()}
            return features if mode == Mode.PREDICTION else (features, label)

        return dataset.map(parse).ragged_batch(2).map(fold)

    def forward():
        ragged = keras.Input((None,), dtype="int64", ragged=True, name="ragged")
        sparse = keras.Input((None,), dtype="int64", sparse=True, name="sparse")
        ids = preprocessing.ConcatenateWithOffset([0, 100])(
            [preprocessing.RoundIdentity(50, 49)(ragged), preprocessing.ToRagged()(sparse)]
        )
        rows = preprocessing.SparseEmbedding(200, 2, combiner="sum", name="table")(ids)
        return keras.Model({"ragged": ragged, "sparse": sparse}, rows)

    words = [b"1 2 60", b"3"]
    job = new_job(
        words, 2, model=forward, feed=lists, loss=lambda y, p: tf.reduce_sum(p),
        optimizer=lambda: keras.optimizers.SGD(1.0),
    )  # fmt: skip
    minibatch = next(iter(job.minibatches(words, 2)))
    (ids,) = job.backend.ids(minibatch)
    assert ids.tolist() == [1, 2, 49, 101, 102, 160, 3, 103]

    job.train(words, 2)
    job.export(tmp_path)

    loaded = tf.saved_model.load(str(tmp_path))
    served = loaded.serve(minibatch.features)
    np.testing.assert_allclose(served, job.predict(words, 2), rtol=1e-6)


def test_a_file_of_words_has_one_word_a_line_whatever_is_in_the_word(tmp_path):
    words = tmp_path / "words.txt"
    words.write_bytes("\ufeffcat\r\nwild\u2028 dog\r\nsea\x85lion\r\ncow".encode())
    assert preprocessing.IndexLookup(words).vocabulary == [
        "cat",
        "wild\u2028 dog",
        "sea\x85lion",
        "cow",
    ]


def test_a_file_that_is_no_text_is_no_vocabulary(tmp_path):
    words = tmp_path / "words.txt"
    words.write_bytes("k\xf8benhavn\n".encode("latin-1"))
    with pytest.raises(ModelError, match=r"IndexLookup .*words\.txt.*give a file of text in UTF-8"):
        preprocessing.IndexLookup(words)


def test_words_in_bytes_are_found_and_words_without_an_order_are_refused():
    given = np.array([b"cat", "k\xf8benhavn".encode()])
    layer = preprocessing.IndexLookup(given)
    assert layer(tf.constant(["k\xf8benhavn", "cow", "cat"])).numpy().tolist() == [1, 2, 0]
    with pytest.raises(ModelError, match=r"IndexLookup .* is a set.* expected a list, such as"):
        preprocessing.IndexLookup({"cat", "dog"})
    with pytest.raises(ModelError, match=r"vocabulary has b'\\xf8', which is not text in UTF-8"):
        preprocessing.IndexLookup([b"cat", b"\xf8"])


@pytest.mark.timeout(30)
def test_a_word_that_is_twice_at_the_end_of_a_large_vocabulary_is_found_at_once():
    words = [f"word-{number}" for number in range(200_000)]
    with pytest.raises(ModelError, match="'word-199999' more than once"):
        preprocessing.IndexLookup([*words, "word-199999"])
