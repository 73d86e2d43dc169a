"""Processes that others ask to end: they are replaced at once, and it costs nothing."""

import pytest

from elasticdl.job import Finished, Outcome, Role
from elasticdl.launchers.base import Exited, ExitReason, PendingProcess, ProcessHandle, Started
from elasticdl.master.actions import StartProcess, StopProcess
from elasticdl.master.status import members


@pytest.fixture
def play(master_kit):
    core = master_kit.core(master_kit.config(num_workers=2, max_relaunches=0))
    play = master_kit.Play(core)
    core.begin(0.0)
    play.do(StartProcess)
    for index in (0, 1):
        core.processes.started(ProcessHandle(Role.WORKER, index, f"worker-{index}"), 0.0)
    play.register(0, 1)
    return play


def exits(play, index, reason, code):
    handle = ProcessHandle(Role.WORKER, index, f"worker-{index}")
    play.core.process_exited(Exited(handle, reason, code), 2.0)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (ExitReason.FINISHED, 0),
        (ExitReason.PREEMPTED, 143),
        (ExitReason.KILLED, -9),
        (ExitReason.FAILED, 70),
    ],
)
def test_a_worker_that_leaves_is_replaced_once_and_is_no_failure(play, reason, code):
    lease = play.lease(0)
    assert play.core.leave(Role.WORKER, 0, "s", 1.0).is_awaited
    assert play.core.leave(Role.WORKER, 0, "s", 1.0).is_awaited  # repeated
    assert play.do(StartProcess) == [StartProcess(Role.WORKER, 2)]
    exits(play, 0, reason, code)
    assert play.do(StartProcess) == []
    assert not play.core.has_ended
    again = play.lease(1)
    assert (again.task, again.number) == (lease.task, 2)
    assert not again.is_suspect


def test_a_worker_that_leaves_gives_its_lease_back_and_gets_no_other(play):
    lease = play.lease(0)
    play.core.leave(Role.WORKER, 0, "s", 1.0)
    assert play.lease(0) == Finished()
    assert play.report(lease, 0, outcome=Outcome.RETURNED)
    assert play.lease(1).task == lease.task
    assert play.core.counters.values["stale_reports"] == 0


def test_the_status_shows_that_a_worker_leaves(play):
    play.core.leave(Role.WORKER, 0, "s", 1.0)
    states = [(member.index, member.state) for member in members(play.core, 1.0)]
    assert states == [(0, "leaving"), (1, "alive"), (2, "planned")]


def test_nobody_waits_for_a_worker_that_was_given_up(play):
    assert not play.core.leave(Role.WORKER, 0, "another session", 1.0).is_awaited
    play.core.stop("enough", 1.0)
    assert not play.core.leave(Role.WORKER, 0, "s", 1.0).is_awaited


def test_who_waits_for_room_is_the_first_to_be_let_go(play):
    play.core.processes.set_num_workers(3, 1.0)
    handle = ProcessHandle(Role.WORKER, 2, "worker-2")
    play.core.processes.started(handle, 1.0)
    play.core.processes.waits(PendingProcess(handle, "no room"), 1.0)
    play.core.processes.set_num_workers(2, 2.0)
    assert play.do(StopProcess) == [StopProcess(handle)]


def test_who_gets_room_is_expected_to_speak(play):
    play.core.processes.set_num_workers(3, 1.0)
    handle = ProcessHandle(Role.WORKER, 2, "worker-2")
    play.core.processes.started(handle, 1.0)
    play.core.processes.waits(PendingProcess(handle, "no room"), 1.0)
    play.core.processes.runs(Started(handle), 1000.0)
    assert play.core.members.find(Role.WORKER, 2).is_running
    assert not play.core.members.find(Role.WORKER, 2).pending
