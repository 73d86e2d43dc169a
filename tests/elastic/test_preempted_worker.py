"""Workers are asked to end in the middle of their tasks: nothing is lost, and nothing repeated."""

import os
import signal

import pytest

from elasticdl.job import Role
from elasticdl.observe.events import read_events
from tests.elastic.counting_job import CountingJob

NUM_PREEMPTIONS = 2


@pytest.mark.timeout(300)
def test_a_preempted_worker_costs_no_repeated_work(tmp_path):
    preempted = set()
    with CountingJob(tmp_path, seed=3, num_epochs=2, max_relaunches=0) as job:
        for status in job.statuses():
            share = status.records_done / max(status.records_total, 1)
            if len(preempted) == NUM_PREEMPTIONS or share < 0.2 * (len(preempted) + 1):
                continue
            victims = _registered(job.job_dir) - preempted
            if victims:
                os.kill(max(victims), signal.SIGTERM)
                preempted.add(max(victims))
        summary = job.finish()

    assert len(preempted) == NUM_PREEMPTIONS
    job.check_counts(summary)
    # Each gave its lease back where it stood: nobody met what it had sent, or was met by it.
    names = ("duplicates", "stale_leases", "gaps", "stale_reports")
    assert {name: summary["counters"][name] for name in names} == dict.fromkeys(names, 0)
    said = [event["event"] for event in read_events(job.job_dir)]
    assert said.count("leaving") == NUM_PREEMPTIONS
    assert said.count("left") >= NUM_PREEMPTIONS
    assert "lost" not in said
    job.check_computed_once()


def _registered(job_dir):
    """Return the pids of the workers that are there, as the master has said, and work."""
    working = {
        event["index"]
        for event in read_events(job_dir)
        if event["event"] == "progress" and event["num_minibatches"] > 0
    }
    pids = {}
    for event in read_events(job_dir):
        name = str(event.get("process", ""))
        if name.startswith(str(Role.WORKER)) and int(name.split()[-1]) in working:
            if event["event"] == "registered":
                pids[name] = event["pid"]
            elif event["event"] in ("left", "lost", "leaving"):
                pids.pop(name, None)
    return set(pids.values())
