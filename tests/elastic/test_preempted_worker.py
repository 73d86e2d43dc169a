"""Workers are asked to end in the middle of their tasks: nothing is lost, and nothing repeated."""

import json
import os
import signal
import subprocess

import numpy as np
import pytest

from elasticdl.job import Role
from elasticdl.observe.events import read_events

NUM_PREEMPTIONS = 3


@pytest.mark.timeout(180)
def test_a_preempted_worker_costs_no_repeated_work(chaos, tmp_path):
    files = chaos.make_ids(seed=3)
    chaos.write_data(tmp_path / "data", files)
    job_dir, summary_path = tmp_path / "job", tmp_path / "summary.json"
    words = chaos.train_command(
        tmp_path / "data", tmp_path / "export", job_dir, summary_path, max_relaunches=0
    )
    with (tmp_path / "train.log").open("w") as log:
        job = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    master = chaos.connect(job_dir, job)
    try:
        preempted = set()
        for status in master.watch(give_up_seconds=60):
            share = status.records_done / max(status.records_total, 1)
            if len(preempted) == NUM_PREEMPTIONS or share < 0.2 * (len(preempted) + 1):
                continue
            victim = _registered(job_dir) - preempted
            pid = max(victim)
            os.kill(pid, signal.SIGTERM)
            preempted.add(pid)
        assert job.wait() == 0, (tmp_path / "train.log").read_text()
    finally:
        master.close()
        job.kill()
        job.wait()

    summary = json.loads(summary_path.read_text())
    records = sum(len(file) for file in files)
    assert len(preempted) == NUM_PREEMPTIONS
    assert [(e["trained_once"], e["repeated"], e["lost"]) for e in summary["ledger"]] == [
        (records, 0, 0)
    ] * 3
    ids = np.concatenate([file.ravel() for file in files])
    occurrences = np.bincount(ids, minlength=chaos.NUM_IDS)
    counts = chaos.counts_of(tmp_path / "export", chaos.NUM_IDS)
    np.testing.assert_array_equal(counts, 3 * occurrences)
    counters = summary["counters"]
    # Each gave its lease back where it stood: nobody met what it had sent, or was met by it.
    assert {name: counters[name] for name in ("duplicates", "stale_leases", "gaps")} == {
        "duplicates": 0,
        "stale_leases": 0,
        "gaps": 0,
    }
    assert counters["stale_reports"] == 0
    said = [event["event"] for event in read_events(job_dir)]
    assert said.count("leaving") == NUM_PREEMPTIONS
    assert said.count("left") >= NUM_PREEMPTIONS
    assert "lost" not in said
    # Each minibatch was computed once: what the workers trained is what there was to train.
    trained = {}
    for event in read_events(job_dir):
        if event["event"] == "progress":
            trained[event["index"]] = max(trained.get(event["index"], 0), event["num_records"])
    assert sum(trained.values()) <= 3 * records


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
