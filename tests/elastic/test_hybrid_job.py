"""Hybrid jobs lose workers and ps replicas; both halves of each minibatch count once.

The model counts how often each record was trained, twice: in a dense variable, which goes around
the ring, and in rows, which are on ps replicas.
"""

import signal

import numpy as np
import pytest

from elasticdl.checkpoints.versions import versions
from tests.elastic.visits_job import VisitsJob, check_hashes


def hybrid_job(folder, **settings):
    wanted = {"distribution_strategy": "HybridStrategy", "num_ps_pods": 2, "has_rows": True}
    return VisitsJob(folder, **{**wanted, **settings})


def check_counts(job, summary):
    """Each record counts once in both holders: by the model itself, and by the proof."""
    (line,) = summary["ledger"]
    records = job.num_records
    assert (line["trained_once"], line["repeated"], line["lost"]) == (records, 0, 0)
    model = job.model()
    np.testing.assert_array_equal(model["dense/visits"], np.ones(records))
    keys, rows = model["table/rows/keys"], model["table/rows/rows"]
    np.testing.assert_array_equal(keys, np.arange(records))
    np.testing.assert_array_equal(rows, np.ones((records, 1)))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_undisturbed_job_trains_each_record_once_in_both_holders(tmp_path):
    steps = 2
    with hybrid_job(tmp_path, num_records=1_605, seconds=0.0, max_staleness=steps) as job:
        summary = job.finish()
    check_counts(job, summary)
    check_hashes(job)
    # A push may come after those of the others of this round and of the one before; with steps
    # pulled ahead after these too, and after those of the rounds that follow: see docs/allreduce.md
    assert summary["staleness"]["max"] <= 2 * (3 - 1) + steps * (3 * (3 - 1) + 1)


FAULTS = [
    ("compute", 5),
    ("during reduction", 5),
    ("before rows", 5),  # the ring has the minibatch, the ps replicas have not
    ("abort after reduction", 5),
    ("after rows", 5),
]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_workers_killed_between_the_halves_of_a_minibatch_cost_no_record(tmp_path):
    with hybrid_job(
        tmp_path, num_records=32_000, seconds=0.2, faults=FAULTS, max_relaunches=20
    ) as job:
        job.strike_at_each_place()
        summary = job.finish()
    check_counts(job, summary)
    assert not job.events("world restored")
    check_hashes(job)


@pytest.mark.timeout(400)
def test_a_ps_replica_that_is_killed_is_given_its_half_again(tmp_path):
    """And a worker, between the halves."""
    flags = {"recovery_seconds": 0.3, "faults": [("before rows", 5)]}
    with hybrid_job(tmp_path, num_records=12_000, seconds=0.2, **flags) as job:
        job.until_trained(1_000, also=job.has_checkpoint)
        (job.zoo / "due-0").touch()
        job.until_event("lost")
        job.until(lambda _: job.has_world_of(3))
        job.send("ps", 1)
        summary = job.finish()
    check_counts(job, summary)
    (recovery,) = summary["recoveries"]
    assert recovery["is_replayed"]
    assert recovery["version"] > 0
    assert not job.events("world restored")
    check_hashes(job)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_rows_move_to_other_numbers_of_ps_replicas(tmp_path):
    flags = {"max_staleness": 2, "recovery_seconds": 900}
    with hybrid_job(tmp_path, num_records=32_000, seconds=0.2, **flags) as job:
        job.until_trained(1_000)
        for count, struck in ((3, "ps"), (1, "worker"), (2, "ps")):
            job.move_to(count)
            job.until_event("ps moved", also=lambda event, n=count: event["replicas"] == n)
            job.send(struck)  # a ps replica begins with the checkpoint of the move
        summary = job.finish()
    check_counts(job, summary)
    check_hashes(job)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_tables_begin_with_pretrained_rows_also_after_a_kill(tmp_path):
    keys = np.arange(9_000)
    pretrained = tmp_path / "rows.npz"
    np.savez(pretrained, keys=keys, rows=1000 + keys[:, None].astype(np.float32))
    flags = {"pretrained_rows": f"rows={pretrained}", "recovery_seconds": 0}
    with hybrid_job(tmp_path, num_records=9_000, seconds=0.1, **flags) as job:
        job.until_trained(2_000)
        job.send("ps", 1)
        (recovery,) = job.finish()["recoveries"]
    assert recovery["is_replayed"]
    assert (recovery["version"], recovery["tasks"] > 0) == (0, True)
    model = job.model()
    np.testing.assert_array_equal(model["table/rows/rows"][:, 0], 1001 + keys)
    np.testing.assert_array_equal(model["dense/visits"], np.ones(9_000))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_master_is_killed_and_then_a_worker_and_a_ps_replica(tmp_path):
    with hybrid_job(tmp_path, num_records=12_000, seconds=0.1, recovery_seconds=0.3) as job:
        job.until_trained(2_000)
        for role in ("master", "worker", "ps"):
            job.send(role)
        summary = job.finish()
    check_counts(job, summary)
    assert summary["counters"]["resumed_masters"] == 1
    assert not job.events("world restored")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_checkpoints_behind_a_url_are_restored_and_begun_from(tmp_path, webhdfs):
    checkpoints = f"{webhdfs.url}/jobs/checkpoints"
    there = webhdfs.folder / "jobs" / "checkpoints"
    settings = {"checkpoint_dir": checkpoints, "checkpoint_steps": 40, "keep_checkpoint_max": 2}
    # Nothing else is kept, so what is restored comes from there.
    with hybrid_job(
        tmp_path / "first", num_records=9_000, seconds=0.1, recovery_seconds=0, **settings
    ) as job:
        job.until_trained(2_000, also=lambda: versions(there))
        for worker in job.processes("worker"):
            worker.kill()
        job.send("ps", 1)
        summary = job.finish()
    check_counts(job, summary)
    assert len(job.events("world restored")) == 1
    assert len(summary["recoveries"]) == 2  # of the world, and of a ps replica
    assert all(recovery["version"] > 0 for recovery in summary["recoveries"])
    assert len(versions(there)) == 2
    assert list((job.job_dir / "scratch").rglob("*.safetensors")) == []

    strategies = {"HybridStrategy": 2, "ParameterServerStrategy": 3, "Local": None}
    for strategy, num_ps in strategies.items():
        flags = {"distribution_strategy": strategy, "num_ps_pods": num_ps}
        flags["num_workers"] = num_ps and 2
        folder = tmp_path / strategy
        with hybrid_job(
            folder, num_records=9_000, seconds=0.0, checkpoint_dir_for_init=checkpoints, **flags
        ) as job:
            job.finish()
        model = job.model()
        np.testing.assert_array_equal(model["dense/visits"], np.full(9_000, 2.0))
        np.testing.assert_array_equal(model["table/rows/rows"], np.full((9_000, 1), 2.0))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_job_goes_on_from_a_checkpoint_of_ps_replicas(tmp_path):
    """The test above has the other direction."""
    flags = {"num_records": 960, "seconds": 0.0, "num_workers": 2}
    checkpoints = tmp_path / "checkpoints"
    replicas = {"distribution_strategy": "ParameterServerStrategy", "checkpoint_dir": checkpoints}
    with hybrid_job(tmp_path / "first", **replicas, **flags) as job:
        job.finish()
    with hybrid_job(tmp_path / "then", checkpoint_dir_for_init=checkpoints, **flags) as job:
        job.finish()
    model = job.model()
    np.testing.assert_array_equal(model["dense/visits"], np.full(960, 2.0))
    np.testing.assert_array_equal(model["table/rows/rows"], np.full((960, 1), 2.0))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_ps_replica_and_a_worker_that_are_asked_to_end_hand_over(tmp_path):
    with hybrid_job(tmp_path, num_records=12_000, seconds=0.1) as job:
        job.until_trained(2_000)
        for role in ("ps", "worker"):
            job.send(role, number=signal.SIGTERM)
        summary = job.finish()
    check_counts(job, summary)
    check_hashes(job)
    assert [recovery["is_handed_over"] for recovery in summary["recoveries"]] == [True]
