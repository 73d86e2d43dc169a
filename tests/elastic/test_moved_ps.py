"""A ps replica comes back at another address, and everybody finds it."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl.config import JobConfig
from elasticdl.job import Strategy
from elasticdl.launchers.process.folder import prepare
from elasticdl.observe.events import read_events
from elasticdl.runtime.process import CONFIG_FILE, LIFELINE_VARIABLE, TOKEN_FILE
from tests.elastic.running_job import RunningJob

MASTER = Path(__file__).with_name("moving_master.py")


def addresses(job_dir, name):
    """Return where a replica has been, first to last."""
    return [
        event["address"]
        for event in read_events(job_dir)
        if event["event"] == "registered" and event["process"] == name
    ]


@pytest.fixture
def lifeline():
    """What `elasticdl train` gives to all processes: they end with who holds the other end."""
    read_end, write_end = os.pipe()
    yield read_end
    os.close(write_end)
    os.close(read_end)


@pytest.mark.timeout(300)
@pytest.mark.long
def test_successors_at_other_addresses_are_found(chaos, lifeline, tmp_path):
    files = chaos.make_ids(seed=5)
    chaos.write_data(tmp_path / "data", files)
    config = JobConfig.model_validate(
        {
            "command": "train",
            "model": {"model_zoo": chaos.ROOT / "model_zoo", "model_def": "counting.model.forward"},
            "data": {"training_data": str(tmp_path / "data")},
            "training": {
                "distribution_strategy": Strategy.PARAMETER_SERVER,
                "minibatch_size": chaos.MINIBATCH_SIZE,
                "num_minibatches_per_task": chaos.MINIBATCHES_PER_TASK,
            },
            "checkpoint": {"output": tmp_path / "export"},
            "cluster": {
                "job_dir": tmp_path / "job",
                "tls": "off",  # no command is there that makes certificates
                "insecure": True,
                "num_workers": 2,
                "num_ps_pods": 2,
                "heartbeat_seconds": chaos.HEARTBEAT_SECONDS,
            },
        }
    )
    job_dir = prepare(config)
    words = [sys.executable, str(MASTER), "--job_dir", str(job_dir)]
    words += ["--config", str(job_dir / CONFIG_FILE), "--token_file", str(job_dir / TOKEN_FILE)]
    struck = False
    environment = os.environ | {LIFELINE_VARIABLE: str(lifeline)}
    with RunningJob(tmp_path, words, env=environment, pass_fds=[lifeline]) as job:
        for status in job.statuses():
            if not struck and status.records_done > 0.2 * status.records_total:
                for victim in job.processes("ps"):
                    victim.kill()
                struck = True
        job.wait()

    assert struck
    assert [(e.trained_once, e.repeated, e.lost) for e in status.ledger] == [
        (chaos.NUM_RECORDS, 0, 0)
    ]
    ids = np.concatenate([file.ravel() for file in files])
    counts = chaos.counts_of(tmp_path / "export", chaos.NUM_IDS)
    np.testing.assert_array_equal(counts, np.bincount(ids, minlength=chaos.NUM_IDS))
    hosts = {
        address.rpartition(":")[0]
        for index in range(2)
        for address in addresses(job_dir, f"ps replica {index}")
    }
    assert len(hosts) == 4, hosts  # two replicas, each at one host before and another one after
