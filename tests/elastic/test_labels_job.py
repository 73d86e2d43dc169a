"""A real job's processes are stalled: the right label of the right process grows by as much."""

import signal
import threading
from collections import defaultdict

import pytest

from elasticdl.job import Label
from elasticdl.observe.events import read_events
from elasticdl.observe.kinds import typed

STALL_SECONDS = 3.0
HEARTBEAT_SECONDS = 0.2
NUM_IDS = 4_000


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


def stall(work):
    """Do something, wait, and return what the last line of a thread did after that."""
    threading.Event().wait(STALL_SECONDS)
    return work()


def test_each_second_of_each_process_has_one_label(job):
    with job:
        job.wait_for_pause()
        job.go_on()
    processes = usages(job)
    assert sorted((role, index) for role, index, _ in processes) == [
        ("master", 0),
        ("ps", 0),
        ("ps", 1),
        ("worker", 0),
    ]
    for (role, _, began), events in processes.items():
        for event in events:
            wall = event["time"] - began
            assert sum(event["label_seconds"].values()) == pytest.approx(wall, abs=0.1), role
            assert event["resident_bytes"] > 10_000_000
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


def test_a_feed_that_stands_still_is_time_that_a_worker_waits_for_data(job):
    with job:
        job.wait_for_pause()
        stall(job.go_on)
    assert_grown(job, Label.WAIT_FOR_DATA, Label.WAIT_FOR_PARAMETERS)


@pytest.mark.long
def test_a_ps_replica_that_stands_still_is_time_that_a_worker_waits_for_parameters(job, chaos):
    with job:
        job.wait_for_pause()
        ps, _ = chaos.processes(job.job_dir, "ps")
        ps.send_signal(signal.SIGSTOP)
        going = threading.Thread(target=job.go_on)
        going.start()
        stall(lambda: ps.send_signal(signal.SIGCONT))
        going.join()
    assert_grown(job, Label.WAIT_FOR_PARAMETERS, Label.WAIT_FOR_DATA)


def assert_grown(job, label, other):
    (events,) = (events for (role, *_), events in usages(job).items() if role == "worker")
    seconds = events[-1]["label_seconds"]
    assert seconds[label] == pytest.approx(STALL_SECONDS, rel=0.1, abs=1.0)
    assert seconds.get(other, 0.0) < 1.0
