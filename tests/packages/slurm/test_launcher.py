"""The launcher with a Slurm that is played; tests/contract has it with a real one."""

import dataclasses
import errno
import itertools
import signal
import threading

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, PendingProcess, ProcessSpec, Started
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm import launcher as room
from elasticdl.packages.slurm.commands import SlurmAwayError
from elasticdl.packages.slurm.launcher import SlurmLauncher
from elasticdl.packages.slurm.roster import Occupied

SECONDS = 30.0
CONFIG = build_config(
    "train", {"model_def": "a.forward", "training_data": "/data", "launcher": "slurm"}
)
SPEC = ProcessSpec(Role.WORKER, 0, ("run",))


class PlayedSlurm:
    """Takes arrays, and starts nothing."""

    def __init__(self, monkeypatch):
        self.arrays, self.refusals, self.scripts = [], [], []
        self._numbers = map(str, itertools.count(1))
        monkeypatch.setattr(commands, "submit", self._submit)
        monkeypatch.setattr(commands, "own_tasks", dict)
        for name in ("cancel", "send"):
            monkeypatch.setattr(commands, name, lambda *words, **others: None)

    def _submit(self, script, words):
        if self.refusals:
            raise self.refusals.pop()
        self.scripts.append(script)
        self.arrays += [word for word in words if word.startswith("--array")]
        return next(self._numbers)


@pytest.fixture
def slurm_played(monkeypatch):
    return PlayedSlurm(monkeypatch)


@pytest.fixture
def heard():
    """Take what a launcher tells: events, and a condition that says when there are more."""
    return [], threading.Condition()


@pytest.fixture
def launcher(slurm_played, heard, tmp_path):
    events, news = heard

    def take(event):
        with news:
            events.append(event)
            news.notify_all()

    launcher = SlurmLauncher(CONFIG, take, tmp_path)
    yield launcher
    launcher.close(0.0)


def until(heard, kind, number=1):
    """Wait until so many events of a kind have been told, and return them."""
    events, news = heard

    def found():
        return [event for event in events if isinstance(event, kind)]

    with news:
        assert news.wait_for(lambda: len(found()) >= number, SECONDS)
        return found()


def test_what_is_wanted_at_the_same_time_gets_one_array(launcher, slurm_played, heard):
    for index in range(3):
        launcher.start(ProcessSpec(Role.WORKER, index, ("run",)))
    until(heard, PendingProcess, 3)
    assert slurm_played.arrays == ["--array=0-2"]


@pytest.mark.parametrize("num_refusals", [0, 1])
def test_replicas_are_in_the_queue_before_the_workers_that_wait_for_them(
    launcher, slurm_played, heard, num_refusals
):
    slurm_played.refusals += [SlurmAwayError("sbatch: try again")] * num_refusals
    for role in (Role.WORKER, Role.PS, Role.MODEL_SERVER):
        launcher.start(ProcessSpec(role, 0, ("run",)))
    until(heard, PendingProcess, 3 + num_refusals)
    roles = [script.partition("--role ")[2].split()[0] for script in slurm_played.scripts]
    assert roles == ["ps", "modelserver", "worker"]


def test_what_slurm_refuses_has_ended_and_says_why(launcher, slurm_played, heard):
    slurm_played.refusals.append(LaunchError("sbatch: no such partition"))
    handle = launcher.start(SPEC)
    (end,) = until(heard, Exited)
    assert end == Exited(handle, ExitReason.FAILED, None, "sbatch: no such partition")


def test_a_controller_that_is_away_is_asked_again(launcher, slurm_played, heard):
    slurm_played.refusals.append(SlurmAwayError("sbatch: Unable to contact"))
    launcher.start(SPEC)
    said = [event.why for event in until(heard, PendingProcess, 2)]
    assert said == ["sbatch: Unable to contact", "it is in Slurm's queue"]


def test_a_process_that_is_wanted_while_files_are_read_is_not_taken_as_gone(
    launcher, heard, monkeypatch
):
    list_ended, calls, has_read = launcher._roster.ended, itertools.count(), threading.Event()

    def ended():
        number = next(calls)
        if number == 0:  # those that are wanted, and those that run, have been listed before
            launcher.start(SPEC)
        if number == 2:
            has_read.set()
        return list_ended()

    monkeypatch.setattr(launcher._roster, "ended", ended)
    assert has_read.wait(SECONDS)
    assert not [event for event in heard[0] if isinstance(event, Exited)]


def test_a_place_whose_process_was_killed_takes_the_next_one(launcher, slurm_played, heard):
    launcher.start(SPEC)
    until(heard, PendingProcess)
    handle, _ = launcher._roster.take(Role.WORKER, Occupied("1_0", 0))
    launcher._roster.tell_end(Exited(handle, ExitReason.KILLED, -9))
    until(heard, Exited)
    launcher.start(dataclasses.replace(SPEC, index=1))
    launcher.start(dataclasses.replace(SPEC, index=2))
    until(heard, PendingProcess, 2)
    assert slurm_played.arrays == ["--array=0-0"] * 2


def test_a_place_that_was_cancelled_in_the_queue_is_asked_for_again(
    launcher, slurm_played, heard, monkeypatch
):
    monkeypatch.setattr(room, "_ASK_SECONDS", 0.1)
    launcher.start(SPEC)
    until(heard, PendingProcess)
    has_asked = threading.Event()
    submit = commands.submit
    monkeypatch.setattr(commands, "submit", lambda *words: (has_asked.set(), submit(*words))[1])
    assert has_asked.wait(SECONDS)  # Slurm lists no task of it
    assert slurm_played.arrays == ["--array=0-0"] * 2


def test_a_process_is_asked_to_end_again_if_slurm_was_away(launcher, heard, monkeypatch):
    refusals, sent, news = [SlurmAwayError("scancel: Unable to contact")] * 2, [], threading.Event()

    def send(number, tasks):
        if refusals:
            raise refusals.pop()
        sent.append((number, list(tasks)))
        news.set()

    monkeypatch.setattr(commands, "send", send)
    handle = launcher.start(SPEC)
    until(heard, PendingProcess)
    launcher._roster.take(Role.WORKER, Occupied("1_0", 0))
    until(heard, Started)
    launcher.stop(handle, 3600.0)
    assert news.wait(SECONDS)
    assert sent == [(signal.SIGTERM, ["1_0"])]
    launcher._roster.tell_end(Exited(handle, ExitReason.PREEMPTED, -15))
    until(heard, Exited)


def test_a_process_that_nobody_knows_is_cancelled_again_if_slurm_was_away(
    launcher, heard, monkeypatch
):
    refusals, cancelled = [SlurmAwayError("scancel: Unable to contact")] * 2, threading.Event()

    def cancel(tasks, is_waiting=False):
        if refusals:
            raise refusals.pop()
        if list(tasks) == ["1_0"]:
            cancelled.set()

    monkeypatch.setattr(commands, "cancel", cancel)
    launcher._roster.want("worker-0-stray", ["run"])
    launcher._roster.take(Role.WORKER, Occupied("1_0", 0))
    launcher.start(SPEC)
    assert cancelled.wait(SECONDS)


def test_an_end_is_told_though_its_files_cannot_be_removed(launcher, heard, monkeypatch):
    def forget(ref, occupied):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(launcher._roster, "forget", forget)
    handle = launcher.start(SPEC)
    until(heard, PendingProcess)
    launcher._roster.take(Role.WORKER, Occupied("1_0", 0))
    launcher._roster.tell_end(Exited(handle, ExitReason.FAILED, 1, "a word"))
    assert until(heard, Exited) == [Exited(handle, ExitReason.FAILED, 1, "a word")]


def test_a_process_that_an_unknown_master_wanted_has_no_place_any_more(launcher, heard, tmp_path):
    launcher._roster.want("worker-0-stray", ["run"])
    handle = launcher.start(SPEC)
    until(heard, PendingProcess)
    assert launcher._roster.wanted() == {handle.ref}
