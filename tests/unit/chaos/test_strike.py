"""A fault counts only if a process lived, and died by it."""

import random
import signal
import subprocess
import sys

import pytest

from elasticdl.job import Role
from elasticdl.master.phases import Phase
from scripts.chaos.faults import Fault
from scripts.chaos.strike import Striker
from scripts.chaos.watch import EventTail, Moment

RUNNING = Moment(0.5, Phase.TRAINING)


@pytest.fixture
def striker(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.chaos.strike._SECONDS", 0.05)
    return Striker(tmp_path, None, EventTail(tmp_path, Role.MASTER), random.Random(0))


@pytest.fixture
def worker(tmp_path):
    """Run what looks like a worker of the job."""
    words = ["elasticdl.worker", "--job_dir", str(tmp_path), "--index", "4"]
    program = "print('up', flush=True); import time; time.sleep(3600)"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE
    ) as process:
        try:
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_a_process_that_is_killed_is_a_victim(striker, worker, monkeypatch):
    monkeypatch.setattr("scripts.chaos.strike._SECONDS", 60.0)
    struck = striker.strike(Fault("worker", "worker", at=0.5), RUNNING)
    assert not struck.problem
    assert [(v.role, v.index, v.pid) for v in struck.victims] == [("worker", 4, worker.pid)]
    assert worker.wait() == -signal.SIGKILL


@pytest.mark.parametrize("what", ["worker", "ps", "ps-all", "ps-again", "worker-stop", "ps+master"])
def test_a_fault_that_finds_nobody_did_not_happen(striker, what):
    struck = striker.strike(Fault(what, what, at=0.5), RUNNING)
    assert "alive to strike" in struck.problem
    assert not struck.victims


def test_two_at_once_need_two_processes(striker, worker):
    struck = striker.strike(Fault("worker+worker", "worker+worker", at=0.5), RUNNING)
    assert "alive to strike" in struck.problem
    assert worker.poll() is None


def test_a_worker_that_was_started_by_hand_is_left_for_its_own_fault(striker, worker):
    striker._by_hand.append(worker)
    struck = striker.strike(Fault("worker", "worker", at=0.5), RUNNING)
    assert "alive to strike" in struck.problem
    assert worker.poll() is None


def test_a_process_of_another_job_is_left_alone(striker, tmp_path):
    words = ["elasticdl.worker", "--job_dir", "/elsewhere", "--index", "0"]
    with subprocess.Popen(
        [sys.executable, "-c", "input()", *words], stdin=subprocess.PIPE
    ) as other:
        try:
            struck = striker.strike(Fault("worker", "worker", at=0.5), RUNNING)
            assert "alive to strike" in struck.problem
            assert other.poll() is None
        finally:
            other.kill()


def test_a_stopped_process_that_is_not_missed_goes_on_and_counts_for_nothing(
    striker, worker, monkeypatch
):
    monkeypatch.setattr("scripts.chaos.strike._SECONDS", 2.0)  # in which it surely stops
    struck = striker.strike(Fault("worker-stop", "worker-stop", at=0.5), RUNNING)
    assert "was not lost while it was stopped" in struck.problem
    assert worker.poll() is None


def test_nothing_is_done_to_a_job_that_has_ended(striker, worker):
    struck = striker.strike(Fault("worker", "worker", at=0.5), Moment(1.0, Phase.FINISHED))
    assert struck.problem == "the job had ended before"
    assert worker.poll() is None
