"""The model of a real job moves to other numbers of ps replicas, and processes are killed."""

import signal

import pytest

from tests.elastic.counting_job import CountingJob
from tests.elastic.running_job import elasticdl, run

SLOW = {"model_def": "counting.staged.forward", "model_params": "seconds=0.02"}
MOVES = [(3, ("ps", 0)), (1, ("master", 0)), (2, ("worker", 1))]


def moved(job, count):
    """Wait until the model has moved to so many replicas."""
    job.until_event("ps moved", also=lambda event: event["replicas"] == count)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("push_steps", [1, pytest.param(3, marks=pytest.mark.long)])
def test_the_model_of_a_job_moves_by_a_command(push_steps, tmp_path):
    with CountingJob(tmp_path, seed=7, push_steps=push_steps, **SLOW) as job:
        job.until_trained(500)
        for count in (3, 1):
            run(elasticdl("scale", job.job_dir, ps=count))
            moved(job, count)
        summary = job.finish()
    job.check_counts(summary)
    assert [event["replicas"] for event in job.events("ps moved")] == [3, 1]
    # Nobody was lost, and nothing was computed again.
    names = ("stale_leases", "gaps", "stale_reports", "resumed_tasks")
    assert {name: summary["counters"][name] for name in names} == dict.fromkeys(names, 0)
    assert summary["recoveries"] == []


@pytest.mark.timeout(400)
def test_each_record_counts_once_whoever_is_killed_in_a_move(tmp_path):
    with CountingJob(tmp_path, seed=8, max_relaunches=20, **SLOW) as job:
        job.until_trained(500)
        for count, struck in MOVES:
            with job.master() as master:
                master.set_num_ps(count)
            job.send(*struck, signal.SIGKILL)
            moved(job, count)
            job.until_trained(0, also=lambda n=count: len(job.processes("ps")) == n)
            # A successor begins with the checkpoint of the move.
            num_before = len(job.events("ps recovered"))
            job.send("ps", number=signal.SIGKILL)
            job.until_trained(0, also=lambda n=num_before: len(job.events("ps recovered")) > n)
        summary = job.finish()
    job.check_counts(summary)
    assert [event["replicas"] for event in job.events("ps moved")] == [n for n, _ in MOVES]


@pytest.mark.timeout(120)
def test_a_job_whose_model_does_not_move_is_told_the_flag(tmp_path):
    with CountingJob(tmp_path, seed=7, max_staleness=4, **SLOW) as job:
        job.until_trained(100)
        words = elasticdl("scale", job.job_dir, ps=3)
        with pytest.raises(AssertionError, match="--max_staleness=4"):
            run(words)
