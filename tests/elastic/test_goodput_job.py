"""Goodput of real jobs: a stall of known length is found under its label, in its lane."""

import signal
import threading
from pathlib import Path

import pytest

from elasticdl.job import Role
from elasticdl.observe.events import read_events
from elasticdl.packages.page.history.board import board
from elasticdl.packages.page.history.fold import History
from tests.elastic.seen_job import SeenJob

STALL_SECONDS = 5.0
NUM_RECORDS = 8_000
LABELS = ("wait for data", "wait for parameters", "train")


def history_of(job):
    return History.of(read_events(job.job_dir))


def seconds_of(history, name):
    (lane,) = (lane for lane in history.lanes if lane.name == name)
    return lane.seconds


def slack(found, undisturbed):
    """Return how far a label may be from the stall: half of it, and what else made the job slower.

    On a busy machine two equal jobs differ by seconds, under each label.
    """
    longer = sum(found.values()) - sum(undisturbed.values())
    return 0.5 * STALL_SECONDS + abs(longer - STALL_SECONDS)


def assert_whole(history):
    """Good seconds and losses are all the seconds there were, of every role and of all."""
    for role in (*Role, None):
        found = history.goodput(role)
        assert found.good + sum(found.losses.values()) == pytest.approx(found.seconds)
    lanes = sum(sum(lane.seconds.values()) for lane in history.lanes)
    assert history.goodput(None).seconds == pytest.approx(lanes)
    cells = sum(float(lane.row.amounts.sum()) for lane in history.lanes)
    assert cells == pytest.approx(lanes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Seconds of the worker by label in a job without a stall."""
    with SeenJob(tmp_path_factory.mktemp("undisturbed"), NUM_RECORDS) as job:
        job.wait()
    return seconds_of(history_of(job), "worker-0")


@pytest.mark.long
def test_stalled_step_is_time_under_its_label(seen_job, undisturbed):
    with seen_job(NUM_RECORDS, stage="compute", call=8, seconds=STALL_SECONDS) as job:
        job.wait()
    history = history_of(job)
    assert_whole(history)
    found = seconds_of(history, "worker-0")
    grown = {label: found.get(label, 0.0) - undisturbed.get(label, 0.0) for label in LABELS}
    within = slack(found, undisturbed)
    assert grown.pop("train") == pytest.approx(STALL_SECONDS, abs=within), found
    assert max(grown.values()) < within, found


def stall_a_ps_replica(job):
    """Hold one of the job's ps replicas, once the worker has trained something."""
    job.until_progress()
    job.send("ps", number=signal.SIGSTOP)
    threading.Event().wait(STALL_SECONDS)
    job.send("ps", number=signal.SIGCONT)


@pytest.mark.long
def test_stalled_ps_replica_is_a_dip_with_its_cause(seen_job):
    """Of a job that is much longer than the stall: else there is no usual throughput."""
    with seen_job(6 * NUM_RECORDS) as job:
        stall_a_ps_replica(job)
        job.wait()
    told = board(history_of(job))["dips"]
    long = [dip for dip in told if dip["end"] - dip["begin"] >= STALL_SECONDS - 2.0]
    # A busy machine may have made another long one.
    assert any("parameters" in dip["cause"] for dip in long), told


@pytest.mark.long
def test_ledger_of_a_job_that_lost_processes_agrees_with_what_was_done_to_it(seen_job, tmp_path):
    """Three workers, two ps replicas; a worker and the master are killed; two checkpoints."""
    checkpoints = {"checkpoint_dir": tmp_path / "checkpoints", "checkpoint_steps": 1_000}
    with seen_job(40_000, num_workers=3, pace=0.05, **checkpoints) as job:
        job.until_progress()
        job.send("worker")
        job.until_event("lost")
        job.until_event("registered", "worker 3")  # in its place
        job.send("master")
        job.until_event("resumed")
        job.hurry()
        job.wait()
    history = history_of(job)
    assert_whole(history)
    found = board(history)
    assert found["lost"] == {"worker": 1}
    assert found["phase"] == "finished"
    names = [fact["event"] for fact in found["facts"]]
    assert names.count("lost") == 1
    assert names.count("resumed") == 1
    workers = [lane for lane in found["lanes"] if lane["role"] == "worker"]
    assert sorted(lane["state"] for lane in workers).count("lost") == 1
    # One that was killed before its first heartbeat has told nothing of itself.
    assert sum(lane["processes"] for lane in workers) in (3, 4), workers
    masters = [lane for lane in found["lanes"] if lane["role"] == "master"]
    assert masters[0]["processes"] == 2
    first, second, last = (point["version"] for point in found["points"]["checkpoint"])
    assert 1_000 <= first < 2_000 <= second < last  # updates go on until one is begun
    assert last == 40_000 / 16
    assert 0.1 < found["goodput"]["workers"]["share"] < 1.0


def test_numbers_and_histograms_are_written_for_tensorboard(seen_job, load_module, tmp_path):
    pytest.importorskip("tensorboardX", reason="this needs elasticdl-train[tensorboard]")
    tests = Path(__file__).parents[1]
    written_for = load_module(tests / "packages" / "trackers" / "test_tensorboard.py")
    folder = tmp_path / "tensorboard"
    flags = {"tensorboard_log_dir": folder, "tensorboard_histograms": True}
    flags |= {"checkpoint_dir": tmp_path / "checkpoints", "checkpoint_steps": 50}
    flags |= {"distribution_strategy": "Local", "num_workers": None, "num_ps_pods": None}
    with seen_job(2_000, **flags) as job:
        job.wait()
    numbers, histograms = written_for.scalars(folder), written_for.histograms(folder)
    names = {name for name, _ in numbers}
    assert {"loss/training", "learning_rate", "throughput/records_per_second"} <= names
    # Nobody has set it: a worker has said what its optimizer does.
    assert {value for (name, _), value in numbers.items() if name == "learning_rate"} == {1.0}
    steps = {step for _, step in histograms}
    assert len(steps) >= 2
    kept = {int(path.name.split("-")[1]) for path in (tmp_path / "checkpoints").glob("version-*")}
    assert max(steps) in kept
    assert all(number > 0 for _, _, number in histograms.values())


@pytest.mark.long
@pytest.mark.timeout(400)
def test_straggler_of_a_real_job_is_told_with_its_stage(seen_job):
    with seen_job(600_000, num_workers=4, pace=0.01, straggler=2) as job:
        job.until_event("anomaly", also=lambda event: event["what"] == "straggler")
        # The loss may seem to diverge for a moment.
        told = [event for event in job.events("anomaly") if event["what"] == "straggler"]
    assert [event["process"] for event in told] == ["worker 2"]
    assert told[0]["stage"] == "compute"
