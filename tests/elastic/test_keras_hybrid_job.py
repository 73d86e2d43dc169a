"""The flights DeepFM as a hybrid job loses a worker and a ps replica, and its export serves."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples

ROOT = Path(__file__).resolve().parents[2]
NUM_TRAINING, NUM_VALIDATION = 60_000, 10_000

pytestmark = [pytest.mark.keras, pytest.mark.timeout(400)]


def command(name, *flags):
    return [
        sys.executable,
        "-m",
        "elasticdl.cli.main",
        name,
        f"--model_zoo={ROOT / 'model_zoo'}",
        "--model_def=flights.deepfm.forward",
        "--minibatch_size=256",
        *flags,
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, load_module):
    """Write flights whose lateness depends on their carrier and hour alone."""
    folder = tmp_path_factory.mktemp("keras-hybrid")
    fields = load_module(ROOT / "model_zoo" / "flights" / "fields.py")
    rng = np.random.default_rng(0)
    num_records = NUM_TRAINING + NUM_VALIDATION
    columns = {name: rng.integers(size, size=num_records) for name, size in fields.FIELDS.items()}
    odds = 1 / (1 + np.exp(-(columns["carrier"] - 12) / 4.0 - (columns["hour"] - 12) / 4.0))
    columns[fields.LABEL] = (rng.random(num_records) < odds).astype(np.int64)
    records = encode_examples(columns)
    for name, part in (("train", records[:NUM_TRAINING]), ("valid", records[NUM_TRAINING:])):
        with RecordWriter(str(folder / f"{name}.recordio")) as writer:
            writer.write_many(part)
    return folder


@pytest.fixture(scope="module")
def trained(folder, chaos):
    """Train; a worker is killed after a third of the work, a ps replica after half of it."""
    job_dir = folder / "job"
    with (folder / "train.log").open("w") as log:
        job = subprocess.Popen(
            command(
                "train",
                "--training_data=train.recordio",
                "--validation_data=valid.recordio",
                "--distribution_strategy=HybridStrategy",
                "--num_workers=2",
                "--num_ps_pods=2",
                "--num_minibatches_per_task=10",
                "--num_epochs=2",
                "--evaluation_steps=100",
                "--checkpoint_dir=checkpoints",
                "--checkpoint_steps=60",
                "--recovery_seconds=2",
                "--output=export",
                f"--job_dir={job_dir}",
                "--summary=train.json",
            ),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        master = chaos.connect(job_dir, job)
        faults = [(1 / 3, "worker"), (1 / 2, "ps")]
        for status in master.watch(give_up_seconds=200):
            if faults and status.records_done > faults[0][0] * status.records_total:
                _, role = faults.pop(0)
                chaos.processes(job_dir, role)[0].send_signal(signal.SIGKILL)
        assert job.wait() == 0, (folder / "train.log").read_text()
        master.close()
    finally:
        job.kill()
        job.wait()
    assert not faults
    return json.loads((folder / "train.json").read_text())


def test_no_record_is_lost_or_repeated_in_either_holder(trained):
    assert [recovery["is_replayed"] for recovery in trained["recoveries"]] == [True]
    assert [(row["trained_once"], row["repeated"], row["lost"]) for row in trained["ledger"]] == [
        (NUM_TRAINING, 0, 0)
    ] * 2


def test_the_model_has_learned(trained):
    assert trained["status"] == "finished"
    assert trained["metrics"]["auc"] > 0.8


@pytest.mark.parametrize(
    "source",
    [
        ["--saved_model=export"],
        [
            "--checkpoint_dir_for_init=checkpoints",
            "--distribution_strategy=HybridStrategy",
            "--num_workers=2",
            "--num_ps_pods=3",
        ],
    ],
    ids=["export", "checkpoint on three ps replicas"],
)
def test_an_evaluation_afterwards_gives_the_metrics_of_the_job(source, trained, folder, tmp_path):
    done = subprocess.run(
        command(
            "evaluate",
            "--validation_data=valid.recordio",
            f"--summary={tmp_path / 'summary.json'}",
            f"--job_dir={tmp_path / 'job'}",
            *source,
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert metrics == pytest.approx(trained["metrics"], abs=2e-5)
