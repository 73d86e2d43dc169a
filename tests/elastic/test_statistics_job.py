"""Statistics beside rows are counted exactly, whoever is killed, and go on with more replicas."""

from pathlib import Path

import numpy as np
import pyarrow.dataset
import pytest

from elasticdl._core import RecordWriter
from elasticdl.data.order import Order
from tests.elastic.running_job import RunningJob, elasticdl, run
from tests.elastic.statistics_model import ADMITTED_AT, EXPIRED_BELOW, KEPT

pytestmark = pytest.mark.timeout(600)
MODEL = Path(__file__).with_name("statistics_model.py")
MINIBATCH_SIZE, PER_TASK, EPOCHS, NUM_IDS = 8, 16, 2, 6_000
TASKS = 288
NUM_RECORDS = TASKS * PER_TASK * MINIBATCH_SIZE


def make_records():
    """Return (click, price, id, id) of each record; some ids are of the first half alone."""
    draw = np.random.default_rng(3)
    ids = (NUM_IDS * draw.random((NUM_RECORDS, 2)) ** 2).astype(np.int64)
    return np.column_stack(
        [draw.integers(0, 2, NUM_RECORDS), draw.integers(0, 4, NUM_RECORDS), ids]
    )


def period_of(epoch, number):
    """Return the period of a task: all minibatches of one task are of one."""
    place = epoch * TASKS + Order(TASKS, 0, epoch).place_of(number)
    return place * PER_TASK // KEPT.decay_steps


def recomputed(records):
    """Return the sums of each id and the period that they are decayed to, from the data alone."""
    sums, periods = np.zeros((NUM_IDS, 3)), np.zeros(NUM_IDS, np.int64)
    per_task = PER_TASK * MINIBATCH_SIZE
    tasks = sorted((period_of(e, n), n) for e in range(EPOCHS) for n in range(TASKS))
    for period, number in tasks:
        for click, price, *ids in records[number * per_task : (number + 1) * per_task].tolist():
            for i in ids:
                sums[i] = sums[i] * KEPT.decay ** (period - periods[i]) + [1, click, price]
                periods[i] = period
    return sums, periods


class StatisticsJob(RunningJob):
    """`elasticdl train` of `statistics_model.py`; all files go to a folder."""

    def __init__(self, folder, **flags):
        (folder / "zoo").mkdir(parents=True)
        (folder / "zoo" / "model.py").write_text(MODEL.read_text())
        with RecordWriter(str(folder / "data.recordio")) as writer:
            writer.write_many(" ".join(map(str, r)).encode() for r in make_records().tolist())
        wanted = {
            "model_zoo": folder / "zoo",
            "model_def": "model.forward",
            "training_data": folder / "data.recordio",
            "minibatch_size": MINIBATCH_SIZE,
            "num_minibatches_per_task": PER_TASK,
            "num_epochs": EPOCHS,
            "heartbeat_seconds": 0.2,
            "output": folder / "export",
            "job_dir": folder / "job",
            "summary": folder / "summary.json",
            **flags,
        }
        super().__init__(folder, elasticdl("train", **wanted))

    def statistics(self, table="item"):
        """Return the keys and the exported statistics of a table."""
        with np.load(self.folder / "export" / "model.npz") as arrays:
            name = f"table/{table}_statistics"
            return arrays[f"{name}/keys"], arrays[f"{name}/rows"]

    def check_statistics(self):
        """They are those of the data, bit for bit."""
        keys, rows = self.statistics()
        sums, periods = recomputed(make_records())
        np.testing.assert_array_equal(keys, np.flatnonzero(sums[:, 0]))
        decayed_to = rows[:, 3]
        assert decayed_to.min() > 0
        left = KEPT.decay ** (decayed_to - periods[keys])
        np.testing.assert_array_equal(rows[:, :3], (sums[keys] * left[:, None]).astype(np.float32))


PS = {
    "distribution_strategy": "ParameterServerStrategy",
    "num_workers": 2,
    "num_ps_pods": 2,
}


@pytest.mark.long
def test_statistics_are_exact_though_ps_replicas_and_workers_are_killed(tmp_path):
    places = {"recovery_seconds": 0.5, "checkpoint_dir": tmp_path / "checkpoints"}
    with StatisticsJob(tmp_path, ps_redo_mb=16, **places, **PS) as job:
        job.strike((0.2, "worker", 0), (0.4, "ps", 0), (0.6, "ps", 1), (0.7, "worker", -1))
        summary = job.finish()

    assert [(e["repeated"], e["lost"]) for e in summary["ledger"]] == [(0, 0)] * EPOCHS
    job.check_statistics()

    # The checkpoint of two replicas, read as one.
    tables = {"checkpoint_dir_for_init": tmp_path / "checkpoints", "export_tables": tmp_path / "t"}
    run(elasticdl("export", **tables))
    found = pyarrow.dataset.dataset(tmp_path / "t" / "item_statistics", format="parquet").to_table()
    keys, rows = job.statistics()
    found = found.sort_by("key")
    np.testing.assert_array_equal(found["key"], keys)
    sums = np.stack(found["weights"].to_numpy())[:, :3]
    np.testing.assert_array_equal(sums, rows[:, :3])


@pytest.mark.long
def test_ids_are_admitted_and_expire_by_their_decayed_shows(tmp_path):
    with StatisticsJob(tmp_path, **PS) as job:
        job.wait()
    with np.load(tmp_path / "export" / "model.npz") as arrays:
        admitted, everybody = arrays["table/shown/keys"], arrays["table/item/keys"]
    keys, rows = job.statistics("shown")
    shows = dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True))
    assert 0 < len(admitted) < len(everybody)
    assert min(shows.values()) >= EXPIRED_BELOW
    assert {k for k, show in shows.items() if show >= ADMITTED_AT} <= set(admitted.tolist())
    assert set(admitted.tolist()) <= set(shows)
