"""A real job's processes are stalled: the right label of the right process grows by as much."""

import signal
import statistics
import threading
from collections import defaultdict

import pytest

from elasticdl.job import Label
from elasticdl.observe.events import read_events
from elasticdl.observe.kinds import typed

STALL_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.2
NUM_IDS = 4_000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def job(paused_job):
    flags = {"heartbeat_seconds": HEARTBEAT_SECONDS}
    return paused_job(range(NUM_IDS), mode="TRAINING", call=20, **flags)


def usages(job):
    """Return what each process has said of its time: (role, index, began) -> events in order."""
    found = defaultdict(list)
    for event in read_events(job.job_dir):
        if event["event"] == "usage":
            found[event["role"], event["index"], event["began"]].append(event)
    return found


def usages_of_worker(job):
    """Return what the only worker has said of its time so far, in order."""
    return [event for event in job.events("usage") if event["role"] == "worker"]


def assert_grows(job, label):
    """Wait until the worker has stood still for long; all this time has one label.

    What was fed before a pause is trained first.
    """
    seconds = 0.0
    while seconds < STALL_SECONDS:
        assert job.is_running(), job.log()
        threading.Event().wait(HEARTBEAT_SECONDS)
        stalled = [event for event in usages_of_worker(job) if event["label"] == label]
        last = stalled[-1] if stalled else None
        # Since it did something else for the last time.
        same = [e for e in stalled if others(e, label) == others(last, label)]
        seconds = last["label_seconds"][label] - same[0]["label_seconds"][label] if last else 0.0
    passed = same[-1]["time"] - same[0]["time"]
    assert seconds == pytest.approx(passed, rel=0.2, abs=1.0)


def others(usage, label):
    """Return the seconds of all labels but one."""
    return {name: seconds for name, seconds in usage["label_seconds"].items() if name != label}


def test_each_second_of_each_process_has_one_label(job):
    with job:
        job.wait_for_pause()
        assert_grows(job, Label.WAIT_FOR_DATA)  # the feed stands still
        job.go_on()
    processes = usages(job)
    assert sorted((role, index) for role, index, _ in processes) == [
        ("master", 0),
        ("ps", 0),
        ("ps", 1),
        ("worker", 0),
    ]
    for (role, _, began), events in processes.items():
        # On a busy machine a process may be held between its looks at the two clocks.
        walls = [event["time"] - began for event in events]
        sums = [sum(event["label_seconds"].values()) for event in events]
        apart = [abs(wall - found) for wall, found in zip(walls, sums, strict=True)]
        assert statistics.median(apart) < 0.1, role
        assert all(event["resident_bytes"] > 10_000_000 for event in events)
        for label in Label:
            seconds = [event["label_seconds"].get(label, 0.0) for event in events]
            assert seconds == sorted(seconds), (role, label)
        cpu = [event["cpu_seconds"] for event in events]
        assert cpu == sorted(cpu)
        assert cpu[-1] > 0.0
    last = {(role, index): typed(events[-1]) for (role, index, _), events in processes.items()}
    assert {"starting", "train"} <= last["worker", 0].label_seconds.keys()
    assert {"pending", "train"} <= last["master", 0].label_seconds.keys()
    assert last["worker", 0].bytes_sent > NUM_IDS
    replicas = last["ps", 0], last["ps", 1]
    # What the master asks of them is in it as well.
    assert sum(ps.bytes_received for ps in replicas) >= last["worker", 0].bytes_sent
    assert sum(ps.bytes_sent for ps in replicas) >= last["worker", 0].bytes_received > NUM_IDS


@pytest.mark.long
def test_a_ps_replica_that_stands_still_is_time_that_a_worker_waits_for_parameters(job, chaos):
    with job:
        job.wait_for_pause()
        ps, _ = chaos.processes(job.job_dir, "ps")
        ps.send_signal(signal.SIGSTOP)
        (job.zoo / "go").write_text("x")
        assert_grows(job, Label.WAIT_FOR_PARAMETERS)
        ps.send_signal(signal.SIGCONT)
        job.finish()
