"""The model of a real job moves to other numbers of ps replicas, and processes are killed."""

import os
import signal

import numpy as np
import pyarrow.dataset
import pytest

from scripts.chaos import job as counting
from tests.elastic.counting_job import CountingJob
from tests.elastic.running_job import RunningJob, elasticdl, run

LIMIT = 300_000  # bytes of rows that a ps replica may hold; one holds 161,088
MOVES = [(3, ("ps", 0)), (1, ("master", 0)), (2, ("worker", 1))]


class SlowJob(CountingJob):
    """A counting job of few minibatches that take long, until it is to hurry."""

    def __init__(self, folder, seed, **flags):
        self._hurry = folder / "hurry"
        tempo = {"model_def": "counting.staged.forward", "minibatch_size": 64}
        tempo |= {"model_params": f"seconds=0.2;hurry={self._hurry}"}
        super().__init__(folder, seed, num_minibatches_per_task=6, **tempo, **flags)

    def hurry(self):
        """Let the job go to its end as fast as it can."""
        self._hurry.touch()


def moved(job, count):
    """Wait until the model has moved to so many replicas."""
    job.until_event("ps moved", also=lambda event: event["replicas"] == count)


@pytest.mark.timeout(300)
def test_the_model_of_a_job_moves_by_a_command(tmp_path):
    with SlowJob(tmp_path, seed=7) as job:
        job.until_trained(500)
        for count in (3, 1):
            run(elasticdl("scale", job.job_dir, ps=count))
            moved(job, count)
        job.hurry()
        summary = job.finish()
    job.check_ledger(summary)
    job.check_counts(summary)
    assert [event["replicas"] for event in job.events("ps moved")] == [3, 1]
    # Nobody was lost, and nothing was computed again.
    names = ["stale_leases", "gaps", "stale_reports", "resumed_tasks"]
    assert {name: summary["counters"][name] for name in names} == dict.fromkeys(names, 0)
    assert summary["recoveries"] == []


@pytest.mark.timeout(400)
@pytest.mark.long
def test_each_record_counts_once_whoever_is_killed_in_a_move(tmp_path):
    with SlowJob(tmp_path, seed=8, max_relaunches=20, ps_redo_mb=64) as job:
        job.until_trained(500)
        for count, struck in MOVES:
            job.move_to(count)
            job.send(*struck, signal.SIGKILL)
            moved(job, count)
            job.until_trained(0, also=lambda n=count: len(job.processes("ps")) == n)
            # A successor begins with the checkpoint of the move.
            num_before = len(job.events("ps recovered"))
            job.send("ps", number=signal.SIGKILL)
            job.until_trained(0, also=lambda n=num_before: len(job.events("ps recovered")) > n)
        job.hurry()
        summary = job.finish()
    job.check_counts(summary)
    assert [event["replicas"] for event in job.events("ps moved")] == [n for n, _ in MOVES]


@pytest.mark.timeout(300)
def test_a_job_whose_model_does_not_move_is_told_the_flag(tmp_path):
    with SlowJob(tmp_path, seed=7, recovery_seconds=0) as job:
        job.until_trained(100)
        words = elasticdl("scale", job.job_dir, ps=3)
        with pytest.raises(AssertionError, match="--recovery_seconds=0"):
            run(words)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_full_replica_is_relieved_by_itself(tmp_path):
    # The rows of one replica take more than half of this, and with two of them less.
    with SlowJob(tmp_path, seed=7, num_ps_pods=1, ps_autoscale=3, ps_memory_limit=LIMIT) as job:
        moved(job, 2)
        job.hurry()
        summary = job.finish()
    job.check_counts(summary)
    assert [event["replicas"] for event in job.events("ps moved")] == [2]


LIVING = """
import time
from pathlib import Path

import numpy as np
from elasticdl import (
    ArrayModel, ArrayOptimizer, ArrayTable, CountAdmission, Expiry, Initializer, RowStatistics,
    StatisticAdmission,
)

SMALL = Initializer("uniform", {"low": -0.05, "high": 0.05})
SHOWS = RowStatistics(("show",), decay=0.5, decay_steps=100)


def forward():
    return ArrayModel(
        tables=[
            ArrayTable(
                "often", 2, SMALL, admission=CountAdmission(3), expiry=Expiry(steps=2_000),
                keep_names=True,
            ),
            ArrayTable(
                "sketched", 2, SMALL, admission=CountAdmission(4, sketch_bytes=1 << 18),
                expiry=Expiry(min_norm=0.1, grace_steps=1_000),
            ),
            ArrayTable(
                "shown", 2, SMALL, statistics=SHOWS, admission=StatisticAdmission("show", 3),
                expiry=Expiry(statistic="show", below=0.5),
            ),
        ],
        ids=lambda features: [features] * 3,
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=gradients,
        dense={name: np.ones((8, 2), np.float32) for name in ("low", "high")},
    )


def gradients(dense, rows, features, labels):
    if not Path(__file__).with_name("hurry").exists():
        time.sleep(0.03)  # the tempo of the job: it lasts until its model has moved
    of_dense = {name: 0.1 * value - rows[0].mean() for name, value in dense.items()}
    return 0.0, [0.1 * of_table - 0.01 for of_table in rows], of_dense


def optimizer():
    return ArrayOptimizer(0.05, "adagrad")


def feed(records, mode, metadata):
    words = [[f"word-{int(number)}" for number in record.split()] for record in records]
    return np.array(words), np.zeros(len(words), np.float32)
"""


class DecayingJob(RunningJob):
    """A job of one worker whose gradients are a function of all updates before, by Adagrad.

    Rows go when it exports, and not before: when a pass comes while it trains is chance.
    """

    def __init__(self, folder):
        (folder / "zoo").mkdir(parents=True)
        (folder / "zoo" / "decaying.py").write_text(LIVING)
        counting.write_data(folder / "data", counting.make_ids(9))
        places = (folder / "data", folder / "export", folder / "job", folder / "summary.json")
        flags = {"model_zoo": folder / "zoo", "model_def": "decaying.forward", "num_epochs": 1}
        flags |= {"num_workers": 1, "max_staleness": 0, "num_ps_pods": 2, "recovery_seconds": 900}
        flags |= {"export_tables": folder / "tables"}
        env = {**os.environ, "PYTHONPATH": str(counting.ROOT / "model_zoo")}
        super().__init__(folder, counting.train_command(*places, **flags), env=env)

    def hurry(self):
        """Let the job go to its end as fast as it can."""
        (self.folder / "zoo" / "hurry").touch()

    def trained(self):
        """Return what was exported: arrays as bytes, and the names of keys."""
        found = {}
        with np.load(self.folder / "export" / "model.npz", allow_pickle=False) as arrays:
            for name in arrays.files:
                keys = f"{name.rpartition('/')[0]}/keys"
                order = np.argsort(arrays[keys]) if keys in arrays.files else ...
                found[name] = arrays[name][order].tobytes()
        for table in self.folder.glob("tables/*/"):
            rows = pyarrow.dataset.dataset(table, format="parquet").to_table().sort_by("key")
            found[table.name] = rows.to_pydict()
        return found


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_whose_model_moves_has_the_bits_of_one_whose_model_stays(tmp_path):
    with DecayingJob(tmp_path / "stays") as stays:
        stays.hurry()
        stays.finish()
    with DecayingJob(tmp_path / "moves") as moves:
        for count in (3, 1):
            moves.until_trained(4_000)
            run(elasticdl("scale", moves.job_dir, ps=count))
            moved(moves, count)
        moves.hurry()
        moves.finish()
    assert moves.trained() == stays.trained()
