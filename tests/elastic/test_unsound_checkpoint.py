"""The newest checkpoint is corrupt when a ps replica is lost: an older one serves, exactly."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from elasticdl.ps.checkpoint import version_folder, versions

COUNTING = Path(__file__).resolve().parents[2] / "model_zoo" / "counting" / "model.py"
NUM_RECORDS, NUM_IDS, SIZE = 2_000, 300, 16
PAUSE_AT = 100  # minibatches, of 125

# The feed stops after so many minibatches: it opens one fifo to say so, and another to be told to
# go on. What was fed before is trained meanwhile, and the checkpoint due then is written.
PAUSE = f"""

_feed_at_once, _fed = feed, []


def feed(records, mode, metadata):
    if mode == Mode.TRAINING:
        if len(_fed) == 1 + {PAUSE_AT}:  # the first is the sample that the model is built with
            for fifo, flag in (("begun", "w"), ("go", "r")):
                with open(__file__.replace("model.py", fifo), flag) as file:
                    file.read() if flag == "r" else file.write("x")
        _fed.append(True)
    return _feed_at_once(records, mode, metadata)
"""


def corrupt(folder):
    """Change one byte in the middle of each replica's rows."""
    for path in folder.glob("replica-*-rows-00.safetensors"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_corrupt", ["the newest", "all"])
def test_older_checkpoint_is_restored_and_counts_stay_exact(num_corrupt, chaos, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "model.py").write_text(COUNTING.read_text() + PAUSE)
    os.mkfifo(zoo / "begun")
    os.mkfifo(zoo / "go")
    ids = np.random.default_rng(0).integers(NUM_IDS, size=NUM_RECORDS)
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        writer.write_many(str(id).encode() for id in ids)
    flags = {
        "model_zoo": zoo,
        "model_def": "model.forward",
        "training_data": tmp_path / "data.recordio",
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": 1,
        "num_ps_pods": 2,
        "minibatch_size": SIZE,
        "checkpoint_dir": tmp_path / "checkpoints",
        "checkpoint_steps": 10,
        "recovery_seconds": 0,
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
        while (there := versions(tmp_path / "checkpoints"))[-1:] != [PAUSE_AT]:
            assert job.poll() is None, (tmp_path / "train.log").read_text()
            time.sleep(0.05)
        bad = there if num_corrupt == "all" else there[-1:]
        for version in bad:
            corrupt(version_folder(tmp_path / "checkpoints", version))
        sound = [version for version in there if version not in bad]
        os.kill(chaos.processes(tmp_path / "job", "ps")[0].pid, signal.SIGKILL)
        (zoo / "go").write_text("x")
        assert job.wait() == 0, (tmp_path / "train.log").read_text()
    finally:
        job.kill()
        job.wait()

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [recovery["version"] for recovery in summary["recoveries"]] == [max(sound, default=0)]
    assert [(line["trained_once"], line["lost"]) for line in summary["ledger"]] == [
        (NUM_RECORDS, 0)
    ]
    counts = np.bincount(ids, minlength=NUM_IDS)
    np.testing.assert_array_equal(chaos.counts_of(tmp_path / "export", NUM_IDS), counts)
    found = [event["text"] for event in summary["events"] if "goes back to" in event["text"]]
    assert len(found) == len(bad)
    assert "rows-00.safetensors" in found[0]
    assert "is corrupt" in found[0]
