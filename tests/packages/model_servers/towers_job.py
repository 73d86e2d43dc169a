"""A job whose model has a tower that counts, its data, and what its counts must be."""

import os
import shutil
from pathlib import Path

import duckdb
import numpy as np

from scripts.chaos import job as counting
from tests.elastic.running_job import RunningJob, elasticdl

HERE = Path(__file__).parent
SERVER = "packages.model_servers"  # the module that a model server runs
NUM_RECORDS, NUM_IDS, IDS = 12_000, 500, 3
MINIBATCH = 16  # of which each file has a whole number
STRATEGIES = ["ParameterServerStrategy", "HybridStrategy"]


def write(folder, model):
    """Write data of skewed ids, and a model zoo; return how often each id occurs."""
    ids = (NUM_IDS * np.random.default_rng(0).random((NUM_RECORDS, IDS)) ** 2).astype(np.int64)
    counting.write_data(folder / "data", np.array_split(ids, 3))
    (folder / "zoo").mkdir(parents=True)
    shutil.copy(HERE / f"{model}.py", folder / "zoo")
    return np.bincount(ids.ravel(), minlength=NUM_IDS)


def words(folder, model, **flags):
    """Return the words that train a model of the folder's zoo."""
    return elasticdl(
        "train",
        model_zoo=folder / "zoo",
        model_def=f"{model}.forward",
        training_data=folder / "data",
        num_ps_pods=2,
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=20,
        heartbeat_seconds=0.2,
        job_dir=folder / "job",
        summary=folder / "summary.json",
        output=folder / "model",
        **{"distribution_strategy": "ParameterServerStrategy", **flags},
    )


def comparable(strategy):
    """Return the flags of a job of one worker that computes each step on the newest parameters."""
    in_turn = {"max_staleness": 0} if strategy == "HybridStrategy" else {"use_async": "false"}
    return {"distribution_strategy": strategy, "num_epochs": 1, "seed": 5, **in_turn}


def check_counts_of_a_struck_job(folder, model, strategy, num_epochs):
    """Train while processes of each kind are killed: each occurrence is in each row's count.

    Returns:
        What the tower's own variable must count: each occurrence, too, or in a hybrid job the mean
        number of them in a minibatch with each update.
    """
    counts = write(folder, model)
    job = RunningJob(
        folder,
        words(
            folder,
            model,
            distribution_strategy=strategy,
            num_workers=2,
            num_model_servers=2,
            num_epochs=num_epochs,
            recovery_seconds=1,
            export_tables=folder / "tables",
        ),
        env=os.environ,
    )
    with job:
        job.strike((0.1, SERVER, 0), (0.3, "worker", 0), (0.45, "ps", 1), (0.6, SERVER, 0))
        summary = job.finish()
        assert len([e for e in job.events("lost") if "server" in e["process"]]) == 2
    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [NUM_RECORDS] * num_epochs
    for table in ("met", "beside"):
        expected = np.stack([counts, counts], axis=1) * num_epochs
        np.testing.assert_array_equal(rows_of(folder, table), expected)
    if strategy == "HybridStrategy":
        return [MINIBATCH * IDS * summary["model_version"]] * 2
    return [NUM_RECORDS * IDS * num_epochs] * 2


def rows_of(folder, table):
    """Return the rows of an exported table, shape (ids, 2)."""
    found = duckdb.sql(f"select * from '{folder}/tables/{table}/*.parquet'").fetchnumpy()
    rows = np.zeros((NUM_IDS, 2), np.float32)
    rows[found["key"]] = np.stack(found["weights"])
    return rows
