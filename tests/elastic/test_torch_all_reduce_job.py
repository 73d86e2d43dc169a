"""A network with batch norm and dropout in PyTorch trains by all-reduce, and loses a worker."""

import json
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.example import encode_examples
from tests.elastic.running_job import RunningJob, elasticdl, run
from tests.elastic.synthetic_flights import write_parts

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
MODEL = (
    f"--model_zoo={ZOO}",
    "--model_def=mnist.model_torch.custom_model",
    "--validation_data=validation.recordio",
)
NUM_EPOCHS, NUM_TRAINING = 5, 1500

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write handwritten digits of 8 x 8 pixels, enlarged and framed to the 28 x 28 of MNIST."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("torch-all-reduce")
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) * (255 / 16)
    images = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    records = encode_examples({"image": images.astype(np.float32), "label": labels})
    write_parts(folder, records, NUM_TRAINING)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """Train; one of three workers is killed after a third of the work."""
    words = elasticdl(
        "train",
        *MODEL,
        "--training_data=train.recordio",
        "--distribution_strategy=AllreduceStrategy",
        "--num_workers=3",
        "--minibatch_size=10",
        "--num_minibatches_per_task=5",
        f"--num_epochs={NUM_EPOCHS}",
        "--learning_rate=0.05",
        "--heartbeat_seconds=0.2",
        "--output=export",
        "--job_dir=job",
        "--summary=summary.json",
    )
    with RunningJob(folder, words, cwd=folder) as job:
        job.strike((1 / 3, "worker", 1))
        return job.finish()


def test_each_record_counts_once_and_the_model_learns(trained):
    assert [(row["trained_once"], row["repeated"], row["lost"]) for row in trained["ledger"]] == [
        (NUM_TRAINING, 0, 0)
    ] * NUM_EPOCHS
    # How many updates there are depends on who has tasks at the same time; chance gives 0.1.
    assert trained["metrics"]["accuracy"] > 0.5
    assert trained["staleness"]["max"] == 0


def test_the_export_has_the_metrics_of_the_job(trained, folder, tmp_path):
    summary = tmp_path / "summary.json"
    run(elasticdl("evaluate", *MODEL, "--saved_model=export", summary=summary), cwd=folder)
    metrics = json.loads(summary.read_text())["metrics"]
    assert metrics == pytest.approx(trained["metrics"], abs=1e-6)
