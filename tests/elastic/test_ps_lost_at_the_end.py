"""Ps replicas die when all is trained and the last evaluation runs: it waits for what they lost."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter

COUNTING = Path(__file__).resolve().parents[2] / "model_zoo" / "counting" / "model.py"
NUM_RECORDS, NUM_EPOCHS, NUM_IDS = 2_000, 2, 300

# An evaluation opens one fifo to say that it has begun, and another to be told to go on.
PAUSE = """

_feed_at_once, _has_begun = feed, []


def feed(records, mode, metadata):
    if mode == Mode.EVALUATION and not _has_begun:
        _has_begun.append(True)
        for fifo, flag in (("begun", "w"), ("go", "r")):
            with open(__file__.replace("model.py", fifo), flag) as file:
                file.read() if flag == "r" else file.write("x")
    return _feed_at_once(records, mode, metadata)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_killed", [1, 2])
def test_last_evaluation_sees_every_update(num_killed, chaos, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "model.py").write_text(COUNTING.read_text() + PAUSE)
    os.mkfifo(zoo / "begun")
    os.mkfifo(zoo / "go")
    ids = np.random.default_rng(num_killed).integers(NUM_IDS, size=NUM_RECORDS)
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        writer.write_many(str(id).encode() for id in ids)
    flags = {
        "model_zoo": zoo,
        "model_def": "model.forward",
        "training_data": tmp_path / "data.recordio",
        "validation_data": tmp_path / "data.recordio",
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": 1,
        "num_ps_pods": 2,
        "num_epochs": NUM_EPOCHS,
        "minibatch_size": 16,
        "recovery_seconds": 0,  # nothing to restore: all is replayed
        "output": tmp_path / "export",
        "job_dir": tmp_path / "job",
        "summary": tmp_path / "summary.json",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    with (tmp_path / "train.log").open("w") as log:
        job = subprocess.Popen(
            [sys.executable, "-m", "elasticdl.cli.main", "train", *words],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        (zoo / "begun").read_text()
        for victim in chaos.processes(tmp_path / "job", "ps")[:num_killed]:
            os.kill(victim.pid, signal.SIGKILL)
        (zoo / "go").write_text("x")
        assert job.wait() == 0, (tmp_path / "train.log").read_text()
    finally:
        job.kill()
        job.wait()

    summary = json.loads((tmp_path / "summary.json").read_text())
    counts = NUM_EPOCHS * np.bincount(ids, minlength=NUM_IDS)
    assert len(summary["recoveries"]) == num_killed
    assert summary["recoveries"][0]["records"] == NUM_EPOCHS * NUM_RECORDS
    assert [(line["trained_once"], line["lost"]) for line in summary["ledger"]] == [
        (NUM_RECORDS, 0)
    ] * NUM_EPOCHS
    assert summary["metrics"]["mean_count"] == pytest.approx(counts[ids].mean())
    np.testing.assert_array_equal(chaos.counts_of(tmp_path / "export", NUM_IDS), counts)
    texts = [event["text"] for event in summary["events"]]
    assert sum(text.startswith("evaluation: ") for text in texts) == 1
