"""Deterministic jobs: any number of workers, and losses of some, make the same updates."""

import signal
from functools import partial

import pytest

from tests.elastic.visits_job import VisitsJob, check_counts, check_hashes

BATCH = 96  # six minibatches
FLAGS = {"global_batch_size": BATCH, "num_minibatches_per_task": 2, "deterministic": True}


FAULTS = [
    "compute",
    "before reduction",
    "during reduction",
    "abort after reduction",
    "after reduction",
    "after update",
]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_workers_killed_at_any_point_change_no_update(tmp_path):
    faults = [(place, 5) for place in FAULTS]
    with VisitsJob(
        tmp_path, num_records=48_000, seconds=0.15, faults=faults, max_relaunches=20, **FLAGS
    ) as job:
        job.strike_at_each_place()
        summary = job.finish()
    check_counts(job, summary, batch_size=BATCH)
    check_hashes(job)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_workers_that_are_asked_to_end_and_added_change_no_update(tmp_path):
    with VisitsJob(tmp_path, num_records=12_000, seconds=0.15, **FLAGS) as job:
        job.until_trained(2_000)
        job.send("worker", number=signal.SIGTERM)
        job.until_trained(5_000)
        with job.master() as master:
            master.set_num_workers(4)
        job.until_trained(6_000, also=partial(job.has_world_of, 4))
        with job.master() as master:
            master.set_num_workers(1)
        summary = job.finish()
    check_counts(job, summary, batch_size=BATCH)
    check_hashes(job)
    assert not job.events("lost")
    assert not job.events("world restored")
