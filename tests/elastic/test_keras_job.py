"""A job on TensorFlow, of real processes, loses a worker and a ps replica; its results serve."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples

ROOT = Path(__file__).resolve().parents[2]
NUM_RECORDS = 120_000

pytestmark = [pytest.mark.keras, pytest.mark.timeout(400)]


def command(name, *flags):
    return [
        sys.executable,
        "-m",
        "elasticdl.cli.main",
        name,
        f"--model_zoo={ROOT / 'model_zoo'}",
        "--model_def=flights.deepfm.forward",
        "--minibatch_size=512",
        *flags,
    ]


def metrics_of(summary):
    assert summary["status"] == "finished"
    return summary["metrics"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, load_module):
    """Write flights whose lateness depends on their carrier and hour alone."""
    folder = tmp_path_factory.mktemp("keras-job")
    fields = load_module(ROOT / "model_zoo" / "flights" / "fields.py")
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(size, size=NUM_RECORDS) for name, size in fields.FIELDS.items()}
    odds = 1 / (1 + np.exp(-(columns["carrier"] - 12) / 4.0 - (columns["hour"] - 12) / 4.0))
    columns[fields.LABEL] = (rng.random(NUM_RECORDS) < odds).astype(np.int64)
    records = encode_examples(columns)
    for name, part in (("train", records[20_000:]), ("validation", records[:20_000])):
        with RecordWriter(str(folder / f"{name}.recordio")) as writer:
            for record in part:
                writer.write(record)
    return folder


@pytest.fixture(scope="module")
def trained(folder, chaos):
    """Train; a worker is killed after a tenth of the work, a ps replica after a third."""
    job_dir = folder / "job"
    log = (folder / "train.log").open("w")
    job = subprocess.Popen(
        command(
            "train",
            f"--training_data={folder / 'train.recordio'}",
            f"--validation_data={folder / 'validation.recordio'}",
            "--distribution_strategy=ParameterServerStrategy",
            "--num_workers=2",
            "--num_ps_pods=2",
            "--num_minibatches_per_task=10",
            "--num_epochs=3",
            "--evaluation_steps=200",
            f"--checkpoint_dir={folder / 'checkpoints'}",
            "--checkpoint_steps=100",
            f"--output={folder / 'export'}",
            f"--job_dir={job_dir}",
            f"--summary={folder / 'train.json'}",
        ),
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        master = chaos.connect(job_dir, job)
        faults = [(1 / 10, "worker"), (1 / 3, "ps")]
        for status in master.watch(give_up_seconds=60):
            if faults and status.records_done > faults[0][0] * status.records_total:
                _, role = faults.pop(0)
                os.kill(chaos.processes(job_dir, role)[0].pid, signal.SIGKILL)
        assert job.wait() == 0, (folder / "train.log").read_text()
        master.close()
    finally:
        job.kill()
        job.wait()
        log.close()
    assert not faults
    return json.loads((folder / "train.json").read_text())


def test_no_record_is_lost_or_repeated(trained):
    assert [recovery["is_replayed"] for recovery in trained["recoveries"]] == [True]
    assert [(row["trained_once"], row["repeated"], row["lost"]) for row in trained["ledger"]] == [
        (100_000, 0, 0)
    ] * 3


def test_the_model_has_learned(trained):
    assert metrics_of(trained)["auc"] > 0.8


@pytest.mark.parametrize(
    "source",
    [
        ["--checkpoint_dir_for_init=checkpoints"],
        [
            "--checkpoint_dir_for_init=checkpoints",
            "--distribution_strategy=ParameterServerStrategy",
            "--num_ps_pods=3",
        ],
        ["--saved_model=export"],
    ],
    ids=["checkpoint", "checkpoint on three ps replicas", "export"],
)
def test_an_evaluation_afterwards_gives_the_metrics_of_the_job(source, trained, folder, tmp_path):
    done = subprocess.run(
        command(
            "evaluate",
            f"--validation_data={folder / 'validation.recordio'}",
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
    assert "oneDNN" not in done.stderr  # what TensorFlow says whenever it starts
    metrics = metrics_of(json.loads((tmp_path / "summary.json").read_text()))
    assert metrics == pytest.approx(metrics_of(trained), abs=2e-5)


def test_predictions_from_the_export_cover_every_record_in_order(trained, folder, tmp_path):
    done = subprocess.run(
        command(
            "predict",
            f"--prediction_data={folder / 'validation.recordio'}",
            "--saved_model=export",
            f"--output={tmp_path / 'predictions'}",
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    parts = []
    for file in (tmp_path / "predictions").iterdir():
        with np.load(file) as arrays:
            parts.append(dict(arrays))
    records = np.sort(np.concatenate([part["record"] for part in parts]))
    np.testing.assert_array_equal(records, np.arange(20_000))
    assert all(len(part["output"]) == len(part["record"]) for part in parts)
