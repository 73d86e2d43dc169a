"""Networks with dropout and batch norm: 1, 2, 3 workers and losses of some give the same losses.

The same means the same bits: each minibatch has the same loss, and each update leaves the same
weights. That is more than the sum of float32 numbers in any order would give.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl

MODEL = Path(__file__).with_name("drawing_model.py")
RECORDS, MINIBATCH, BATCH, EPOCHS = 1_000, 16, 96, 2
UPDATES = EPOCHS * -(-RECORDS // BATCH)
MINIBATCHES = EPOCHS * -(-RECORDS // MINIBATCH)

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


class NetworkJob(RunningJob):
    """Trains the network; `losses` and `updates` say what all its workers have seen."""

    def __init__(self, folder, framework, num_workers, seconds=0.0, **flags):
        self.zoo = folder / "zoo"
        (self.zoo / "seen").mkdir(parents=True)
        (self.zoo / "drawing.py").write_text(MODEL.read_text())
        settings = {"framework": framework, "seconds": seconds}
        (self.zoo / "settings.json").write_text(json.dumps(settings))
        rng = np.random.default_rng(0)
        numbers = rng.normal(size=(RECORDS, 9)).astype(np.float32)
        numbers[:, 8] = numbers[:, :8].sum(1)
        with RecordWriter(str(folder / "data.recordio")) as writer:
            writer.write_many(row.tobytes() for row in numbers)
        wanted = {
            "model_zoo": self.zoo,
            "model_def": "drawing.custom_model",
            "training_data": folder / "data.recordio",
            "distribution_strategy": "AllreduceStrategy",
            "num_workers": num_workers,
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 1,
            "global_batch_size": BATCH,
            "num_epochs": EPOCHS,
            "deterministic": True,
            "seed": 3,
            "heartbeat_seconds": 0.2,
            "job_dir": folder / "job",
            "summary": folder / "summary.json",
            **flags,
        }
        super().__init__(folder, elasticdl("train", **wanted))

    def _seen(self, name):
        files = (self.zoo / "seen").glob(f"{name}-*")
        return [line.split() for file in files for line in file.read_text().splitlines()]

    def losses(self):
        """Return by task and minibatch the losses that any worker has had, as exact words."""
        found = {}
        for task, index, loss in self._seen("losses"):
            found.setdefault((int(task), int(index)), set()).add(loss)
        return found

    def updates(self):
        """Return by version the hashes of weights and state that any worker has had."""
        found = {}
        for version, digest in self._seen("updates"):
            found.setdefault(int(version), set()).add(digest)
        return found


def trained(folder, framework, num_workers, **flags):
    """Train undisturbed; return the losses and updates."""
    with NetworkJob(folder, framework, num_workers, **flags) as job:
        summary = job.finish()
    assert [line["trained_once"] for line in summary["ledger"]] == [RECORDS] * EPOCHS
    return job.losses(), job.updates()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("keras", marks=pytest.mark.keras),
        pytest.param("torch", marks=pytest.mark.torch),
    ],
)
def framework(request):
    if request.param == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")
    return request.param


@pytest.fixture(scope="module")
def alone(framework, tmp_path_factory):
    """What one worker sees."""
    return trained(tmp_path_factory.mktemp("alone"), framework, 1)


def test_one_worker_makes_each_update_of_its_minibatches(alone):
    losses, updates = alone
    assert len(losses) == MINIBATCHES
    assert sorted(updates) == list(range(1, UPDATES + 1))
    assert {len(found) for found in itertools.chain(losses.values(), updates.values())} == {1}
    values = [float.fromhex(next(iter(losses[key]))) for key in sorted(losses)]
    assert np.mean(values[-20:]) < 0.7 * np.mean(values[:20])


def test_another_seed_gives_other_losses(framework, alone, tmp_path):
    assert trained(tmp_path, framework, 1, seed=4)[0] != alone[0]


def test_more_workers_of_whom_some_are_lost_see_the_same(framework, alone, tmp_path):
    with NetworkJob(tmp_path, framework, 3, seconds=0.15) as job:
        job.strike((0.2, "worker", 0), (0.5, "worker", 1))
        summary = job.finish()
    assert len(job.events("lost")) == 2
    assert [line["trained_once"] for line in summary["ledger"]] == [RECORDS] * EPOCHS
    assert (job.losses(), job.updates()) == alone


def test_all_workers_dead_at_once_change_nothing(framework, alone, tmp_path):
    with NetworkJob(tmp_path, framework, 2, seconds=0.15, recovery_seconds=0.3) as job:
        job.until_trained(RECORDS / 2, also=job.has_checkpoint)
        for worker in job.processes("worker"):
            worker.kill()
        summary = job.finish()
    assert len(job.events("world restored")) == 1
    assert [line["trained_once"] for line in summary["ledger"]] == [RECORDS] * EPOCHS
    assert (job.losses(), job.updates()) == alone
