"""The trace of a job is what an offline computation gives, and a killed worker leaves its part."""

import os

import duckdb
import numpy as np
import pytest

from scripts.chaos import job as counting
from tests.elastic.running_job import RunningJob, elasticdl, run

MINIBATCH = 16
CLICKS = """
import keras
import numpy as np
from elasticdl import batched
from elasticdl.layers import Embedding


def forward():
    ids = keras.Input((3,), dtype="int64")
    summed = keras.layers.Lambda(lambda rows: keras.ops.sum(rows, axis=(1, 2)))(Embedding(2)(ids))
    return keras.Model(ids, keras.ops.sigmoid(summed)[:, None])


def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy()(labels, predictions)


def optimizer():
    return keras.optimizers.Adagrad(0.1)


@batched
def feed(records, mode, metadata):
    import tensorflow as tf
    values = tf.strings.to_number(tf.strings.split(records, " ").to_tensor(), tf.int64)
    return values[:, :3], tf.cast(values[:, 3:], tf.float32)
"""


def write(folder, num_records):
    ids = np.random.default_rng(0).integers(0, 40, (num_records, 4))
    ids[:, 3] %= 2
    counting.write_data(folder / "data", [ids])


def arrays_of(folder):
    """Yield each traced minibatch by the version that it was trained on."""
    found = duckdb.sql(f"select * from '{folder}/*.parquet' order by version, record").fetchnumpy()
    for version in np.unique(found["version"]):
        rows = found["version"] == version
        yield {name: column[rows] for name, column in found.items()}


def test_rows_and_gradients_are_those_of_an_offline_computation(tmp_path):
    write(tmp_path, 2_000)
    flags = {"distribution_strategy": "Local", "num_epochs": 1, "minibatch_size": MINIBATCH}
    run(
        elasticdl(
            *("train", f"--model_zoo={counting.ROOT / 'model_zoo'}"),
            model_def="counting.model.forward",
            training_data=tmp_path / "data",
            trace="every=1; records=all",
            trace_dir=tmp_path / "trace",
            **flags,
        ),
        cwd=tmp_path,
    )
    counts, num_minibatches = np.zeros((40, 2), np.float32), 0
    for step in arrays_of(tmp_path / "trace"):
        ids = np.stack(step["ids_count"])
        np.testing.assert_array_equal(
            np.stack(step["rows_count"]), counts[ids].reshape(len(ids), -1)
        )
        gradients = np.stack(step["gradients_count"]).reshape(*ids.shape, 2)
        np.subtract.at(counts, ids, gradients)
        num_minibatches += 1
    assert num_minibatches == 2_000 // MINIBATCH
    assert counts[:, 0].sum() == 2_000 * 4


@pytest.mark.long
def test_predictions_of_keras_follow_from_the_traced_rows(tmp_path):
    pytest.importorskip("keras")
    write(tmp_path, 640)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "clicks.py").write_text(CLICKS)
    run(
        elasticdl(
            "train",
            model_zoo=tmp_path / "zoo",
            model_def="clicks.forward",
            training_data=tmp_path / "data",
            distribution_strategy="Local",
            minibatch_size=MINIBATCH,
            num_epochs=1,
            trace="every=10; records=all",
            trace_dir=tmp_path / "trace",
        ),
        cwd=tmp_path,
    )
    steps = list(arrays_of(tmp_path / "trace"))
    assert len(steps) == 4
    for step in steps:
        (ids,) = [name for name in step if name.startswith("ids_")]
        table = ids.removeprefix("ids_")
        rows = np.stack(step[f"rows_{table}"]).astype(np.float64)
        labels = np.concatenate(step["labels"])
        predicted = 1 / (1 + np.exp(-rows.sum(axis=1)))
        np.testing.assert_allclose(np.concatenate(step["predictions"]), predicted, rtol=1e-5)
        gradient = ((predicted - labels) / MINIBATCH)[:, None].repeat(6, axis=1)
        np.testing.assert_allclose(np.stack(step[f"gradients_{table}"]), gradient, atol=1e-6)


@pytest.mark.parametrize(
    "strategy", ["ParameterServerStrategy", pytest.param("HybridStrategy", marks=pytest.mark.long)]
)
def test_workers_trace_the_minibatches_of_the_data_and_a_kill_costs_what_was_not_written(
    tmp_path, strategy
):
    num_records, every = 24_000, 10
    write(tmp_path, num_records)
    places = (tmp_path / "data", tmp_path / "export", tmp_path / "job", tmp_path / "summary.json")
    hurry = tmp_path / "hurry"
    words = counting.train_command(
        *places,
        model_def="counting.staged.forward",
        model_params=f"seconds=0.01;hurry={hurry}",
        num_epochs=1,
        num_workers=2,
        distribution_strategy=strategy,
        trace=f"every={every}; records=2; seconds=1",
    )
    with RunningJob(tmp_path, words, env=os.environ) as job:
        job.until_trained(8_000)
        job.send("worker")
        hurry.touch()
        summary = job.finish()
    assert summary["ledger"][0]["trained_once"] == num_records
    found = duckdb.sql(
        f"select task * 25 + minibatch as number, count(*) / 2 as times, max(lease) as lease, "
        f"max(dropped) as dropped from '{tmp_path}/job/trace/*.parquet' group by all"
    ).fetchnumpy()
    assert not (found["number"] % every).any()
    assert not found["dropped"].any()
    assert 0.5 * num_records / MINIBATCH / every < len(set(found["number"].tolist()))
