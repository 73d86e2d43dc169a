"""A job on TensorFlow, of real processes, loses a worker and a ps replica; its results serve."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.elastic.running_job import RunningJob, elasticdl, run
from tests.elastic.synthetic_flights import write_flights

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
MODEL = (f"--model_zoo={ZOO}", "--model_def=flights.deepfm.forward", "--minibatch_size=512")
NUM_TRAINING, NUM_VALIDATION = 100_000, 20_000

pytestmark = [pytest.mark.keras, pytest.mark.timeout(400)]


def metrics_of(summary):
    assert summary["status"] == "finished"
    return summary["metrics"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras-job")
    write_flights(folder, NUM_TRAINING, NUM_VALIDATION)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """Train; a worker is killed after a tenth of the work, a ps replica after a third."""
    words = elasticdl(
        "train",
        *MODEL,
        "--training_data=train.recordio",
        "--validation_data=validation.recordio",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=2",
        "--num_ps_pods=2",
        "--num_minibatches_per_task=10",
        "--num_epochs=3",
        "--evaluation_steps=200",
        "--checkpoint_dir=checkpoints",
        "--checkpoint_steps=100",
        "--output=export",
        "--job_dir=job",
        "--summary=summary.json",
    )
    with RunningJob(folder, words, cwd=folder) as job:
        job.strike((1 / 10, "worker", 0), (1 / 3, "ps", 0))
        return job.finish()


def test_no_record_is_lost_or_repeated(trained):
    assert [recovery["is_replayed"] for recovery in trained["recoveries"]] == [True]
    assert [(row["trained_once"], row["repeated"], row["lost"]) for row in trained["ledger"]] == [
        (NUM_TRAINING, 0, 0)
    ] * 3


def test_the_model_has_learned(trained):
    assert metrics_of(trained)["auc"] > 0.8


@pytest.mark.parametrize(
    "source",
    [
        ["--checkpoint_dir_for_init=checkpoints"],
        pytest.param(
            [
                "--checkpoint_dir_for_init=checkpoints",
                "--distribution_strategy=ParameterServerStrategy",
                "--num_ps_pods=3",
            ],
            marks=pytest.mark.long,
        ),
        pytest.param(["--saved_model=export"], marks=pytest.mark.long),
    ],
    ids=["checkpoint", "checkpoint on three ps replicas", "export"],
)
def test_an_evaluation_afterwards_gives_the_metrics_of_the_job(source, trained, folder, tmp_path):
    summary, data = tmp_path / "summary.json", "--validation_data=validation.recordio"
    places = {"summary": summary, "job_dir": tmp_path / "job"}
    done = run(elasticdl("evaluate", *MODEL, data, *source, **places), cwd=folder)
    assert "oneDNN" not in done.stderr  # what TensorFlow says whenever it starts
    metrics = metrics_of(json.loads(summary.read_text()))
    assert metrics == pytest.approx(metrics_of(trained), abs=2e-5)


def test_predictions_from_the_export_cover_every_record_in_order(trained, folder, tmp_path):
    output = tmp_path / "predictions"
    words = ("--prediction_data=validation.recordio", "--saved_model=export")
    run(elasticdl("predict", *MODEL, *words, output=output), cwd=folder)
    parts = []
    for file in output.iterdir():
        with np.load(file) as arrays:
            parts.append(dict(arrays))
    records = np.sort(np.concatenate([part["record"] for part in parts]))
    np.testing.assert_array_equal(records, np.arange(NUM_VALIDATION))
    assert all(len(part["output"]) == len(part["record"]) for part in parts)
