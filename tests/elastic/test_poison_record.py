"""A record that kills or holds whoever reads it costs its task, not the job and not the fleet."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import PsClient, RecordWriter, Store

pytestmark = pytest.mark.timeout(400)

COUNTING = Path(__file__).resolve().parents[2] / "model_zoo" / "counting" / "model.py"
NUM_RECORDS, TASK, MINIBATCH, POISON = 400, 40, 10, 205

POISONED_FEED = """

import os, time
_counting_feed = feed


def feed(records, mode, metadata):
    if b"{poison}" in [bytes(record) for record in records]:
        {deed}
    return _counting_feed(records, mode, metadata)
"""


class Done:
    """A job of two workers and one ps replica over records that are ids, at its end."""

    def __init__(self, folder, deed, *words, poison=POISON):
        (folder / "zoo").mkdir()
        feed = POISONED_FEED.format(poison=poison, deed=deed)
        (folder / "zoo" / "model.py").write_text(COUNTING.read_text() + feed)
        with RecordWriter(str(folder / "ids.recordio")) as writer:
            writer.write_many(str(id).encode() for id in range(NUM_RECORDS))
        flags = {
            "model_zoo": folder / "zoo",
            "model_def": "model.forward",
            "training_data": folder / "ids.recordio",
            "distribution_strategy": "ParameterServerStrategy",
            "num_workers": 2,
            "num_ps_pods": 1,
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": TASK // MINIBATCH,
            "max_task_retries": 1,
            "max_relaunches": 1,
            "checkpoint_dir": folder / "checkpoints",
            "job_dir": folder / "job",
        }
        self.command = subprocess.run(
            [
                *(sys.executable, "-m", "elasticdl.cli.main", "train"),
                *(f"--{name}={value}" for name, value in flags.items()),
                *words,
            ],
            capture_output=True,
            text=True,
            timeout=350,
            env={**os.environ, "COLUMNS": "300"},
        )
        self.output = self.command.stdout + self.command.stderr
        self.folder = folder

    def events(self, name):
        lines = (self.folder / "job" / "events" / "master-0.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def counts(self):
        """Return how often each id was trained, as its row has counted."""
        (version,) = (self.folder / "checkpoints").iterdir()
        counts = np.zeros(NUM_RECORDS)
        for keys, rows in PsClient.in_process(Store.restore(str(version), 0, 1)).scan(0):
            counts[keys] = rows[:, 0]
        return counts


def check(done, how):
    """Check that task 5 was set aside, and all else trained; return the deaths of workers."""
    assert done.command.returncode == 1, done.output
    named = re.search(
        rf"1 tasks failed 2 times each and were set aside: worker \d+ {re.escape(how)} in feed of "
        r"minibatch (\d) of training task 5 \(records 200 to 240 of \S+ids.recordio, epoch 0\)",
        done.output,
    )
    assert named, done.output
    counts = done.counts()
    assert np.delete(counts, np.s_[200:240]).tolist() == [1.0] * 360
    assert counts[200:240].sum() == MINIBATCH * int(named[1])
    assert counts[POISON] == 0
    assert set(counts) == {0.0, 1.0}
    return done.events("lost")


def test_record_that_crashes_its_reader_is_set_aside_and_all_else_is_trained_once(tmp_path):
    deaths = check(Done(tmp_path, "os.abort()"), "crashed (SIGABRT)")
    # One may have held more tasks than this one, and one have looked at the data: none is blamed.
    assert len(deaths) in (2, 3)


@pytest.mark.long
def test_record_that_holds_its_reader_is_set_aside_and_all_else_is_trained_once(tmp_path):
    done = Done(tmp_path, "time.sleep(1e6)", "--task_timeout_seconds=5")
    deaths = check(done, "timed out")
    assert len(deaths) == 2
    assert done.events("slow")
    worker = deaths[0]["process"].replace(" ", "-")
    log = (tmp_path / "job" / "logs" / f"{worker}.log").read_text()
    assert re.search(r'File "\S+model.py", line \d+ in feed', log), log
    assert "so this worker ends; the stacks of its threads are above" in log


@pytest.mark.long
def test_a_record_that_kills_who_builds_the_model_of_it_is_named(tmp_path):
    done = Done(tmp_path, "os.abort()", poison=MINIBATCH // 2)
    assert done.command.returncode == 1
    assert (
        f"while it built the model from records of {tmp_path}/ids.recordio [0, 10)" in done.output
    )
