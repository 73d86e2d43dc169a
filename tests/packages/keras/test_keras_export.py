"""An exported model serves in a process that has no elasticdl, and evaluates as the job did."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode
from elasticdl.data.base import Metadata, Records
from elasticdl.errors import CheckpointError, ModelError
from elasticdl.layers import Embedding
from elasticdl.packages.keras import sorted_rows
from elasticdl.packages.keras.saved_tables import hash_of

pytestmark = pytest.mark.keras

NAMES = ["red", "green", "blue"]


def data(n=48, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 30, (n, 2))
    return {
        "ids": ids,
        "name": np.array([NAMES[k] for k in rng.integers(0, 3, n)], object),
        "label": (ids[:, 0] % 2).astype(np.float32)[:, None],
    }


def model():
    ids = keras.Input((2,), dtype="int64", name="ids")
    name = keras.Input((), dtype="string", name="name")
    known = Embedding(4, input_dim=30, name="known")(ids)
    free = Embedding(4, name="free")(ids * 1_000_000_007)
    moved = keras.layers.Embedding(5000, 4, name="moved")(ids)
    colour = keras.layers.StringLookup(vocabulary=NAMES, output_mode="one_hot")(name)
    x = keras.layers.Concatenate()(
        [keras.layers.Flatten()(known + free * 2.0), keras.layers.Flatten()(moved), colour]
    )
    x = keras.layers.BatchNormalization()(x)
    return keras.Model({"ids": ids, "name": name}, {"score": keras.layers.Dense(1)(x)})


def loss(labels, predictions):
    return tf.square(labels - predictions["score"])


def feed(dataset, mode, metadata):
    def split(record):
        features = {"ids": record["ids"], "name": record["name"]}
        return features if mode == Mode.PREDICTION else (features, record["label"])

    return dataset.map(split)


FUNCTIONS = {
    "model": model,
    "loss": loss,
    "optimizer": lambda: keras.optimizers.Adagrad(0.1),
    "feed": feed,
    "eval_metrics_fn": lambda: {
        "score": {"auc": keras.metrics.AUC(from_logits=True), "mean": lambda y, p: p}
    },
}

SERVE = """
import sys, json
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
features = json.load(sys.stdin)
features = {"ids": tf.constant(features["ids"], tf.int64), "name": tf.constant(features["name"])}
by_call = loaded.serve(features)["score"].numpy()
by_signature = loaded.signatures["serving_default"](**features)["score"].numpy()
assert np.array_equal(by_call, by_signature)
assert not any(name.startswith("elasticdl") for name in sys.modules)
print(json.dumps(by_call.tolist()))
"""


@pytest.fixture
def trained(new_job):
    job = new_job(data(), 16, threshold=10_000, **FUNCTIONS)
    assert {t.name for t in job.description.tables} == {"known", "free", "moved"}
    for seed in range(10):
        job.train(data(), 16, seed)
    assert job.losses[-1] < job.losses[0]
    return job


def test_it_serves_without_elasticdl_what_the_job_predicts(trained, tmp_path):
    trained.export(tmp_path)
    rows = data(8, seed=1)
    expected = trained.backend
    minibatches = expected.minibatches(iter([Records(0, columns=rows)]), Mode.PREDICTION, 8, 0)
    minibatch = next(minibatches)
    given = trained.given(minibatch, training=False)
    predictions = expected.predict_step(minibatch, given.rows, given.dense, given.state)

    features = json.dumps({"ids": rows["ids"].tolist(), "name": rows["name"].tolist()})
    served = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)],
        input=features, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=250,
    )  # fmt: skip

    assert served.returncode == 0, served.stderr
    np.testing.assert_allclose(
        json.loads(served.stdout), predictions["score"], rtol=1e-4, atol=1e-5
    )


def test_ids_that_were_never_trained_read_as_the_centre_of_their_initializer(new_job, tmp_path):
    def model():
        ids = keras.Input((1,), dtype="int64", name="ids")
        initializer = keras.initializers.RandomUniform(1.0, 3.0)
        rows = Embedding(2, embeddings_initializer=initializer, name="free")(ids)
        sized = Embedding(2, 100, embeddings_initializer="ones", name="sized")(ids)
        return keras.Model({"ids": ids}, keras.ops.concatenate([rows[:, 0], sized[:, 0]], 1))

    def feed(dataset, mode, metadata):
        return dataset.map(lambda r: ({"ids": r["ids"]}, r["label"]))

    trained = {"ids": np.array([[3], [5]]), "label": np.zeros(2, np.float32)}
    job = new_job(
        trained, 2, model=model, loss=lambda y, p: tf.reduce_sum(p), feed=feed,
        optimizer=lambda: keras.optimizers.SGD(0.5),
    )  # fmt: skip
    job.train(trained, 2)
    job.export(tmp_path)
    loaded = tf.saved_model.load(str(tmp_path))
    served = loaded.serve({"ids": tf.constant([[3], [4], [99]], tf.int64)}).numpy()

    assert np.all((served[0, :2] > 0.4) & (served[0, :2] < 2.6))
    np.testing.assert_allclose(served[0, 2:], 0.5)
    np.testing.assert_array_equal(served[1:], [[2, 2, 1, 1]] * 2)


def test_the_saved_model_evaluates_and_predicts_as_the_job_did(trained, tmp_path, spec_of):
    from elasticdl.packages.keras.predictor import SavedModelPredictor

    rows = data(40, seed=2)
    expected = trained.evaluate(rows, 16)
    trained.export(tmp_path)

    backend = SavedModelPredictor(spec_of(**FUNCTIONS), Metadata(), tmp_path)
    empty = (np.zeros(0, np.float32), np.zeros(0, np.float32))
    minibatches = list(
        backend.minibatches(iter([Records(0, columns=rows)]), Mode.EVALUATION, 16, 0)
    )
    backend.check(minibatches[0])
    assert list(backend.ids(minibatches[0])) == []
    backend.new_metrics()
    for minibatch in minibatches:
        backend.evaluate_step(minibatch, [], *empty)
    results = backend.metric_results(backend.metric_states())
    del expected["loss"]  # an export has no loss
    assert results == pytest.approx(expected, rel=1e-4)
    assert backend.predict_step(minibatches[0], [], *empty)["score"].shape == (16, 1)


def test_the_backend_trains_on_after_an_export(trained, tmp_path):
    trained.export(tmp_path)
    before = trained.losses[-1]
    trained.train(data(), 16, seed=0)
    assert trained.losses[-1] < 2 * before


def test_sparse_features_are_served_too(new_job, tmp_path):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = Embedding(2, combiner="sum", name="bag")

        def call(self, inputs):
            return self.embedding(inputs["ids"])

    def feed(dataset, mode, metadata):
        def parse(record):
            return tf.strings.to_number(tf.strings.split(record), tf.int64), 0.0

        return dataset.map(parse).ragged_batch(2).map(lambda x, y: ({"ids": x.to_sparse()}, y))

    words = [b"1 2", b"3"]
    job = new_job(
        words, 2, model=Model, loss=lambda y, p: tf.reduce_sum(p), feed=feed,
        optimizer=lambda: keras.optimizers.SGD(1.0),
    )  # fmt: skip
    job.train(words, 2)
    job.export(tmp_path)
    minibatch = next(
        job.backend.minibatches(iter([Records(0, values=words)]), Mode.EVALUATION, 2, 0)
    )
    given = job.given(minibatch, training=False)
    expected = job.backend.predict_step(minibatch, given.rows, given.dense, given.state)

    loaded = tf.saved_model.load(str(tmp_path))
    served = loaded.serve(minibatch.features)

    np.testing.assert_allclose(served, expected, rtol=1e-5)


class ManyRows:
    """Tables of more rows than a part has, in an order that is not that of their keys."""

    COUNT, DIM = 30_000, 4

    def __init__(self):
        self.keys = {
            0: np.random.default_rng(0).permutation(self.COUNT) * 1_000_000_007,
            1: np.random.default_rng(1).permutation(self.COUNT)[: self.COUNT // 3],
            2: np.zeros(0, np.int64),
        }

    def rows(self, keys):
        return (keys[:, None] % 10_007 + np.arange(self.DIM)).astype(np.float32)

    def scan(self, table):
        for start in range(0, len(self.keys[table]), 1000):
            keys = self.keys[table][start : start + 1000]
            yield keys, self.rows(keys)


def many_rows_model():
    ids = keras.Input((), dtype="int64", name="ids")
    ones = {"embeddings_initializer": "ones"}
    free = Embedding(4, name="free", **ones)(ids)
    known = Embedding(4, input_dim=ManyRows.COUNT, name="known", **ones)(ids % ManyRows.COUNT)
    empty = Embedding(4, name="empty", **ones)(ids)
    scale = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="scale")
    x = keras.layers.Concatenate()([free, known, empty])
    return keras.Model({"ids": ids}, {"rows": x, "sum": scale(x)})


@pytest.fixture
def many_rows(new_job, tmp_path, monkeypatch):
    """Export tables in parts of 64 KiB; return the folder and the tables."""
    monkeypatch.setattr(sorted_rows, "PART_BYTES", 1 << 16)
    job = new_job(
        {"ids": np.arange(4), "label": np.zeros(4, np.float32)}, 2, threshold=0,
        model=many_rows_model, loss=lambda y, p: tf.reduce_sum(p["sum"]),
        feed=lambda dataset, mode, metadata: dataset.map(lambda r: ({"ids": r["ids"]}, r["label"])),
        optimizer=lambda: keras.optimizers.SGD(0.5),
    )  # fmt: skip
    assert [table.name for table in job.description.tables] == ["free", "known", "empty"]
    job.backend.export(tmp_path / "model", *job.parameters(), ManyRows())
    return tmp_path / "model", ManyRows()


def test_tables_that_are_written_in_parts_have_all_rows(many_rows):
    folder, tables = many_rows
    ids = np.concatenate([tables.keys[0], np.arange(1, tables.COUNT)])

    loaded = tf.saved_model.load(str(folder))  # it holds the variables
    served = loaded.serve({"ids": tf.constant(ids)})

    rows = served["rows"].numpy()
    is_trained = [np.isin(ids, tables.keys[0]), np.isin(ids % tables.COUNT, tables.keys[1])]
    expected = [
        np.where(is_trained[0][:, None], tables.rows(ids), 1.0),
        np.where(is_trained[1][:, None], tables.rows(ids % tables.COUNT), 1.0),
        np.ones((len(ids), 4)),
    ]
    np.testing.assert_array_equal(rows, np.concatenate(expected, axis=1))
    np.testing.assert_allclose(served["sum"][:, 0], rows.sum(axis=1), rtol=1e-5)
    assert 0 < is_trained[0].sum() < len(ids)
    assert 0 < is_trained[1].sum() < len(ids)


def of_numbers(layer):
    def model():
        x = keras.Input((2,), name="x")
        return keras.Model({"x": x}, layer(x))

    return {
        "model": model,
        "loss": lambda y, p: sum(tf.reduce_mean(leaf) for leaf in tf.nest.flatten(p)),
        "feed": lambda dataset, mode, _: dataset.map(lambda r: ({"x": r["x"]}, r["y"])),
        "optimizer": lambda: keras.optimizers.SGD(0.1),
    }


NUMBERS = {"x": np.ones((4, 2), np.float32), "y": np.zeros((4, 1), np.float32)}


def test_outputs_within_outputs_are_exported_and_have_names_in_the_signature(new_job, tmp_path):
    one, two, three = (keras.layers.Dense(1) for _ in range(3))
    job = new_job(
        NUMBERS, 2, **of_numbers(lambda x: {"a": one(x), "b": {"c": two(x), "d": [three(x)]}})
    )
    job.backend.check_export(beside=False)
    job.export(tmp_path)
    signature = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert set(signature.structured_outputs) == {"a", "b_c", "b_d_0"}


OUTSIDE = keras.layers.StringLookup(vocabulary=["1"], output_mode="multi_hot")


class Looking(keras.layers.Layer):
    """Looks words up in a layer that is no part of the model."""

    def call(self, x):
        return OUTSIDE(tf.as_string(tf.cast(x, tf.int64)))


@pytest.mark.parametrize("beside", [False, True])
def test_a_lookup_that_is_no_part_of_the_model_is_in_the_export(new_job, tmp_path, beside):
    dense = keras.layers.Dense(1)
    job = new_job(NUMBERS, 2, **of_numbers(lambda x: dense(Looking()(x))))
    job.backend.check_export(beside)
    job.backend.export(tmp_path, *job.parameters(), None if beside else job.client)


class Python(keras.layers.Layer):
    """Computes in Python, which is in no export."""

    def call(self, x):
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), x.shape)


def test_what_cannot_be_exported_is_known_before_training(new_job):
    dense = keras.layers.Dense(1)
    job = new_job(NUMBERS, 2, **of_numbers(lambda x: dense(Python()(x)) + dense(x)))
    with pytest.raises(ModelError, match="calls Python"):
        job.backend.check_export(beside=False)


@pytest.mark.parametrize("beside", [False, True])
def test_an_export_that_does_not_answer_is_told_when_it_is_written(
    new_job, tmp_path, monkeypatch, beside
):
    job = new_job(NUMBERS, 2, **of_numbers(keras.layers.Dense(1)))
    load = tf.saved_model.load

    def load_another(path):
        loaded, refuse = load(path), tf.constant([1.0])
        loaded.serve = loaded.score = lambda *given: tf.reshape(refuse, [3])
        return loaded

    monkeypatch.setattr(tf.saved_model, "load", load_another)
    with pytest.raises(ModelError, match="the export of --output cannot be called on what feed"):
        job.backend.export(tmp_path, *job.parameters(), None if beside else job.client)


def test_a_disk_that_is_full_is_told_in_words(trained, tmp_path, monkeypatch):
    def save(*args, **kwargs):
        place = "{{function_node __wrapped__SaveV2_device_/job:localhost/device:CPU:0}} "
        raise tf.errors.ResourceExhaustedError(
            None, None, f"{place}{tmp_path}/part; No space left on device [Op:SaveV2]"
        )

    monkeypatch.setattr(tf.raw_ops, "SaveV2", save)
    with pytest.raises(CheckpointError, match=f"cannot be written: {tmp_path}/part; No space left"):
        trained.export(tmp_path / "model")


def test_the_loader_of_tensorflow_serving_reads_tables_that_were_written_in_parts(many_rows):
    folder, tables = many_rows
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        signature = loaded.signature_def["serving_default"]
        given = {signature.inputs["ids"].name: tables.keys[0][:9]}
        rows = session.run(signature.outputs["rows"].name, given)

    np.testing.assert_array_equal(rows[:, :4], tables.rows(tables.keys[0][:9]))


def test_an_export_leaves_nothing_but_the_model_and_its_fingerprint_is_right(many_rows):
    folder, _ = many_rows
    found = tf.saved_model.experimental.read_fingerprint(str(folder))
    index = (folder / "variables" / "variables.index").read_bytes()
    shards = sorted(path.name for path in (folder / "variables").glob("*.data-*"))

    assert found.checkpoint_hash == hash_of(index)
    assert {path.name for path in folder.iterdir()} == {
        "assets", "assets.extra", "fingerprint.pb", "saved_model.pb", "variables",
    }  # fmt: skip
    assert shards == [f"variables.data-{n:05d}-of-{len(shards):05d}" for n in range(len(shards))]
    assert len(shards) > 10


def test_columns_of_any_name_have_one_in_the_signature(new_job, tmp_path):
    from elasticdl.preprocessing.tabular import Category, Label, Number, Table, Tags

    table = Table(
        [Number("Income (EUR)"), Number("CO2/km"), Category("城市", 5), Tags("爱好", 9)],
        label=Label("y"),
    )
    names = ("Income (EUR)", "CO2/km", "城市", "爱好")

    def forward():
        inputs = table.inputs()
        return keras.Model(inputs, table.encode(inputs).linear())

    rows = {
        "Income (EUR)": np.array([1.0, 2.0], np.float32),
        "CO2/km": np.array([3.0, 4.0], np.float32),
        "城市": np.array(["北京", "上海"], object),
        "爱好": np.array(["球|书", ""], object),
        "y": np.zeros(2, np.float32),
    }
    job = new_job(
        rows, 2, model=forward, loss=lambda y, p: tf.reduce_mean(p), feed=table.feed,
        optimizer=lambda: keras.optimizers.SGD(0.5),
    )  # fmt: skip
    job.train(rows, 2)
    job.export(tmp_path)
    loaded = tf.saved_model.load(str(tmp_path))
    signature = loaded.signatures["serving_default"]

    features = {name: tf.constant(rows[name])[:, None] for name in names}
    by_name = dict(zip(names, ["Income_EUR", "CO2_km", None, None], strict=True))
    given = set(signature.structured_input_signature[1])
    left = sorted(given - set(by_name.values()))
    assert len(given) == 4
    assert all(name.startswith("features_") for name in left)
    by_name |= dict(zip(sorted(names[2:]), left, strict=True))  # features are in this order
    served = signature(**{by_name[name]: value for name, value in features.items()})
    np.testing.assert_array_equal(served["output_0"], loaded.serve(features))


def test_names_of_a_signature_differ():
    from elasticdl.packages.keras.export import _signature_names

    names = ["a b", "a_b", "a-b", "a/b", "_x", "é", "features_5"]
    made = ["a_b_1", "a_b", "a-b", "a_b_2", "x", "features_5_1", "features_5"]
    assert _signature_names(names) == made


def test_a_folder_that_is_no_saved_model_is_named(tmp_path, spec_of):
    from elasticdl.packages.keras.predictor import SavedModelPredictor

    with pytest.raises(ModelError, match=f"--saved_model={tmp_path} is not a SavedModel"):
        SavedModelPredictor(spec_of(**FUNCTIONS), Metadata(), tmp_path)
