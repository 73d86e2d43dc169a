"""The rehearsal of the Criteo run: what it computes of its stages, and a small one to its end."""

import importlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.readme import FOLDER


@pytest.fixture
def criteo_run(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("criteo_run")


def test_auc_is_that_of_scikit_learn_also_with_ties(criteo_run):
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    labels = (rng.random(1000) < 0.3).astype(int)
    scores = np.round(rng.normal(size=1000) + labels, 1)

    assert criteo_run.auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores))


def event(time, kind, **fields):
    return {"time": time, "event": kind, "index": 0, **fields}


def progress(time, records, **stages):
    return event(time, "progress", num_records=records, stage_seconds=stages)


def test_phases_of_a_job_add_up_to_its_time(criteo_run):
    events = [
        event(101.0, "phase", phase="training"),
        progress(102.0, 0),
        progress(105.0, 512),
        event(130.0, "phase", phase="evaluating"),
        event(134.0, "phase", phase="exporting"),
        event(137.0, "ended", phase="finished"),
    ]

    found = list(criteo_run.phases(events, began=100.0, ended=138.0))

    assert found == [
        ("start", 5.0),
        ("train", 25.0),
        ("evaluate", 4.0),
        ("export", 3.0),
        ("end", 1.0),
    ]


def test_the_busiest_stage_of_the_workers_limits_training(criteo_run):
    events = [progress(5.0, 10, feed=9.0), progress(9.0, 20, feed=1.0, compute=6.0, pull=3.0)]

    assert "forward and backward (compute), 60%" in criteo_run.training_limit(events, 0.1)


def test_processors_that_have_no_more_to_give_are_the_limit(criteo_run):
    cores = len(os.sched_getaffinity(0))

    assert "the processors" in criteo_run.limit_of(10.0 * cores, 10.0)
    assert "disk" in criteo_run.limit_of(0.1, 10.0)


@pytest.mark.long
@pytest.mark.keras
@pytest.mark.timeout(600)
def test_a_small_rehearsal_reaches_its_end(tmp_path):
    command = [sys.executable, str(FOLDER / "criteo_run.py"), "--rows=20000"]

    done = subprocess.run(
        [*command, f"--folder={tmp_path}"], capture_output=True, text=True, timeout=580
    )

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert sum(report["records"].values()) == 20_000
    assert report["steps"] >= report["records"]["train"] // 512
    assert report["largest difference of a logit"] < 1e-5
    assert 0.5 < report["metrics"]["auc"] < 1.0
    assert report["auc in plain TensorFlow"] == pytest.approx(report["metrics"]["auc"], abs=0.01)
    names = [stage["name"] for stage in report["stages"]]
    assert names[:3] == ["generate", "convert", "analyze"]
    assert names[-3:] == ["evaluate", "predict", "serve"]
    assert {"job: train", "job: evaluate", "job: export"} <= set(names)
    assert "bottleneck: " in done.stdout
    assert "published, on Criteo's data: 0.8002 after 80,000 steps" in done.stdout
