"""The model of a real job moves to other numbers of ps replicas, and processes are killed."""

import signal

import pytest

from tests.elastic.counting_job import CountingJob
from tests.elastic.running_job import elasticdl, run

SLOW = {"model_def": "counting.staged.forward", "model_params": "seconds=0.02"}
LIMIT = 300_000  # bytes of rows that a ps replica may hold; one holds 161,088
MOVES = [(3, ("ps", 0)), (1, ("master", 0)), (2, ("worker", 1))]


def moved(job, count):
    """Wait until the model has moved to so many replicas."""
    job.until_event("ps moved", also=lambda event: event["replicas"] == count)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "flags",
    [
        {},
        pytest.param({"push_steps": 3}, marks=pytest.mark.long),
        pytest.param({"max_staleness": 2}, marks=pytest.mark.long),
        pytest.param({"use_async": "false"}, marks=pytest.mark.long),
    ],
)
def test_the_model_of_a_job_moves_by_a_command(flags, tmp_path):
    with CountingJob(tmp_path, seed=7, **flags, **SLOW) as job:
        job.until_trained(500)
        for count in (3, 1):
            run(elasticdl("scale", job.job_dir, ps=count))
            moved(job, count)
        summary = job.finish()
    job.check_ledger(summary)
    if "use_async" not in flags:  # a gradient is averaged with those of its round
        job.check_counts(summary)
    assert [event["replicas"] for event in job.events("ps moved")] == [3, 1]
    # Nobody was lost, and nothing was computed again, but for what a bound of staleness refuses.
    names = ["stale_leases", "gaps", "stale_reports"]
    names += ["resumed_tasks"] if "max_staleness" not in flags else []
    assert {name: summary["counters"][name] for name in names} == dict.fromkeys(names, 0)
    assert summary["recoveries"] == []


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ps_redo_mb", [0, pytest.param(64, marks=pytest.mark.long)])
def test_each_record_counts_once_whoever_is_killed_in_a_move(ps_redo_mb, tmp_path):
    with CountingJob(tmp_path, seed=8, max_relaunches=20, ps_redo_mb=ps_redo_mb, **SLOW) as job:
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
    with CountingJob(tmp_path, seed=7, recovery_seconds=0, **SLOW) as job:
        job.until_trained(100)
        words = elasticdl("scale", job.job_dir, ps=3)
        with pytest.raises(AssertionError, match="--recovery_seconds=0"):
            run(words)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_full_replica_is_relieved_by_itself(tmp_path):
    # The rows of one replica take more than half of this, and with two of them less.
    with CountingJob(
        tmp_path, seed=7, num_ps_pods=1, ps_autoscale=3, ps_memory_limit=LIMIT, **SLOW
    ) as job:
        moved(job, 2)
        summary = job.finish()
    job.check_counts(summary)
    assert [event["replicas"] for event in job.events("ps moved")] == [2]
