"""A network with batch norm and dropout in PyTorch trains by all-reduce, and loses a worker."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

ROOT = Path(__file__).resolve().parents[2]
NUM_EPOCHS, NUM_VALIDATION = 5, 297

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write handwritten digits of 8 x 8 pixels, enlarged and framed to the 28 x 28 of MNIST."""
    folder = tmp_path_factory.mktemp("torch-all-reduce")
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) * (255 / 16)
    images = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    records = encode_examples({"image": images.astype(np.float32), "label": labels})
    parts = {"train": records[NUM_VALIDATION:], "validation": records[:NUM_VALIDATION]}
    for name, part in parts.items():
        with RecordWriter(str(folder / f"{name}.recordio")) as writer:
            writer.write_many(part)
    return folder


def command(folder, name, *flags):
    return [
        sys.executable,
        "-m",
        "elasticdl.cli.main",
        name,
        f"--model_zoo={ROOT / 'model_zoo'}",
        "--model_def=mnist.model_torch.custom_model",
        f"--validation_data={folder / 'validation.recordio'}",
        *flags,
    ]


@pytest.fixture(scope="module")
def trained(folder, chaos):
    """Train; one of three workers is killed after a third of the work."""
    job_dir = folder / "job"
    words = command(
        folder,
        "train",
        f"--training_data={folder / 'train.recordio'}",
        "--distribution_strategy=AllreduceStrategy",
        "--num_workers=3",
        "--minibatch_size=10",
        "--num_minibatches_per_task=5",
        f"--num_epochs={NUM_EPOCHS}",
        "--learning_rate=0.05",
        "--heartbeat_seconds=0.2",
        f"--output={folder / 'export'}",
        f"--job_dir={job_dir}",
        f"--summary={folder / 'train.json'}",
    )
    with (folder / "train.log").open("w") as log:
        job = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    is_killed = False
    try:
        master = chaos.connect(job_dir, job)
        for status in master.watch(give_up_seconds=60):
            if not is_killed and status.records_done > status.records_total / 3:
                os.kill(chaos.processes(job_dir, "worker")[1].pid, signal.SIGKILL)
                is_killed = True
        assert job.wait() == 0, (folder / "train.log").read_text()
        master.close()
    finally:
        job.kill()
        job.wait()
    assert is_killed
    return json.loads((folder / "train.json").read_text())


def test_each_record_counts_once_and_the_model_learns(trained):
    assert [(row["trained_once"], row["repeated"], row["lost"]) for row in trained["ledger"]] == [
        (1500, 0, 0)
    ] * NUM_EPOCHS
    assert trained["metrics"]["accuracy"] > 0.8
    assert trained["staleness"]["max"] == 0


def test_the_export_has_the_metrics_of_the_job(trained, folder, tmp_path):
    summary = tmp_path / "summary.json"
    done = subprocess.run(
        command(folder, "evaluate", "--saved_model=export", f"--summary={summary}"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    metrics = json.loads(summary.read_text())["metrics"]
    assert metrics == pytest.approx(trained["metrics"], abs=1e-6)
