"""A Keras model file trains on JAX with the losses that it has on TensorFlow, wherever its
parameters are, and through the loss of a worker."""

import importlib.util
import json
import os
import random

import numpy as np
import pytest

from tests.elastic.running_job import RunningJob, elasticdl, run

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None,
        reason="JAX is not installed; pip install 'jax>=0.10,<0.11'",
    ),
]

NUM_RECORDS, NUM_IDS = 1_010, 200  # the last minibatch is a short one
MODEL = '''
import keras
import numpy as np
import tensorflow as tf

from elasticdl.layers import Embedding


class Drawn(keras.initializers.Initializer):
    """The same numbers on every backend."""

    def __call__(self, shape, dtype=None):
        numbers = np.random.default_rng(sum(shape)).normal(scale=0.3, size=shape)
        return keras.ops.convert_to_tensor(numbers.astype("float32"), dtype)


def inputs():
    ids = {name: keras.Input((4,), dtype="int64") for name in ("ids", "small")}
    return {**ids, "numbers": keras.Input((3,))}


def rest(given, rows):
    x = keras.layers.Concatenate()([keras.layers.Flatten()(one) for one in rows])
    x = keras.layers.Concatenate()([x, given["numbers"]])
    x = keras.layers.Dense(8, use_bias=False, kernel_initializer=Drawn())(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.Model(given, keras.layers.Dense(1, kernel_initializer=Drawn())(x))


def with_tables():
    given = inputs()
    moved = keras.layers.Embedding(200, 4, embeddings_initializer="zeros")
    return rest(given, [Embedding(8)(given["ids"]), moved(199 - given["small"])])


def without_tables():
    given = inputs()
    rows = keras.layers.Embedding(200, 4, embeddings_initializer=Drawn())(given["small"])
    return rest(given, [rows])


def loss(labels, predictions):
    return keras.ops.binary_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.Adagrad(0.1)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(from_logits=True)}


def feed(dataset, mode, metadata):
    def parse(line):
        values = tf.strings.to_number(tf.strings.split(line, ","), tf.float64)
        values = tf.ensure_shape(values, [8])
        small, numbers = tf.cast(values[:4], tf.int64), tf.cast(values[4:7], tf.float32)
        large = small * 5_000_000_000  # of more than 32 bits
        features = {"ids": large, "small": small, "numbers": numbers}
        return features if mode == "prediction" else (features, tf.cast(values[7:], tf.float32))
    return dataset.map(parse)
'''
PS = ("--distribution_strategy=ParameterServerStrategy", "--num_ps_pods=2", "--max_staleness=0")
STRATEGIES = {
    "Local": ("with_tables", ("--distribution_strategy=Local",)),
    "ps": ("with_tables", (*PS, "--num_workers=1")),
    "hybrid": (
        "with_tables",
        ("--distribution_strategy=HybridStrategy", "--num_ps_pods=1", "--num_workers=1"),
    ),
    "all-reduce": (
        "without_tables",
        ("--distribution_strategy=AllreduceStrategy", "--num_workers=1"),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jax")
    (folder / "clicks.py").write_text(MODEL)
    drawn = random.Random(0)
    weights = [drawn.gauss(0, 1) for _ in range(NUM_IDS)]
    lines = []
    for _ in range(NUM_RECORDS):
        ids = [drawn.randrange(NUM_IDS) for _ in range(4)]
        numbers = [round(drawn.gauss(0, 1), 3) for _ in range(3)]
        label = int(sum(weights[i] for i in ids) + numbers[0] > 0)
        lines.append(",".join(map(str, [*ids, *numbers, label])))
    (folder / "data.txt").write_text("\n".join(lines) + "\n")
    return folder


def words(command, model, **flags):
    usual = {"model_zoo": ".", "model_def": f"clicks.{model}", "minibatch_size": 64}
    return elasticdl(command, **usual, embedding_threshold_bytes=1_000, **flags)


def on(backend):
    return {**os.environ, "KERAS_BACKEND": backend}


def train(folder, backend, strategy, **flags):
    model, strategy_flags = STRATEGIES[strategy]
    summary = folder / f"{backend}-{strategy}.json"
    given = words("train", model, training_data="data.txt", summary=summary, **flags)
    run([*given, *strategy_flags], cwd=folder, env=on(backend))
    return json.loads(summary.read_text())


def losses(summary):
    return [summary["loss"], summary["epoch_loss"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_losses_are_those_on_tensorflow(folder, strategy):
    flags = {"num_epochs": 2}
    jax = train(folder, "jax", strategy, **flags)
    tensorflow = train(folder, "tensorflow", strategy, **flags)

    assert jax["records"] == 2 * NUM_RECORDS
    np.testing.assert_allclose(losses(jax), losses(tensorflow), rtol=0, atol=1e-5)


def predicted(folder):
    with np.load(next(folder.glob("*.npz"))) as arrays:
        return arrays["output"]


def test_a_checkpoint_and_an_export_of_jax_are_read_by_tensorflow(folder):
    train(folder, "jax", "ps", checkpoint_dir="ck", output="model")
    begin = {"prediction_data": "data.txt"}
    given = {
        "by-jax": ("jax", {"checkpoint_dir_for_init": "ck"}),
        "by-tensorflow": ("tensorflow", {"checkpoint_dir_for_init": "ck"}),
        "saved": ("tensorflow", {"saved_model": "model"}),
    }
    for name, (backend, flags) in given.items():
        command = words("predict", "with_tables", **begin, **flags, output=name)
        run(command, cwd=folder, env=on(backend))

    expected = predicted(folder / "by-jax")
    assert len(expected) == NUM_RECORDS
    for name in ("by-tensorflow", "saved"):
        np.testing.assert_allclose(predicted(folder / name), expected, rtol=0, atol=1e-5)


def test_a_killed_worker_costs_no_record(folder, tmp_path):
    flags = {
        "training_data": folder / "data.txt",
        "num_epochs": 8,
        "job_dir": tmp_path / "job",
        "num_minibatches_per_task": 2,
        "summary": tmp_path / "summary.json",
    }
    command = [*words("train", "with_tables", **flags), *PS, "--num_workers=2"]
    with RunningJob(tmp_path, command, cwd=folder, env=on("jax")) as job:
        job.strike((1 / 4, "worker", 0))
        summary = job.finish()
    assert summary["records"] == 8 * NUM_RECORDS
