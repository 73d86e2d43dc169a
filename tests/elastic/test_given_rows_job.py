"""A plain Keras table with rows that the user has set; its ps replica is killed."""

import numpy as np
import pyarrow.dataset
import pytest

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl

pytestmark = [pytest.mark.keras, pytest.mark.long, pytest.mark.timeout(400)]

NUM_IDS, NUM_RECORDS = 500, 60_000

# A record's gradient is 1/16, and the learning rate 16: each record takes exactly 1 from its row.
MODEL = """
import keras
import numpy as np
import tensorflow as tf


def forward():
    ids = keras.Input((1,), dtype="int64", name="id")
    table = keras.layers.Embedding({num_ids}, 2, name="moved")
    model = keras.Model(ids, table(ids))
    table.set_weights([np.arange({num_ids} * 2, dtype="float32").reshape(-1, 2) * 1024])
    return model


def loss(labels, predictions):
    return tf.reduce_sum(predictions) / 16


def optimizer():
    return keras.optimizers.SGD(16.0)


def feed(dataset, mode, metadata):
    def parse(record):
        id = tf.strings.to_number(record, tf.int64)
        return tf.reshape(id, [1]), 0.0

    return dataset.map(parse)
"""


def test_a_killed_replica_has_the_rows_that_the_user_had_set(tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "given.py").write_text(MODEL.format(num_ids=NUM_IDS))
    ids = np.random.default_rng(0).integers(NUM_IDS, size=NUM_RECORDS)
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        writer.write_many(str(id).encode() for id in ids)
    words = elasticdl(
        "train",
        f"--model_zoo={tmp_path / 'zoo'}",
        "--model_def=given.forward",
        f"--training_data={tmp_path / 'data.recordio'}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=2",
        "--num_ps_pods=2",
        "--minibatch_size=16",
        "--embedding_threshold_bytes=100",
        "--recovery_seconds=0",
        f"--export_tables={tmp_path / 'tables'}",
        f"--job_dir={tmp_path / 'job'}",
    )
    with RunningJob(tmp_path, words) as job:
        job.until_trained(NUM_RECORDS // 3)
        job.send("ps")
        job.wait()

    given = np.arange(NUM_IDS * 2).reshape(-1, 2) * 1024
    counts = np.bincount(ids, minlength=NUM_IDS)
    np.testing.assert_array_equal(exported(tmp_path / "tables"), given - counts[:, None])


def exported(folder):
    """Return the rows by id."""
    table = pyarrow.dataset.dataset(folder / "moved", format="parquet").to_table()
    rows = np.zeros((NUM_IDS, 2))
    rows[table["key"].to_numpy()] = np.stack(table["weights"].to_pylist())
    return rows
