"""A real model on real data: the same job on a cluster and on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.chaos.job import ROOT
from tests.clusters.kubernetes.namespace import Namespace
from tests.packages.kubernetes.cluster.job import CLI, ClusterJob

pytestmark = [pytest.mark.kubernetes, pytest.mark.keras, pytest.mark.timeout(900)]

VARIES = 0.01  # by so much the AUC of an asynchronous run differs from one run to the next
BASELINE_AUC = 0.72  # of what the model learns in one epoch
SAME = {
    "model_zoo": "model_zoo",
    "model_def": "flights.deepfm.forward",
    "distribution_strategy": "ParameterServerStrategy",
    "num_workers": 3,
    "num_ps_pods": 2,
    "num_epochs": 1,
    "minibatch_size": 512,
    "num_minibatches_per_task": 20,
}


@pytest.fixture
def job(namespace: Namespace, tmp_path: Path):
    job = ClusterJob(namespace, tmp_path, name="flights")
    job.epochs = 1
    yield job
    job.close()


def prepare(folder: Path) -> None:
    command = [sys.executable, "-m", "flights.prepare", f"--output={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "model_zoo")}
    subprocess.run(command, env=environment, check=True, timeout=300)


def train_here(folder: Path) -> dict:
    flags = SAME | {
        "training_data": folder / "flights" / "train",
        "validation_data": folder / "flights" / "validation",
        "job_dir": folder / "local",
        "summary": folder / "local.json",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    done = subprocess.run(
        [*CLI, "train", *words], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "local.json").read_text())


def test_the_flights_job_on_a_cluster_equals_the_one_on_this_machine(job, tmp_path):
    prepare(tmp_path / "flights")
    expected = train_here(tmp_path)

    job.start(
        **SAME,
        training_data="/data/flights/train",
        validation_data="/data/flights/validation",
        output="",
        worker_resource_request="cpu=1,memory=2Gi",
    )
    assert job.end() == 0, "".join(job.lines)

    found = job.summary()
    assert found["ledger"] == expected["ledger"]
    assert job.has_exact_ledger()
    aucs = found["metrics"]["auc"], expected["metrics"]["auc"]
    assert min(aucs) > BASELINE_AUC
    assert abs(aucs[0] - aucs[1]) < VARIES, aucs
