"""A job begun in Keras goes on in NumPy, in the middle of an epoch, with tables and ledger."""

import json
import os
import signal
import subprocess

import numpy as np
import pyarrow.dataset
import pytest

from tests.elastic.running_job import RunningJob, elasticdl, run

pytestmark = pytest.mark.timeout(600)
NUM_RECORDS, NUM_IDS, FIELDS = 12_000, 500, 4
KERAS = """
import keras
import tensorflow as tf
from elasticdl import batched
from elasticdl.layers import Embedding

def forward():
    ids = keras.Input((4,), dtype="int64", name="ids")
    rows = Embedding(1, embeddings_initializer="zeros", name="weights")(ids)
    return keras.Model({"ids": ids}, keras.ops.sum(rows, axis=1))

def loss(labels, predictions):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))

def optimizer(lr=0.2):
    return keras.optimizers.Adagrad(lr)

@batched
def feed(records, mode, metadata):
    values = tf.strings.to_number(tf.strings.split(records, ",").to_tensor(), tf.float32)
    features = {"ids": tf.cast(values[:, :4], tf.int64)}
    return features if mode == "prediction" else (features, values[:, 4:])
"""
NUMPY = """
import numpy as np
from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, batched

def forward():
    def predict(dense, rows, features):
        return rows[0].sum(1)

    def gradients(dense, rows, features, labels):
        logits = predict(dense, rows, features)
        error = 1 / (1 + np.exp(-logits)) - labels
        loss = np.mean(np.logaddexp(0, logits) - labels * logits)
        return loss, [np.broadcast_to(error[:, None] / len(error), rows[0].shape)], {}

    zeros = Initializer("constant", {"value": 0.0})
    table = ArrayTable("weights", dim=1, initializer=zeros)
    return ArrayModel([table], lambda features: [features], predict, gradients)

def optimizer(lr=0.2):
    settings = {"epsilon": 1e-7, "initial_accumulator": 0.1}
    return ArrayOptimizer(lr, kind="adagrad", params=settings)

@batched
def feed(records, mode, metadata):
    values = np.array([record.split(b",") for record in records]).astype(np.float32)
    ids = values[:, :4].astype(np.int64)
    return ids if mode == "prediction" else (ids, values[:, 4:])
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in_keras.py").write_text(KERAS)
    (tmp_path / "in_numpy.py").write_text(NUMPY)
    rng = np.random.default_rng(0)
    ids = rng.integers(NUM_IDS, size=(NUM_RECORDS, FIELDS))
    labels = (rng.normal(size=NUM_IDS)[ids].sum(1) > 0).astype(int)
    lines = [",".join(map(str, [*row, label])) for row, label in zip(ids, labels, strict=True)]
    (tmp_path / "data.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def train(folder, model, **flags):
    return elasticdl(
        "train",
        model_zoo=folder,
        model_def=f"{model}.forward",
        training_data=folder / "data.txt",
        distribution_strategy="ParameterServerStrategy",
        num_ps_pods=2,
        minibatch_size=16,
        num_epochs=1,
        recovery_seconds=0.3,
        checkpoint_dir=folder / "checkpoints",
        job_dir=folder / "job",
        summary=folder / "summary.json",
        **flags,
    )


def predicted(folder, model):
    run(
        elasticdl(
            "predict",
            model_zoo=folder,
            model_def=f"{model}.forward",
            prediction_data=folder / "data.txt",
            checkpoint_dir_for_init=folder / "checkpoints",
            output=folder / f"by-{model}",
        ),
        cwd=folder,
    )
    with np.load(next((folder / f"by-{model}").iterdir())) as arrays:
        return arrays["output"]


# The row of an id counts how often its record was trained. The feed stops in the middle of a task
# until a file is there; the other file reads the records of a task in another order.
COUNTING = """
import pathlib, threading, time
import numpy as np
from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, Mode

def forward():
    zeros = Initializer("constant", {"value": 0.0})
    return ArrayModel(
        [ArrayTable("seen", dim=1, initializer=zeros)],
        ids=lambda ids: [ids],
        predict=lambda dense, rows, ids: rows[0][..., 0],
        gradients=lambda dense, rows, ids, labels: (0.0, [np.full_like(rows[0], -1.0)], {}),
    )

def optimizer(lr=1.0):
    return ArrayOptimizer(lr, kind="sgd")

fed = []

def feed(records, mode, metadata):
    if threading.current_thread().name != "data check":
        fed.append(mode)
    while len(fed) == 30 and not pathlib.Path(__file__).with_name("goes on").exists():
        time.sleep(0.01)
    ids = np.array([[int(record)] for record in records])
    return ids if mode == Mode.PREDICTION else (ids, np.zeros(len(ids), np.float32))
"""
OTHERWISE = """
class Reader:
    def __init__(self, path):
        self.lines = pathlib.Path(path).read_bytes().splitlines()

    def create_shards(self):
        return {"data": (0, len(self.lines))}

    def read_records(self, task):
        yield from reversed(self.lines[task.start:task.end])

def custom_data_reader(data_path):
    return Reader(data_path)
"""


@pytest.mark.long
def test_a_record_is_trained_by_one_model_or_the_other_when_their_orders_differ(tmp_path):
    num_records = 2_000
    same = COUNTING + OTHERWISE.replace("reversed(", "iter(")
    (tmp_path / "before.py").write_text(same)
    (tmp_path / "after.py").write_text(COUNTING + OTHERWISE)
    (tmp_path / "data.txt").write_text("".join(f"{n}\n" for n in range(num_records)))
    more = {"num_minibatches_per_task": 50, "export_tables": tmp_path / "tables"}
    with RunningJob(tmp_path, train(tmp_path, "before", **more)) as job:
        job.until_trained(160, also=job.has_checkpoint)
        job.send("master", number=signal.SIGTERM)
        assert job.process.wait() != 0
    (tmp_path / "goes on").touch()
    words = train(tmp_path, "after", model_changes="true", **more)
    with RunningJob(tmp_path, words) as job:
        (line,) = job.finish()["ledger"]
        assert "before.forward first finishes the tasks" in job.printed()
    assert (line["trained_once"], line["repeated"], line["lost"]) == (num_records, 0, 0)
    (tables,) = (path for path in (tmp_path / "tables").iterdir() if path.is_dir())
    counts = pyarrow.dataset.dataset(tables).to_table()["weights"].to_pylist()
    assert counts == [[1.0]] * num_records


@pytest.mark.long
@pytest.mark.keras
def test_the_other_framework_takes_up_rows_slots_and_the_rest_of_the_epoch(folder):
    with RunningJob(folder, train(folder, "in_keras")) as job:
        job.until_trained(2_000, also=job.has_checkpoint)
        pid = json.loads((job.job_dir / "master.json").read_text())["pid"]
        os.kill(pid, signal.SIGTERM)
        assert job.process.wait() != 0
    refused = subprocess.run(train(folder, "in_numpy"), capture_output=True, text=True, cwd=folder)
    assert refused.returncode != 0
    assert "--model_changes=true goes on with another model file" in " ".join(
        (refused.stdout + refused.stderr).split()
    )
    with RunningJob(folder, train(folder, "in_numpy", model_changes="true")) as job:
        summary = job.finish()
    (line,) = summary["ledger"]
    counts = (line["records"], line["trained_once"], line["repeated"], line["lost"])
    assert counts == (NUM_RECORDS, NUM_RECORDS, 0, 0)
    np.testing.assert_allclose(
        predicted(folder, "in_numpy"), predicted(folder, "in_keras"), atol=1e-5
    )
    assert summary["loss"] < 0.6
