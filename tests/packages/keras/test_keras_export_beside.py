"""A model whose rows lie beside it answers what the job predicts, given the rows by whoever serves.

Nothing of elasticdl can be imported where it is served.
"""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode, preprocessing
from elasticdl.backends.exported import has_rows_beside
from elasticdl.checkpoints.exports import write_tables
from elasticdl.layers import Embedding
from tests.packages.keras.plain_model import FUNCTIONS, data

pytestmark = pytest.mark.keras

SCORE = """
import json, pathlib, sys
sys.modules["elasticdl"] = None
import numpy as np, pyarrow.parquet as parquet, tensorflow as tf
folder = pathlib.Path(sys.argv[1])
said = json.loads((folder / "model.json").read_text())
tables = {}
for table in said["tables"]:
    rows = parquet.read_table(folder / "tables" / table["name"]).to_pylist()
    tables[table["name"]] = {row["key"]: row["weights"] for row in rows}, table
def look_up(name, ids):
    rows, table = tables[name]
    unseen = [table["unseen"]] * table["dim"]
    found = [rows.get(key, unseen) for key in ids.numpy().ravel().tolist()]
    return tf.constant(np.array(found, np.float32).reshape(*ids.shape, table["dim"]))
model = tf.saved_model.load(str(folder / "saved_model"))
given = json.loads(sys.argv[2])
features = tf.nest.map_structure(tf.constant, given)
if isinstance(features, list):
    features = tuple(features)
rows = [look_up(name, ids) for name, ids in zip(said["lookups"], model.ids(features), strict=True)]
outputs = model.score(features, rows)
print(json.dumps(tf.nest.map_structure(lambda o: o.numpy().tolist(), outputs)))
"""


def served(job, folder, features):
    """Export with the rows beside the model, and score in a process without elasticdl."""
    dense, state = job.parameters()
    (folder / "model").mkdir()
    write_tables(folder / "model" / "tables", job.client.export, None, None)
    job.backend.export(folder / "model", dense, state, None)
    assert has_rows_beside(folder / "model")
    command = [sys.executable, "-c", SCORE, str(folder / "model"), json.dumps(features)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LINES = [b"a,x|y", b"b,", b"c,y", b"a,z|z|x"]
NEW = [b"a,x|new", b"new,y", b"c,"]  # of words that nobody has trained


def words_feed(dataset, mode, metadata):
    def parse(line):
        word, tags = tf.io.decode_csv(line, [[""], [""]])
        features = {"word": word[None], "tags": tags[None]}
        return features if mode == Mode.PREDICTION else (features, 1.0)

    return dataset.map(parse)


def words_model():
    word, tags = (keras.Input((1,), name=n, dtype="string") for n in ("word", "tags"))
    lists = preprocessing.ToRagged("|")(tags)
    sparse = preprocessing.ToSparse(sep="|")(tags)
    rows = [
        keras.layers.Flatten()(Embedding(2, name="words")(preprocessing.Hashing(2**63 - 1)(word))),
        preprocessing.SparseEmbedding(None, 2, combiner="mean", name="mean")(lists),
        preprocessing.SparseEmbedding(None, 2, combiner="sqrtn", name="sqrtn")(sparse),
        preprocessing.SparseEmbedding(None, 2, combiner="tile", max_ids=2, name="tile")(lists),
        keras.ops.cast(preprocessing.IndexLookup(["a", "b"], 2)(word), "float32"),
    ]
    x = keras.layers.BatchNormalization()(keras.layers.Concatenate()(rows))
    return keras.Model([word, tags], [keras.layers.Dense(1, name="score")(x), x])


@pytest.mark.long
def test_strings_combiners_preprocessing_and_several_outputs(new_job, tmp_path):
    job = new_job(
        LINES, 2, model=words_model, feed=words_feed, threshold=0,
        loss=lambda y, p: tf.reduce_mean(tf.square(p[0] - 2.0)),
        optimizer=lambda: keras.optimizers.Adagrad(0.3),
    )  # fmt: skip
    job.train(LINES * 8, 2)
    minibatch = next(job.backend.minibatches(iter(_records(NEW)), Mode.PREDICTION, 3, 0))
    given = job.given(minibatch, training=False)
    expected = job.backend.predict_step(minibatch, given.rows, given.dense, given.state)
    features = {"word": [["a"], ["new"], ["c"]], "tags": [["x|new"], ["y"], [""]]}

    found = served(job, tmp_path, features)

    assert len(found) == 2
    for ours, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-6)
    assert np.ptp(np.asarray(found[0])) > 0.01


def _records(values):
    from elasticdl.data.base import Records

    return [Records(0, values=values)]


class Twice(keras.Model):
    """One table that is looked up at two places, of features in a tuple."""

    def __init__(self):
        super().__init__()
        self.embedding = Embedding(3, name="items")
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        first, second = inputs
        return {"score": self.dense(self.embedding(first) * self.embedding(second))}


def test_a_subclassed_model_that_looks_a_table_up_twice(new_job, tmp_path):
    def feed(dataset, mode, metadata):
        def split(record):
            features = (record["a"], record["b"])
            return features if mode == Mode.PREDICTION else (features, record["y"])

        return dataset.map(split)

    data = {"a": np.arange(8), "b": np.arange(8)[::-1].copy(), "y": np.ones(8, np.float32)}
    job = new_job(
        data, 4, model=Twice, feed=feed, threshold=0,
        loss=lambda y, p: tf.reduce_mean(tf.square(p["score"][:, 0] - y)),
        optimizer=lambda: keras.optimizers.SGD(0.5),
    )  # fmt: skip
    for _ in range(5):
        job.train(data, 4)
    new = {"a": np.array([3, 100]), "b": np.array([4, 1]), "y": np.ones(2, np.float32)}
    minibatch = next(job.minibatches(new, 2))
    given = job.given(minibatch, training=False)
    expected = job.backend.predict_step(minibatch, given.rows, given.dense, given.state)["score"]

    # In the order of the minibatch.
    features = [part.numpy().tolist() for part in minibatch.features]
    found = served(job, tmp_path, features)["score"]

    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    said = json.loads((tmp_path / "model" / "model.json").read_text())
    assert said["lookups"] == ["items", "items"]
    assert said["outputs"] in (["score"], [])


def wide_and_deep():
    ids = keras.Input((13,), dtype="int64", name="ids")
    wide = keras.ops.sum(Embedding(1, name="wide")(ids), axis=1)
    deep = keras.layers.Flatten()(Embedding(8, name="deep")(ids))
    hidden = keras.layers.Dense(32, activation="relu")(deep)
    return keras.Model({"ids": ids}, wide + keras.layers.Dense(1)(hidden))


def test_branches_are_added_in_the_order_of_a_model_with_its_tables_inside(new_job, tmp_path):
    def feed(dataset, mode, metadata):
        def split(record):
            features = {"ids": record["ids"]}
            return features if mode == Mode.PREDICTION else (features, record["y"])

        return dataset.map(split)

    rng = np.random.default_rng(0)
    ids = rng.integers(0, 300, (256, 13))
    data = {"ids": ids, "y": rng.normal(size=256).astype(np.float32)}
    job = new_job(
        data, 64, model=wide_and_deep, feed=feed, threshold=0,
        loss=lambda y, p: tf.reduce_mean(tf.square(p[:, 0] - y)),
        optimizer=lambda: keras.optimizers.Adagrad(0.1),
    )  # fmt: skip
    job.train(data, 64)
    dense, state = job.parameters()
    for name, tables in (("inside", job.client), ("beside", None)):
        (tmp_path / name).mkdir()
        job.backend.export(tmp_path / name, dense, state, tables)
    inside = tf.saved_model.load(str(tmp_path / "inside"))
    beside = tf.saved_model.load(str(tmp_path / "beside" / "saved_model"))
    said = json.loads((tmp_path / "beside" / "model.json").read_text())
    tables = [table["name"] for table in said["tables"]]

    for rows in (1, 16, 256):
        features = {"ids": tf.constant(ids[:rows])}
        asked = zip(said["lookups"], beside.ids(features), strict=True)
        sites = [(tables.index(table), i.numpy()) for table, i in asked]
        found = job.client.pull(sites, training=False).rows
        scores = beside.score(features, [tf.constant(of_site) for of_site in found])

        assert scores.numpy().tobytes() == inside.serve(features).numpy().tobytes()


def test_weights_of_bfloat16_are_float32_in_the_file_for_whoever_serves(new_job, tmp_path):
    def model():
        x = keras.Input((4,))
        return keras.Model(x, keras.layers.Dense(1, dtype="bfloat16", name="last")(x))

    job = new_job(data(), 16, model=model, **FUNCTIONS)
    job.backend.export(tmp_path, *job.parameters(), None)
    with np.load(tmp_path / "dense.npz") as found:
        kinds = {name: found[name].dtype for name in found}
    assert kinds == {"last/kernel": np.float32, "last/bias": np.float32}
