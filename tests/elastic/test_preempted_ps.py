"""Ps replicas are asked to end, or killed, in mid-training: nothing is lost or trained again.

One that is asked hands over what it holds; what one that is killed had applied is in its redo log
(`--ps_redo_mb`).
"""

import os
import signal
import time

import numpy as np
import pytest

from elasticdl.checkpoints.versions import versions
from elasticdl.observe.events import read_events
from tests.elastic.counting_job import CountingJob

NUM_PREEMPTIONS = 3
POLL_SECONDS = 0.05
NUM_RECORDS, NUM_IDS = 2_000, 300
PAUSE_AT, STEPS = 100, 30  # minibatches, of 125; a checkpoint each 30


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "redo"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1024)], ids=["asked to end", "killed"]
)
def test_a_ps_replica_that_goes_costs_no_repeated_work(how, redo, tmp_path):
    preempted = 0
    with CountingJob(tmp_path, seed=4, max_relaunches=0, ps_redo_mb=redo) as job:
        for status in job.statuses():
            share = status.records_done / max(status.records_total, 1)
            is_back = len(job.events("ps recovered")) == preempted
            if preempted < NUM_PREEMPTIONS and is_back and share > 0.2 * (preempted + 1):
                job.send("ps", preempted % 2, how)
                preempted += 1
        summary = job.finish()

    assert preempted == NUM_PREEMPTIONS
    job.check_counts(summary)
    found = summary["recoveries"]
    is_asked = how is signal.SIGTERM
    assert [r["is_handed_over"] for r in found] == [is_asked] * NUM_PREEMPTIONS
    assert {(r["tasks"], r["minibatches"], r["records"]) for r in found} == {(0, 0, 0)}
    counters = summary["counters"]
    # No lease was given back, none ended in vain, and no minibatch was computed a second time.
    names = ("stale_leases", "gaps", "stale_reports")
    assert {name: counters[name] for name in names} == dict.fromkeys(names, 0)
    assert counters["resumed_tasks"] == 0 or not is_asked  # leases of before are looked at again
    assert summary["recomputed"] == 0
    said = [event["event"] for event in read_events(job.job_dir)]
    num_asked = NUM_PREEMPTIONS if is_asked else 0
    assert said.count("handed over") == said.count("leaving") == num_asked
    assert "requeued" not in said
    job.check_computed_once()
    assert not list((job.job_dir / "recovery").glob("redo-*"))  # nobody goes on with it


@pytest.mark.long
@pytest.mark.timeout(300)
def test_replica_that_cannot_write_is_restored_from_the_last_checkpoint(
    chaos, paused_job, tmp_path
):
    ids = np.random.default_rng(0).integers(NUM_IDS, size=NUM_RECORDS)
    checkpoints = tmp_path / "checkpoints"
    flags = {"checkpoint_dir": checkpoints, "checkpoint_steps": STEPS}
    # The first call is for the sample that the model is built with.
    with paused_job(ids, mode="TRAINING", call=2 + PAUSE_AT, **flags) as job:
        job.wait_for_pause()
        while not versions(checkpoints):
            assert job.is_running(), job.log()
            time.sleep(POLL_SECONDS)  # a folder tells nobody that it is complete
        (job.job_dir / "recovery").write_text("a file where the replica wants a folder")
        os.kill(chaos.processes(job.job_dir, "ps")[0].pid, signal.SIGTERM)
        summary = job.go_on()

    (recovery,) = summary["recoveries"]
    assert recovery["version"] > 0
    assert not recovery["is_handed_over"]
    ledger = [(e["trained_once"], e["repeated"], e["lost"]) for e in summary["ledger"]]
    assert ledger == [(NUM_RECORDS, 0, 0)]
    counts = chaos.counts_of(job.export, NUM_IDS)
    np.testing.assert_array_equal(counts, np.bincount(ids, minlength=NUM_IDS))
    said = [event["event"] for event in read_events(job.job_dir)]
    assert "leaving" in said
    assert "handed over" not in said
    logs = "".join(path.read_text() for path in (job.job_dir / "logs").glob("ps-*"))
    assert "cannot be handed over" in logs
