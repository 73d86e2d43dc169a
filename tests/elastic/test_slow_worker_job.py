"""A worker that is ten times slower: how far it falls behind the others, and what it holds up."""

import os

import numpy as np
import pytest

from scripts.chaos import job as counting
from tests.elastic.running_job import RunningJob

SLOW = """
import dataclasses
import pathlib
import sys
import time

import counting.model
from counting.model import *

BEGUN = pathlib.Path(__file__).with_name("begun")


def forward():
    model = counting.model.forward()
    is_slow = sys.argv[sys.argv.index("--index") + 1] == "0"
    pause = {slow} if is_slow else {usual}

    def gradients(*given):
        if is_slow:
            BEGUN.touch()
        while {waits} and not BEGUN.exists():
            time.sleep(0.01)
        time.sleep(pause)
        return model.gradients(*given)

    return dataclasses.replace(model, gradients=gradients)
"""


class SlowJob(RunningJob):
    """The counting job, whose first worker takes longer for each step.

    If they are to wait, the others begin when it has begun; it may be the last to start.
    """

    def __init__(self, folder, slow, usual, num_records, waits=False, **flags):
        (folder / "zoo").mkdir()
        text = SLOW.format(slow=slow, usual=usual, waits=waits)
        (folder / "zoo" / "slow.py").write_text(text)
        rng = np.random.default_rng(0)
        self.ids = rng.integers(0, counting.NUM_IDS, (num_records, counting.IDS_PER_RECORD))
        counting.write_data(folder / "data", [self.ids])
        places = (folder / "data", folder / "export", folder / "job", folder / "summary.json")
        named = {"model_zoo": folder / "zoo", "model_def": "slow.forward", "num_epochs": 1}
        env = {**os.environ, "PYTHONPATH": str(counting.ROOT / "model_zoo")}
        super().__init__(folder, counting.train_command(*places, **named, **flags), env=env)

    def counts(self):
        return counting.counts_of(self.folder / "export")


@pytest.mark.long
def test_no_gradient_is_later_than_the_bound_while_workers_come_and_go(tmp_path):
    num_records, bound = 9_600, 1
    given = {"num_workers": 3, "max_staleness": bound}
    with SlowJob(tmp_path, 0.1, 0.01, num_records, **given) as job:
        job.until_trained(500)
        with job.master() as master:
            master.set_num_workers(4)
        job.until_trained(1_500)
        job.send("worker", 1)
        summary = job.finish()
    assert summary["staleness"]["max"] <= bound
    assert summary["ledger"][0]["trained_once"] == num_records
    expected = np.bincount(job.ids.ravel(), minlength=counting.NUM_IDS)
    np.testing.assert_array_equal(job.counts(), expected)


def test_a_job_that_need_not_wait_ends_without_the_slow_worker_and_tells_what_is_left(tmp_path):
    num_records = 12_000
    given = {"num_workers": 3, "finish_rate": 0.6}
    with SlowJob(tmp_path, 2.0, 0.002, num_records, waits=True, **given) as job:
        summary = job.finish()
    (line,) = summary["ledger"]
    assert line["lost"] > 0
    assert line["repeated"] == 0
    assert line["trained_once"] + line["lost"] == line["records"] == num_records
    assert job.counts().sum() == line["trained_once"] * counting.IDS_PER_RECORD
    assert "left to stragglers" in summary["message"]
    (left,) = job.events("stragglers")
    assert len(left["tasks"]) * 400 >= line["lost"]
