"""The flights DeepFM as a hybrid job loses a worker and a ps replica, and its export serves."""

import json
from pathlib import Path

import pytest

from tests.elastic.running_job import RunningJob, elasticdl, run
from tests.elastic.synthetic_flights import write_flights

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
MODEL = (f"--model_zoo={ZOO}", "--model_def=flights.deepfm.forward", "--minibatch_size=256")
NUM_TRAINING, NUM_VALIDATION = 60_000, 10_000

pytestmark = [pytest.mark.keras, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras-hybrid")
    write_flights(folder, NUM_TRAINING, NUM_VALIDATION)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """Train; a worker is killed after a third of the work, a ps replica after half of it."""
    words = elasticdl(
        "train",
        *MODEL,
        "--training_data=train.recordio",
        "--validation_data=validation.recordio",
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
        "--job_dir=job",
        "--summary=summary.json",
    )
    with RunningJob(folder, words, cwd=folder) as job:
        job.strike((1 / 3, "worker", 0), (1 / 2, "ps", 0))
        return job.finish()


@pytest.fixture(scope="module")
def gone_on(trained, folder):
    """Train on with ps replicas alone, at a rate that changes nothing."""
    words = elasticdl(
        "train",
        *MODEL,
        "--training_data=validation.recordio",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=1",
        "--num_ps_pods=3",
        "--checkpoint_dir_for_init=checkpoints",
        "--checkpoint_dir=on-ps-replicas",
        "--learning_rate=1e-12",
    )
    run(words, cwd=folder)


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
        ["--checkpoint_dir_for_init=checkpoints"],
        [
            "--checkpoint_dir_for_init=on-ps-replicas",
            "--distribution_strategy=HybridStrategy",
            "--num_workers=1",
            "--num_ps_pods=2",
        ],
    ],
    ids=[
        "export",
        "checkpoint on three ps replicas",
        "checkpoint in one process",
        "checkpoint that went on with ps replicas alone",
    ],
)
def test_an_evaluation_afterwards_gives_the_metrics_of_the_job(
    source, trained, gone_on, folder, tmp_path
):
    summary, data = tmp_path / "summary.json", "--validation_data=validation.recordio"
    places = {"summary": summary, "job_dir": tmp_path / "job"}
    run(elasticdl("evaluate", *MODEL, data, *source, **places), cwd=folder)
    metrics = json.loads(summary.read_text())["metrics"]
    assert metrics == pytest.approx(trained["metrics"], abs=2e-5)
