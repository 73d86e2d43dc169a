"""Costs come from what the threads of a real job did between two moments."""

import os
import signal
import subprocess
import types
from pathlib import Path

import pytest

from elasticdl.errors import JobFailedError
from elasticdl.packages.simulate import calibrate as calibration_run
from elasticdl.packages.simulate.calibrate import calibrate
from elasticdl.packages.simulate.calibration import Reading, costs_of, speed_between, use_between
from elasticdl.packages.simulate.cluster import Cluster
from elasticdl.packages.simulate.pace import records_per_second
from elasticdl.runtime.proc import RunningThread, busy_seconds, threads_of


def threads(*seconds, first=10, beside=0):
    """Return threads; the last `beside` ones give way."""
    start = len(seconds) - beside
    return [
        RunningThread(first + at, "python", 10 if at >= start else 0, spent)
        for at, spent in enumerate(seconds)
    ]


def reading(at, minibatches, worker, ps=0.0, master=0.0, busy=0.0):
    return Reading(
        seconds=at,
        busy=busy,
        worker=worker,
        ps=threads(ps, first=50),
        master=threads(master, first=70),
        progress=[(at, minibatches)],
        bytes_sent=1000.0 * minibatches,
        bytes_received=100.0 * minibatches,
    )


BEFORE = reading(0.0, 0, threads(5.0, 0.0, 0.0, 0.0, beside=3), busy=100.0)
AFTER = reading(10.0, 1000, threads(8.0, 2.0, 1.0, 0.5, beside=3), 1.5, 1.0, busy=110.0)


def test_each_thread_is_a_stage_and_the_cores_of_others_are_not_ours():
    usage = use_between(BEFORE, AFTER, cores=2)
    assert (usage.compute, usage.feed) == pytest.approx((3e-3, 2e-3))
    assert (usage.prepare, usage.commit) == pytest.approx((1e-3, 0.5e-3))
    assert (usage.ps, usage.master) == pytest.approx((1.5e-3, 1e-3))
    assert (usage.bytes_sent, usage.bytes_received) == pytest.approx((1000, 100))
    assert usage.speed.rate == pytest.approx(100)
    assert usage.speed.own_cores == pytest.approx(0.9)
    assert usage.speed.left_cores == pytest.approx(2 - 0.1)


def test_a_simulated_job_is_as_fast_as_the_one_that_was_measured():
    usage = use_between(BEFORE, AFTER, cores=2)
    costs = costs_of("a", 512, 20, 0.0, 1.0, usage)
    alone = Cluster(workers=1, ps=1, shared_cores=usage.speed.left_cores)
    assert costs.wait > 0
    assert records_per_second(costs, alone) == pytest.approx(512 * 100, rel=0.03)


def test_what_further_replicas_cost_is_by_frames():
    one = use_between(BEFORE, AFTER, cores=2)
    more = reading(10.0, 1000, threads(8.0, 2.0, 1.7, 1.2, beside=3), 2.2, 1.0, busy=112.0)
    costs = costs_of("a", 512, 20, 0.0, 1.0, one, use_between(BEFORE, more, cores=2), 8)
    assert costs.worker_frame == pytest.approx(0.1e-3)
    assert costs.ps_frame == pytest.approx(0.1e-3)


def test_a_job_that_trains_nothing_is_no_measure():
    with pytest.raises(JobFailedError, match="expected every worker to train minibatches"):
        speed_between(BEFORE, reading(10.0, 0, BEFORE.worker), cores=2)
    with pytest.raises(JobFailedError, match="expected 3 threads"):
        use_between(BEFORE, reading(10.0, 10, threads(9.0)), cores=2)


def test_threads_of_this_process_are_seen():
    before = busy_seconds()
    (own, *_) = threads_of(os.getpid())
    assert own.thread_id == os.getpid()
    assert own.seconds > 0
    assert busy_seconds() >= before
    assert threads_of(2**22 + 1) == []


@pytest.mark.parametrize(
    ("place", "expected"),
    [("a.csv", 3), ("*.csv", 8), ("a.csv,b.csv", 8), (".", 8), ("sqlite:///a.db", 0), ("", 0)],
)
def test_the_bytes_of_a_record_are_known_of_all_files(tmp_path, monkeypatch, place, expected):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_bytes(bytes(30))
    Path("b.csv").write_bytes(bytes(50))
    picture = {"event": "picture", "records_total": 20, "num_epochs": 2}
    monkeypatch.setattr(calibration_run, "_beats", lambda folder: [picture])
    config = types.SimpleNamespace(data=types.SimpleNamespace(training_data=place))
    assert calibration_run._record_bytes(tmp_path, config) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_calibration_that_is_asked_to_end_ends_its_job(monkeypatch, number):
    class PlayedJob:
        """The command of a job; somebody asks the calibration to end while it starts."""

        def __init__(self, *words, **others):
            self.calls = []
            jobs.append(self)
            os.kill(os.getpid(), number)

        def send_signal(self, number):
            self.calls.append(number)

        def wait(self, seconds):
            self.calls.append("wait")

        def poll(self):
            return 0

    jobs, before = [], signal.getsignal(number)
    monkeypatch.setattr(subprocess, "Popen", PlayedJob)
    signal.signal(number, signal.default_int_handler)  # of SIGTERM the calibration has its own
    try:
        with pytest.raises(KeyboardInterrupt):
            calibrate("a.forward", [])
    finally:
        signal.signal(number, before)
    assert [job.calls for job in jobs] == [[signal.SIGTERM, "wait"]]
