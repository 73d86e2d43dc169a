"""A Keras model trains by all-reduce and loses a worker; what it leaves serves, and goes on."""

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
from elasticdl.observe.events import read_events

ROOT = Path(__file__).resolve().parents[2]
NUM_TRAINING, NUM_VALIDATION = 6_000, 600

pytestmark = [pytest.mark.keras, pytest.mark.long, pytest.mark.timeout(400)]


def command(name, *flags):
    return [
        sys.executable,
        "-m",
        "elasticdl.cli.main",
        name,
        f"--model_zoo={ROOT / 'model_zoo'}",
        "--model_def=mnist.mnist_functional_api.custom_model",
        "--minibatch_size=32",
        *flags,
    ]


def run(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write images in which the label is a bright stripe, on noise."""
    folder = tmp_path_factory.mktemp("keras-all-reduce")
    rng = np.random.default_rng(0)
    num_records = NUM_TRAINING + NUM_VALIDATION
    labels = rng.integers(10, size=num_records)
    images = rng.uniform(0, 120, size=(num_records, 28, 28)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[2 * label + 4 : 2 * label + 6] += 120
    records = encode_examples({"image": images.reshape(num_records, -1), "label": labels})
    for name, part in (("train", records[:NUM_TRAINING]), ("valid", records[NUM_TRAINING:])):
        with RecordWriter(str(folder / f"{name}.recordio")) as writer:
            writer.write_many(part)
    return folder


@pytest.fixture(scope="module")
def trained(folder, chaos):
    """Train with three workers; one is killed when a third is done."""
    job_dir = folder / "job"
    with (folder / "train.log").open("w") as log:
        job = subprocess.Popen(
            command(
                "train",
                "--training_data=train.recordio",
                "--validation_data=valid.recordio",
                "--distribution_strategy=AllreduceStrategy",
                "--num_workers=3",
                "--num_minibatches_per_task=5",
                "--learning_rate=0.02",
                "--evaluation_steps=40",
                "--checkpoint_dir=checkpoints",
                "--checkpoint_steps=30",
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
        for status in master.watch(give_up_seconds=120):
            if status.records_done > NUM_TRAINING / 3:
                os.kill(chaos.processes(job_dir, "worker")[1].pid, signal.SIGKILL)
                break
        assert job.wait() == 0, (folder / "train.log").read_text()
        master.close()
    finally:
        job.kill()
        job.wait()
    return json.loads((folder / "train.json").read_text())


def test_no_record_is_lost_or_repeated_and_nobody_restarted(trained, folder):
    (line,) = trained["ledger"]
    assert (line["trained_once"], line["repeated"], line["lost"]) == (NUM_TRAINING, 0, 0)
    events = list(read_events(folder / "job"))
    assert [event["event"] for event in events].count("lost") == 1
    assert not [event for event in events if event["event"] == "world restored"]
    assert trained["staleness"]["max"] == 0


def test_the_model_has_learned(trained):
    assert trained["metrics"]["accuracy"] > 0.9


@pytest.mark.parametrize(
    "source",
    [
        ["--checkpoint_dir_for_init=checkpoints"],
        [
            "--checkpoint_dir_for_init=checkpoints",
            "--distribution_strategy=AllreduceStrategy",
            "--num_workers=2",
        ],
        ["--saved_model=export"],
    ],
    ids=["in one process", "by all-reduce", "export"],
)
def test_an_evaluation_afterwards_gives_the_metrics_of_the_job(source, trained, folder, tmp_path):
    words = ("--validation_data=valid.recordio", f"--job_dir={tmp_path / 'job'}")
    run(command("evaluate", *words, f"--summary={tmp_path / 'summary.json'}", *source), folder)
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert metrics == pytest.approx(trained["metrics"], abs=2e-5)


def test_a_checkpoint_goes_on_in_a_world_of_another_size(trained, folder, tmp_path):
    run(
        command(
            "train",
            "--training_data=train.recordio",
            "--validation_data=valid.recordio",
            "--distribution_strategy=AllreduceStrategy",
            "--num_workers=2",
            "--learning_rate=0.02",
            "--checkpoint_dir_for_init=checkpoints",
            f"--job_dir={tmp_path / 'job'}",
            f"--summary={tmp_path / 'summary.json'}",
        ),
        folder,
    )
    again = json.loads((tmp_path / "summary.json").read_text())
    assert again["ledger"][0]["trained_once"] == NUM_TRAINING
    assert again["metrics"]["accuracy"] >= trained["metrics"]["accuracy"] - 0.02
    assert again["model_version"] > trained["model_version"]


def test_predictions_by_all_reduce_cover_every_record(trained, folder, tmp_path):
    words = ("--prediction_data=valid.recordio", "--checkpoint_dir_for_init=checkpoints")
    strategy = ("--distribution_strategy=AllreduceStrategy", "--num_workers=2")
    output = tmp_path / "predictions"
    places = (f"--output={output}", f"--job_dir={tmp_path / 'job'}")
    run(command("predict", *words, *strategy, *places), folder)
    records = []
    for file in output.iterdir():
        with np.load(file) as arrays:
            records.append(arrays["record"])
    np.testing.assert_array_equal(np.sort(np.concatenate(records)), np.arange(NUM_VALIDATION))
