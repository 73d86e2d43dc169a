"""Jobs of all-reduce lose workers at every point of a step, and gain some; nothing counts twice."""

import json
import signal
from functools import partial

import pytest

from tests.elastic.visits_job import VisitsJob, check_counts, check_hashes, check_stages

FAULTS = [  # those of one time are for workers that join, and so follow a loss at once
    ("compute", 5),
    ("before reduction", 5),
    ("during reduction", 5),
    ("abort after reduction", 5),
    ("after reduction", 5),
    ("after update", 5),
    ("giving parameters", 1),
    ("after update", 5),  # then all have parameters again, of whom the next one may lose another
    ("rendezvous", 1),
]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_killed_at_every_point_of_a_step_cost_no_record(tmp_path):
    with VisitsJob(
        tmp_path, num_records=48_000, seconds=0.2, faults=FAULTS, max_relaunches=20
    ) as job:
        at_once = {number for number, (_, times) in enumerate(FAULTS) if times == 1}
        job.strike_at_each_place(is_due=lambda number: number in at_once)
        summary = job.finish()
    check_counts(job, summary)
    assert not job.events("world restored")
    check_hashes(job)
    assert list((job.job_dir / "scratch").rglob("*give*")) == []  # one was killed while it gave
    # Survivors have said how long they were at it.
    usages = [event for event in job.events("usage") if event["role"] == "worker"]
    assert max(usage["label_seconds"].get("re-form", 0.0) for usage in usages) > 0


STAGE_FAULTS = [  # one worker always has the parameters: what follows the second kills joiners
    ("compute", 5),  # so that somebody joins
    ("giving a piece", 3),
    ("given a piece", 3),
    ("has a piece", 1),
    ("has a piece", 5),
    ("admitted", 1),
]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_killed_while_one_is_given_the_parameters_beside_steps_cost_no_record(tmp_path):
    with VisitsJob(
        tmp_path,
        num_records=48_000,
        seconds=0.1,
        faults=STAGE_FAULTS,
        max_relaunches=20,
        piece_bytes=16_000,
    ) as job:
        # A worker joins only if somebody was lost: all other faults follow the first.
        job.strike_at_each_place(is_due=lambda number: number > 0)
        summary = job.finish()
    check_counts(job, summary)
    assert not job.events("world restored")
    check_hashes(job)
    check_stages(job)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_all_workers_dead_at_once_roll_back_together_with_the_ledger(tmp_path):
    with VisitsJob(tmp_path, num_records=12_000, seconds=0.1, recovery_seconds=0.3) as job:
        job.until_trained(2_000, also=job.has_checkpoint)
        for worker in job.processes("worker"):
            worker.kill()
        summary = job.finish()
    check_counts(job, summary)
    (restored,) = job.events("world restored")
    assert restored["version"] > 0


@pytest.mark.timeout(300)
def test_a_worker_hands_over_then_the_master_is_killed_and_another_worker(tmp_path):
    faults = [("export", 1)]  # and the worker that exports, which leaves nothing beside the model
    with VisitsJob(tmp_path, num_records=12_000, seconds=0.1, faults=faults) as job:
        (job.zoo / "due-0").touch()
        job.until_trained(2_000, also=partial(job.has_world_of, 3))
        job.send("worker", number=signal.SIGTERM)
        job.until_event("left")
        assert not job.events("lost")
        job.send("master")
        job.send("worker", 1)  # the first may be the one that has left, and is not gone yet
        # Else the one that exports may be the only one that has the parameters.
        job.until_trained(0, also=lambda: job.events("lost") and job.has_world_of(3))
        summary = job.finish()
    check_counts(job, summary)
    check_hashes(job)
    assert summary["counters"]["resumed_masters"] == 1
    assert not job.events("world restored")
    assert (job.zoo / "claimed-0").exists()
    assert [path.name for path in tmp_path.glob("export*")] == ["export"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_last_worker_that_is_asked_to_end_hands_over_and_nothing_is_repeated(tmp_path):
    # No checkpoint falls due: what the successor has is what was handed over.
    with VisitsJob(
        tmp_path, num_records=6_000, seconds=0.02, num_workers=1, recovery_seconds=3600
    ) as job:
        job.until_trained(1_000)
        job.send("worker", number=signal.SIGTERM)
        job.until_event("handed over")
        summary = job.finish()
    check_counts(job, summary)
    (handed_over,) = job.events("handed over")
    (restored,) = job.events("world restored")
    assert restored["version"] == handed_over["version"] > 0
    assert (restored["tasks"], restored["records"]) == (0, 0)
    assert not job.events("lost")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_joiner_whose_model_was_changed_is_refused_and_the_others_go_on(tmp_path):
    with VisitsJob(
        tmp_path, num_records=12_000, seconds=0.15, max_relaunches=1, piece_bytes=16_000
    ) as job:
        job.until_trained(2_000, also=partial(job.has_world_of, 3))
        settings = job.zoo / "settings.json"
        changed = json.loads(settings.read_text()) | {"num_records": 12_016}
        settings.write_text(json.dumps(changed))
        job.send("worker")
        job.until_event("not replaced")
        summary = job.finish()
    check_counts(job, summary)
    check_hashes(job)
    said = "dense variable 'visits' has shape [12016] here, [12000] in the other workers"
    assert said in job.printed()
