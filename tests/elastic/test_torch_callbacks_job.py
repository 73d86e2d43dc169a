"""Callbacks of models in PyTorch in jobs of real processes."""

import json

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

NUM_TRAINING = 1_000

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

MODEL = """
import json
import os

import numpy as np
import torch

from elasticdl import Mode
from elasticdl.callbacks import Callback, EarlyStopping, ReduceLROnPlateau


def forward():
    return torch.nn.Linear(3, 1)


def loss(labels, predictions):
    return torch.nn.functional.mse_loss(predictions, labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def feed(dataset, mode, metadata):
    rows = np.frombuffer(b"".join(dataset.values), np.float32).reshape(-1, 4)
    return torch.tensor(rows[:, :3]), torch.tensor(rows[:, 3:])


def early_stopping():
    return [
        EarlyStopping(min_delta=1e-3, patience=2),
        ReduceLROnPlateau("loss", threshold=1e-3, threshold_mode="abs", patience=1),
    ]


class TwoWorkers(Callback):
    # Stops training when two processes have called it; each is told of what came before.

    def __init__(self):
        self.pids, self.num_epochs_seen = [], 0

    def on_epoch_end(self, epoch, logs):
        assert epoch == self.num_epochs_seen, (epoch, self.num_epochs_seen)
        self.num_epochs_seen += 1
        if os.getpid() not in self.pids:
            self.pids.append(os.getpid())
        if len(self.pids) > 1:
            self.stop_training()

    def on_train_end(self, logs):
        with open("remembered.json", "w") as file:
            json.dump([self.pids, self.num_epochs_seen], file)


def two_workers():
    return [TwoWorkers()]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "line.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for name, count in [("train", NUM_TRAINING), ("validation", 200)]:
        x = rng.normal(size=(count, 3)).astype(np.float32)
        rows = np.concatenate([x, x.sum(1, keepdims=True)], axis=1)
        with RecordWriter(str(tmp_path / f"{name}.recordio")) as writer:
            writer.write_many([row.tobytes() for row in rows])
    return tmp_path


def words(folder, callbacks, *more):
    return elasticdl(
        "train",
        f"--model_zoo={folder}",
        "--model_def=line.forward",
        f"--callbacks={callbacks}",
        "--training_data=train.recordio",
        "--validation_data=validation.recordio",
        "--minibatch_size=20",
        "--num_minibatches_per_task=10",
        "--job_dir=job",
        "--summary=summary.json",
        *more,
    )


STRATEGIES = {
    "local": ["--distribution_strategy=Local"],
    "ps": ["--distribution_strategy=ParameterServerStrategy", "--num_workers=2", "--num_ps_pods=2"],
    "all-reduce": ["--distribution_strategy=AllreduceStrategy", "--num_workers=2"],
}


@pytest.mark.parametrize(
    "strategy",
    ["local", *(pytest.param(name, marks=pytest.mark.long) for name in ("ps", "all-reduce"))],
)
def test_early_stopping_ends_a_job_whose_model_has_learned(strategy, folder):
    more = [*STRATEGIES[strategy], "--num_epochs=2000", "--evaluation_steps=50"]
    with RunningJob(folder, words(folder, "early_stopping", *more), cwd=folder) as job:
        summary = job.finish()
    assert summary["message"].startswith("EarlyStopping stopped training after ")
    trained = [(row["repeated"], row["lost"]) for row in summary["ledger"]]
    assert trained == [(0, 0)] * len(trained)
    assert 2 <= len(trained) < 2000
    assert summary["metrics"]["loss"] < 0.05


@pytest.mark.long
def test_the_next_worker_knows_what_a_callback_remembered_in_one_that_was_killed(folder):
    strategy = ["--distribution_strategy=ParameterServerStrategy", "--num_ps_pods=1"]
    more = [*strategy, "--num_workers=1", "--num_epochs=5000"]
    with RunningJob(folder, words(folder, "two_workers", *more), cwd=folder) as job:
        job.until_trained(3 * NUM_TRAINING)
        job.send("worker")
        summary = job.finish()
        stopped = job.events("training stopped")
    pids, num_epochs = json.loads((folder / "remembered.json").read_text())
    assert len(set(pids)) == 2
    assert num_epochs > 3
    assert [event["text"] for event in stopped] == ["TwoWorkers stops training"]
    assert [(row["repeated"], row["lost"]) for row in summary["ledger"]][:num_epochs] == (
        [(0, 0)] * num_epochs
    )
