"""Deterministic jobs: any number of workers, and losses of some, make the same updates."""

import signal
from functools import partial

import pytest

from tests.elastic.visits_job import VisitsJob, check_counts, check_hashes

BATCH = 96  # six minibatches
FLAGS = {"global_batch_size": BATCH, "num_minibatches_per_task": 2, "deterministic": True}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_workers", [1, 3])
def test_each_update_has_its_own_tasks(tmp_path, num_workers):
    # 100 updates and a half one.
    with VisitsJob(
        tmp_path, num_records=9_648, seconds=0.001, num_workers=num_workers, **FLAGS
    ) as job:
        summary = job.finish()
    check_counts(job, summary, batch_size=9_648 / 101)


FAULTS = [
    "compute",
    "before reduction",
    "during reduction",
    "abort after reduction",
    "after reduction",
    "after update",
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("places", "num_records"),
    [
        pytest.param(["during reduction", "after update"], 12_000, id="two points"),
        pytest.param(FAULTS, 48_000, id="every point", marks=pytest.mark.long),
    ],
)
def test_workers_killed_at_any_point_change_no_update(tmp_path, places, num_records):
    faults = [(place, 5) for place in places]
    with VisitsJob(
        tmp_path, num_records=num_records, seconds=0.15, faults=faults, max_relaunches=20, **FLAGS
    ) as job:
        job.strike_at_each_place()
        summary = job.finish()
    check_counts(job, summary, batch_size=BATCH)
    check_hashes(job)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_workers_that_are_asked_to_end_and_added_change_no_update(tmp_path):
    with VisitsJob(tmp_path, num_records=12_000, seconds=0.05, **FLAGS) as job:
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


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_only_worker_that_is_asked_to_end_hands_over_whole_updates(tmp_path):
    with VisitsJob(tmp_path, num_records=6_000, seconds=0.02, num_workers=1, **FLAGS) as job:
        job.until_trained(1_000)
        job.send("worker", number=signal.SIGTERM)
        job.until_event("handed over")
        summary = job.finish()
    check_counts(job, summary, batch_size=6_000 / 63)
