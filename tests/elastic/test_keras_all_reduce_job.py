"""A Keras model trains by all-reduce and loses a worker; what it leaves serves, and goes on."""

import json
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.example import encode_examples
from elasticdl.observe.events import read_events
from tests.elastic.running_job import RunningJob, elasticdl, run
from tests.elastic.synthetic_flights import write_parts

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
MODEL = (
    f"--model_zoo={ZOO}",
    "--model_def=mnist.mnist_functional_api.custom_model",
    "--minibatch_size=32",
)
NUM_TRAINING, NUM_VALIDATION = 6_000, 600

pytestmark = [pytest.mark.keras, pytest.mark.long, pytest.mark.timeout(400)]


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
    write_parts(folder, records, NUM_TRAINING)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """Train with three workers; one is killed when a third is done."""
    words = elasticdl(
        "train",
        *MODEL,
        "--training_data=train.recordio",
        "--validation_data=validation.recordio",
        "--distribution_strategy=AllreduceStrategy",
        "--num_workers=3",
        "--num_minibatches_per_task=5",
        "--learning_rate=0.02",
        "--evaluation_steps=40",
        "--checkpoint_dir=checkpoints",
        "--checkpoint_steps=30",
        "--output=export",
        "--job_dir=job",
        "--summary=summary.json",
    )
    with RunningJob(folder, words, cwd=folder) as job:
        job.strike((1 / 3, "worker", 1))
        return job.finish()


def test_no_record_is_lost_or_repeated_and_nobody_restarted(trained, folder):
    (line,) = trained["ledger"]
    assert (line["trained_once"], line["repeated"], line["lost"]) == (NUM_TRAINING, 0, 0)
    events = list(read_events(folder / "job"))
    assert [event["event"] for event in events].count("lost") == 1
    assert not [event for event in events if event["event"] == "world restored"]
    assert trained["staleness"]["max"] == 0


def test_the_model_has_learned(trained):
    assert trained["metrics"]["accuracy"] > 0.7


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
    summary, data = tmp_path / "summary.json", "--validation_data=validation.recordio"
    places = {"summary": summary, "job_dir": tmp_path / "job"}
    run(elasticdl("evaluate", *MODEL, data, *source, **places), cwd=folder)
    metrics = json.loads(summary.read_text())["metrics"]
    assert metrics == pytest.approx(trained["metrics"], abs=2e-5)


def test_a_checkpoint_goes_on_in_a_world_of_another_size(trained, folder, tmp_path):
    summary = tmp_path / "summary.json"
    words = elasticdl(
        "train",
        *MODEL,
        "--training_data=train.recordio",
        "--validation_data=validation.recordio",
        "--distribution_strategy=AllreduceStrategy",
        "--num_workers=2",
        "--learning_rate=0.02",
        "--checkpoint_dir_for_init=checkpoints",
        job_dir=tmp_path / "job",
        summary=summary,
    )
    run(words, cwd=folder)
    again = json.loads(summary.read_text())
    assert again["ledger"][0]["trained_once"] == NUM_TRAINING
    assert again["metrics"]["accuracy"] >= trained["metrics"]["accuracy"] - 0.1
    assert again["model_version"] > trained["model_version"]


def test_predictions_by_all_reduce_cover_every_record(trained, folder, tmp_path):
    words = ("--prediction_data=validation.recordio", "--checkpoint_dir_for_init=checkpoints")
    strategy = ("--distribution_strategy=AllreduceStrategy", "--num_workers=2")
    output = tmp_path / "predictions"
    places = {"output": output, "job_dir": tmp_path / "job"}
    run(elasticdl("predict", *MODEL, *words, *strategy, **places), cwd=folder)
    records = []
    for file in output.iterdir():
        with np.load(file) as arrays:
            records.append(arrays["record"])
    np.testing.assert_array_equal(np.sort(np.concatenate(records)), np.arange(NUM_VALIDATION))
