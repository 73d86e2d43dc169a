"""Tasks that kill their workers."""

import pytest

from elasticdl.job import Lease, Position, Role, Wait
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import Note, StartProcess
from elasticdl.master.core import Phase
from elasticdl.runtime.process import OWN_FAILURE_EXIT_CODE, TIMED_OUT_EXIT_CODE

ABORTED = (ExitReason.KILLED, -6)
KILLED = (ExitReason.KILLED, -9)


class Fleet:
    """A job of 20 tasks whose processes are started as the core asks for it."""

    def __init__(self, kit, num_workers=1, **settings):
        settings = {"max_task_retries": 1, "max_relaunches": 1, **settings}
        config = kit.config(num_workers=num_workers, **settings)
        self.play = kit.play(config, training=(("a", 600),), validation=())
        self.core = self.play.core
        self.core.begin(0.0)
        self.start()

    def start(self):
        for action in self.play.do(StartProcess):
            handle = ProcessHandle(Role.WORKER, action.index, f"worker {action.index}")
            self.core.processes.started(handle, self.play.now)
            self.play.register(action.index)

    @property
    def newest(self):
        return max(m.index for m in self.core.members if m.role is Role.WORKER)

    def exits(self, worker, reason, code, words=""):
        handle = ProcessHandle(Role.WORKER, worker, f"worker {worker}")
        self.core.process_exited(Exited(handle, reason, code, words), self.play.now)
        self.start()

    def announces(self, worker, lease, minibatch, stage, **values):
        position = Position(lease.task.id, lease.number, minibatch, stage, **values)
        self.core.processes.announced(worker, "s", position, self.play.now)

    def notes(self, event):
        return [note.text for note in self.play.do(Note) if note.kind.event == event]

    def warm(self, worker):
        """Have a worker do a task that is no suspect."""
        lease = self.play.lease(worker)
        assert not lease.is_suspect
        self.play.work_off(lease, worker)

    def suspect(self, worker):
        """Lease a suspect to a worker that has done a task."""
        lease = self.play.lease(worker)
        assert lease.is_suspect
        return lease


@pytest.fixture
def fleet(master_kit):
    fleet = Fleet(master_kit)
    fleet.warm(0)
    return fleet


def test_worker_that_died_with_several_tasks_makes_suspects_and_blames_none(fleet):
    held = [fleet.play.lease(0).task.id for _ in range(3)]
    fleet.exits(0, *ABORTED)
    assert [id for id in held if fleet.core.ledger.is_suspect(id)] == held
    assert fleet.notes("task failed") == []


def test_worker_that_died_with_one_task_died_of_it(fleet):
    task = fleet.play.lease(0).task
    fleet.exits(0, *ABORTED)
    assert fleet.notes("task failed") == [f"worker 0 crashed (SIGABRT) in {task}"]
    assert fleet.core.ledger.is_suspect(task.id)


def test_what_was_announced_last_is_named(fleet):
    lease = fleet.play.lease(0)
    fleet.exits(0, *ABORTED)
    fleet.warm(1)
    again = fleet.suspect(1)
    assert again.task == lease.task
    fleet.announces(1, again, 2, "feed")
    fleet.announces(1, again, 2, "compute")
    fleet.exits(1, *ABORTED)
    (words,) = fleet.notes("task set aside")
    assert words == f"worker 1 crashed (SIGABRT) in compute of minibatch 2 of {lease.task}"


@pytest.mark.parametrize(
    ("reason", "code"), [KILLED, (ExitReason.NODE_LOST, None), (ExitReason.FAILED, 70)]
)
def test_task_pays_nothing_for_a_worker_that_did_not_die_of_it(reason, code, fleet):
    assert OWN_FAILURE_EXIT_CODE == 70
    task = fleet.play.lease(0).task
    fleet.exits(0, reason, code)
    assert not fleet.core.ledger.is_suspect(task.id)
    assert fleet.play.lease(1).task == task


def test_suspect_pays_nothing_for_a_kill_from_outside(fleet):
    fleet.play.lease(0)
    fleet.exits(0, *ABORTED)
    for worker in range(1, 6):
        fleet.warm(worker)
        lease = fleet.suspect(worker)
        fleet.announces(worker, lease, 0, "feed")
        fleet.exits(worker, *KILLED)
    assert fleet.notes("task set aside") == []
    assert not fleet.core.has_ended


def test_worker_that_timed_out_names_its_task_and_the_others_are_innocent(fleet):
    stuck, ahead = fleet.play.lease(0), fleet.play.lease(0)
    fleet.announces(0, stuck, 1, "compute", seconds=400.0, is_overdue=True)
    fleet.exits(0, ExitReason.FAILED, TIMED_OUT_EXIT_CODE)
    assert fleet.notes("task failed") == [
        f"worker 0 timed out in compute of minibatch 1 of {stuck.task}"
    ]
    assert fleet.core.ledger.is_suspect(stuck.task.id)
    assert not fleet.core.ledger.is_suspect(ahead.task.id)


def fall_silent(fleet):
    """Let the time pass in which the worker should have been heard; then start another."""
    newest = fleet.newest
    for _ in range(200):
        fleet.core.tick(fleet.play.now)
        if fleet.core.members.find(Role.WORKER, newest).gone:
            break
        fleet.play.now += fleet.core.members.tick_seconds
    fleet.start()


def test_task_of_which_workers_fall_silent_again_and_again_is_set_aside(fleet):
    task = fleet.play.lease(0).task
    fall_silent(fleet)
    assert not fleet.core.ledger.is_suspect(task.id)  # a machine may have been out of reach
    assert fleet.play.lease(1).task == task
    fall_silent(fleet)
    assert fleet.core.ledger.is_suspect(task.id)
    assert fleet.notes("task failed") == []
    for worker in (2, 3):
        fleet.warm(worker)
        fleet.announces(worker, fleet.suspect(worker), 1, "feed")
        fall_silent(fleet)
    (words,) = fleet.notes("task set aside")
    assert words == f"worker 3 fell silent in feed of minibatch 1 of {task}"
    assert not fleet.core.has_ended


def test_silence_while_a_suspect_waits_for_ps_replicas_blames_nobody(fleet):
    fleet.play.lease(0)
    fleet.exits(0, *ABORTED)
    fleet.notes("task failed")
    for worker in range(1, 6):
        fleet.warm(worker)
        fleet.announces(worker, fleet.suspect(worker), 1, "push")
        fall_silent(fleet)
    assert fleet.notes("task failed") == fleet.notes("task set aside") == []


def test_worker_that_is_slow_is_told_of_and_not_blamed_for_where_it_was(fleet):
    slow, ahead = fleet.play.lease(0), fleet.play.lease(0)
    fleet.announces(0, slow, 1, "feed", seconds=75.0)
    assert fleet.notes("slow") == [
        f"worker 0 has been at feed of minibatch 1 of {slow.task} for 75 s"
    ]
    fleet.exits(0, *ABORTED)
    assert fleet.notes("task failed") == []
    assert fleet.core.ledger.is_suspect(ahead.task.id)


def test_announcement_of_a_lease_that_has_ended_is_ignored(fleet):
    lease = fleet.play.lease(0)
    fleet.play.work_off(lease)
    fleet.announces(0, lease, 1, "feed", seconds=75.0)
    assert fleet.notes("slow") == []


def test_one_poison_task_spares_the_relaunches_and_all_other_work_is_done(fleet):
    poison = fleet.play.lease(0).task
    fleet.exits(0, *ABORTED)
    deaths = 1
    while not fleet.core.ledger.is_idle:
        worker = fleet.newest
        lease = fleet.play.lease(worker)
        assert isinstance(lease, Lease)
        if lease.task == poison:
            fleet.announces(worker, lease, 0, "feed")
            fleet.exits(worker, *ABORTED)
            deaths += 1
        else:
            fleet.play.work_off(lease, worker)
    assert deaths == 2  # --max_task_retries=1
    assert fleet.core.history.failures == 0
    assert fleet.core.ledger.num_done == 19
    fleet.play.audit()
    assert fleet.core.phase is Phase.FAILED
    assert f"set aside: worker 1 crashed (SIGABRT) in feed of minibatch 0 of {poison}" in (
        fleet.core.message
    )


def test_workers_that_die_of_every_task_do_not_go_on_for_ever(master_kit):
    fleet = Fleet(master_kit, max_task_retries=9)
    for _ in range(9):
        if fleet.core.has_ended:
            break
        fleet.play.lease(fleet.newest)
        fleet.exits(fleet.newest, *ABORTED)
    assert fleet.core.phase is Phase.FAILED
    assert "--max_relaunches=1 are spent" in fleet.core.message


def test_busy_worker_waits_and_another_takes_the_suspect(master_kit):
    fleet = Fleet(master_kit, num_workers=3)
    for worker in range(3):
        fleet.warm(worker)
    fleet.play.lease(0)
    fleet.play.lease(1)
    fleet.exits(0, *ABORTED)
    assert isinstance(fleet.play.lease(1), Wait)
    fleet.suspect(2)
    assert not fleet.play.lease(1).is_suspect
    assert isinstance(fleet.play.lease(2), Wait)
