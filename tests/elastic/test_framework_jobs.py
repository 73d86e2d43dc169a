"""Jobs of real models lose processes: no record is lost, the model learns, its results are used.

What is lost, and when, is tested with models that count (`test_all_reduce_job.py`,
`test_hybrid_job.py`, `test_chaos_ps.py`); this shows that each framework does as those.
"""

import json

import numpy as np
import pytest

from tests.elastic.framework_jobs import JOBS
from tests.elastic.running_job import RunningJob

pytestmark = pytest.mark.timeout(600)

VALIDATION = "--validation_data=validation.recordio"
LONG = pytest.mark.long
CHECKPOINT, EXPORT = "--checkpoint_dir_for_init=checkpoints", "--saved_model=export"


@pytest.fixture(scope="module", params=JOBS)
def job(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, job):
    folder = tmp_path_factory.mktemp("framework-job")
    job.write(folder, job.num_training, job.num_validation)
    return folder


@pytest.fixture(scope="module")
def trained(job, folder):
    """Train while processes are killed; return the summary."""
    words = job.words(
        "train",
        "--training_data=train.recordio",
        VALIDATION,
        f"--distribution_strategy={job.strategy}",
        *job.train,
        f"--num_epochs={job.num_epochs}",
        "--checkpoint_dir=checkpoints",
        "--output=export",
        "--job_dir=job",
        "--summary=summary.json",
    )
    with RunningJob(folder, words, cwd=folder, env=job.environment(folder)) as running:
        running.strike(*job.faults)
        summary = running.finish()
        assert not running.events("world restored")
        assert len(running.events("lost")) == len(job.faults)
    assert summary["status"] == "finished"
    return summary


def test_no_record_is_lost_or_repeated(trained, job):
    assert [recovery["is_replayed"] for recovery in trained["recoveries"]] == (
        [True] if job.loses_replica else []
    )
    assert [(row["trained_once"], row["repeated"], row["lost"]) for row in trained["ledger"]] == [
        (job.num_training, 0, 0)
    ] * job.num_epochs
    assert job.loses_replica or trained["staleness"]["max"] == 0


def test_the_model_has_learned(trained, job):
    assert trained["metrics"][job.metric] > job.has_learned


def metrics_of(job, folder, tmp_path, command, *words, **flags):
    """Return the metrics that a command comes to."""
    summary = tmp_path / "summary.json"
    places = {"summary": summary, "job_dir": tmp_path / "job", **flags}
    job.run(folder, command, VALIDATION, *words, **places)
    return json.loads(summary.read_text())["metrics"]


def without_loss(metrics):
    """Return the metrics that the model file names."""
    return {name: value for name, value in metrics.items() if name != "loss"}


@pytest.mark.parametrize(
    ("source", "is_resized"),
    [
        pytest.param(CHECKPOINT, False, id="checkpoint"),
        pytest.param(CHECKPOINT, True, id="checkpoint, other processes", marks=LONG),
        pytest.param(EXPORT, False, id="export", marks=LONG),
    ],
)
def test_an_evaluation_afterwards_gives_the_metrics_of_the_job(
    source, is_resized, trained, job, folder, tmp_path
):
    words = (source, *job.resized) if is_resized else (source,)
    metrics = metrics_of(job, folder, tmp_path, "evaluate", *words)
    # An export is given no loss function.
    expected = trained["metrics"] if source == CHECKPOINT else without_loss(trained["metrics"])
    assert metrics == pytest.approx(expected, abs=2e-5)


@LONG
def test_a_training_goes_on_in_other_processes(trained, job, folder, tmp_path):
    words = ("--training_data=train.recordio", "--learning_rate=1e-12", CHECKPOINT, *job.resized)
    metrics = metrics_of(job, folder, tmp_path, "train", *words)
    # Moving averages go on at any learning rate, and a loss has no bound.
    expected = without_loss(trained["metrics"])
    assert without_loss(metrics) == pytest.approx(expected, abs=job.varies)


def predictions(job, folder, output, *words):
    """Return what a job predicts for the validation data, in order; each record is there once."""
    data = "--prediction_data=validation.recordio"
    job.run(folder, "predict", data, *words, output=output, job_dir=output.parent / "job")
    parts = []
    for file in output.iterdir():
        with np.load(file) as arrays:
            parts.append(dict(arrays))
    records = np.concatenate([part["record"] for part in parts])
    order = np.argsort(records)
    np.testing.assert_array_equal(records[order], np.arange(job.num_validation))
    return np.concatenate([part["output"] for part in parts])[order]


def test_predictions_from_the_export_cover_every_record(trained, job, folder, tmp_path):
    found = predictions(job, folder, tmp_path / "predictions", EXPORT)
    assert len(found) == job.num_validation


@LONG
def test_predictions_of_other_processes_from_the_checkpoint_are_those_of_the_export(
    trained, job, folder, tmp_path
):
    (tmp_path / "one").mkdir()
    found = predictions(job, folder, tmp_path / "predictions", CHECKPOINT, *job.resized)
    wanted = predictions(job, folder, tmp_path / "one" / "predictions", EXPORT)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
