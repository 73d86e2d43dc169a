"""The result of a job for scripts."""

import dataclasses
import json
import math

import pytest

from elasticdl.cli import summary
from elasticdl.cli.display import Event
from elasticdl.errors import ConfigError
from elasticdl.job.status import BestEvaluation, EpochLedger, no_status

STATUS = dataclasses.replace(
    no_status("ads", 1),
    status="finished",
    seconds=12.5,
    records_per_second=80.0,
    metrics={"auc": 0.75},
    evaluated_records=500,
    epoch_loss=0.25,
    train_metrics={"auc": 0.5},
    recent_train_metrics={"auc": 0.625},
    train_metrics_records=300,
    ledger=(EpochLedger(0, 1000, 1000, 0, 0),),
    best=BestEvaluation("auc", "max", 0.75, 40, 2, 40),
    overfitting="the model overfits",
)


def test_the_summary_has_what_scripts_rely_on(tmp_path):
    path = tmp_path / "new" / "summary.json"
    summary.write(path, summary.summarise(STATUS, [Event(1.5, "up")], {"output": str(tmp_path)}))
    written = json.loads(path.read_text())
    assert written["status"] == "finished"
    assert written["seconds"] == 12.5
    assert written["records_per_second"] == 80.0
    assert written["metrics"] == {"auc": 0.75}
    assert written["evaluated_records"] == 500
    assert written["epoch_loss"] == 0.25
    assert written["train_metrics"] == {"auc": 0.5}
    assert written["recent_train_metrics"] == {"auc": 0.625}
    assert (written["train_metrics_epoch"], written["train_metrics_records"]) == (0, 300)
    assert written["ledger"] == [
        dict(epoch=0, records=1000, trained_once=1000, repeated=0, lost=0, examples=1000)
    ]
    assert written["best"] == dict(
        metric="auc", mode="max", value=0.75, version=40, num_epochs=2, checkpoint=40
    )
    assert written["overfitting"] == "the model overfits"
    assert written["events"] == [{"seconds": 1.5, "text": "up"}]
    assert written["output"] == str(tmp_path)


def test_percentiles_of_staleness_are_upper_ends_of_buckets_and_never_above_the_maximum():
    status = dataclasses.replace(
        STATUS, max_staleness=5, staleness_histogram=(60, 30, 0, 10), num_recomputed=7
    )
    written = summary.summarise(status, [], {})
    assert written["staleness"] == {
        "mean": 0.0,
        "p50": 0,
        "p90": 1,
        "p99": 5,
        "max": 5,
        "histogram": [60, 30, 0, 10],
    }
    assert written["recomputed"] == 7


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_null(tmp_path, value):
    status = dataclasses.replace(STATUS, loss=value, metrics={"auc": value})
    summary.write(tmp_path / "s.json", summary.summarise(status, [], {}))
    written = json.loads((tmp_path / "s.json").read_text())
    assert written["loss"] is None
    assert written["metrics"] == {"auc": None}


def test_a_summary_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--summary=.*cannot be written"):
        summary.write(tmp_path / "file" / "s.json", {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"--summary=.*cannot be written"):
        summary.write(tmp_path / "folder", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_an_older_summary_is_replaced(tmp_path):
    path = tmp_path / "s.json"
    path.write_text("old")
    summary.write(path, {"status": "finished"})
    assert json.loads(path.read_text()) == {"status": "finished"}
    assert list(tmp_path.iterdir()) == [path]
