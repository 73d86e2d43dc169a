"""A job in PyTorch, of real processes, loses a worker and a ps replica; its results are used."""

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

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

ROOT = Path(__file__).resolve().parents[2]
NUM_RECORDS = 60_000
NUM_VALIDATION = 10_000

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

# Nothing of elasticdl can be imported here.
SCORE = """
import sys
sys.modules["elasticdl"] = None
import numpy as np
import torch
program = torch.export.load(sys.argv[1]).module()
ids = torch.from_numpy(np.load(sys.argv[2]))
np.save(sys.argv[3], program(ids).detach().numpy())
"""


def command(name, *flags):
    return [
        sys.executable,
        "-m",
        "elasticdl.cli.main",
        name,
        f"--model_zoo={ROOT / 'model_zoo'}",
        "--model_def=flights.deepfm_torch.forward",
        "--minibatch_size=512",
        *flags,
    ]


def run(folder, *words):
    """Run a command where TensorFlow and Keras cannot be imported."""
    done = subprocess.run(
        command(*words), cwd=folder, env=without_keras(folder), capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def without_keras(folder):
    blocked = folder / "blocked"
    blocked.mkdir(exist_ok=True)
    for name in ("tensorflow", "keras"):
        (blocked / f"{name}.py").write_text(f"raise AssertionError('a job imports {name}')\n")
    path = os.pathsep.join([str(blocked), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, load_module):
    """Write flights whose lateness depends on their carrier and hour alone."""
    folder = tmp_path_factory.mktemp("torch-job")
    fields = load_module(ROOT / "model_zoo" / "flights" / "fields.py")
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(size, size=NUM_RECORDS) for name, size in fields.FIELDS.items()}
    odds = 1 / (1 + np.exp(-(columns["carrier"] - 12) / 4.0 - (columns["hour"] - 12) / 4.0))
    columns[fields.LABEL] = (rng.random(NUM_RECORDS) < odds).astype(np.int64)
    records = encode_examples(columns)
    parts = {"train": records[NUM_VALIDATION:], "validation": records[:NUM_VALIDATION]}
    for name, part in parts.items():
        with RecordWriter(str(folder / f"{name}.recordio")) as writer:
            writer.write_many(part)
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
            "--num_minibatches_per_task=5",
            "--num_epochs=4",
            "--evaluation_steps=100",
            f"--checkpoint_dir={folder / 'checkpoints'}",
            "--checkpoint_steps=50",
            f"--output={folder / 'export'}",
            f"--job_dir={job_dir}",
            f"--summary={folder / 'train.json'}",
        ),
        stdout=log,
        stderr=subprocess.STDOUT,
        env=without_keras(folder),
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
    summary = json.loads((folder / "train.json").read_text())
    assert summary["status"] == "finished"
    return summary


def test_no_record_is_lost_or_repeated(trained):
    assert [recovery["is_replayed"] for recovery in trained["recoveries"]] == [True]
    found = [(row["trained_once"], row["repeated"], row["lost"]) for row in trained["ledger"]]
    assert found == [(NUM_RECORDS - NUM_VALIDATION, 0, 0)] * 4


def test_the_model_has_learned(trained):
    assert trained["metrics"]["accuracy"] > 0.78


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
    run(
        folder,
        "evaluate",
        f"--validation_data={folder / 'validation.recordio'}",
        f"--summary={tmp_path / 'summary.json'}",
        f"--job_dir={tmp_path / 'job'}",
        *source,
    )
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert metrics == pytest.approx(trained["metrics"], abs=2e-5)


@pytest.fixture(scope="module")
def predictions(trained, folder):
    """Return the predictions for the validation data, in order, from the checkpoint."""
    return predicted(folder, "from-checkpoint", "--checkpoint_dir_for_init=checkpoints")


def predicted(folder, output, *source):
    run(
        folder,
        "predict",
        f"--prediction_data={folder / 'validation.recordio'}",
        f"--output={folder / output}",
        *source,
    )
    parts = []
    for file in (folder / output).iterdir():
        with np.load(file) as arrays:
            parts.append(dict(arrays))
    records = np.concatenate([part["record"] for part in parts])
    order = np.argsort(records)
    np.testing.assert_array_equal(records[order], np.arange(NUM_VALIDATION))
    return np.concatenate([part["output"] for part in parts])[order]


def test_a_training_goes_on_from_the_checkpoint(trained, folder, tmp_path):
    run(
        folder,
        "train",
        f"--training_data={folder / 'train.recordio'}",
        f"--validation_data={folder / 'validation.recordio'}",
        "--checkpoint_dir_for_init=checkpoints",
        "--learning_rate=1e-12",
        f"--summary={tmp_path / 'summary.json'}",
    )
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert metrics == pytest.approx(trained["metrics"], abs=2e-5)


def test_predictions_from_the_export_are_those_from_the_checkpoint(predictions, folder):
    found = predicted(folder, "from-export", "--saved_model=export")
    np.testing.assert_allclose(found, predictions, atol=1e-5)


def test_the_exported_program_predicts_the_same_without_elasticdl(predictions, folder, tmp_path):
    from elasticdl import Mode
    from elasticdl._core import RecordReader
    from elasticdl.backends.torch.feed import TaskRecords
    from elasticdl.config import ModelSection
    from elasticdl.data.base import Metadata
    from elasticdl.model_spec import load_model_spec

    section = ModelSection(model_zoo=ROOT / "model_zoo", model_def="flights.deepfm_torch.forward")
    records = RecordReader(folder / "validation.recordio").read(0, NUM_VALIDATION)
    feed = load_model_spec(section).feed
    np.save(tmp_path / "ids.npy", feed(TaskRecords(records, {}), Mode.PREDICTION, Metadata()))

    files = [folder / "export" / "model.pt2", tmp_path / "ids.npy", tmp_path / "out.npy"]
    done = subprocess.run(
        [sys.executable, "-c", SCORE, *map(str, files)], capture_output=True, text=True, timeout=200
    )

    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), predictions, atol=1e-5)
