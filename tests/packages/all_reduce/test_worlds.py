"""Workers that hold the parameters, as the job sees them: who gets leases, what a loss costs."""

import dataclasses
import json

import pytest

from elasticdl.errors import ElasticdlError
from elasticdl.job import (
    Attendance,
    Finished,
    JointGeneration,
    Lease,
    Outcome,
    Role,
    Seat,
    Strategy,
    TaskReport,
    Wait,
)
from elasticdl.job.status import Recovery
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master import status
from elasticdl.master.actions import AskWatermarks
from elasticdl.master.core import Phase
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.parameters.answers import BeginWith, Watermarks
from elasticdl.master.parameters.hand_overs import HandOver
from elasticdl.master.parameters.schedule import WholeCheckpoint
from elasticdl.master.processes import Leaving


class Worlds:
    """A job of all-reduce with two workers, played by the test."""

    def __init__(self, kit, **settings):
        self.config = kit.config(distribution_strategy=Strategy.ALLREDUCE, **settings)
        self.kit = kit
        self.play = kit.Play(kit.core(self.config, training=(("a", 120),)))
        self.core = self.play.core
        self.facts = []
        self.core.begin(0.0)

    def register(self, *workers):
        for worker in workers:
            self.core.register_worker(worker, f"s{worker}", 100 + worker, self.play.now)

    def attend(self, worker, version=-1, synced=0, told=0):
        said = Attendance(f"ring{worker}", f"store{worker}", version, synced, told)
        return self.core.attend(worker, f"s{worker}", said, self.play.now)

    def lease(self, worker):
        return self.play.lease(worker, f"s{worker}")

    def lose(self, worker):
        exited = Exited(ProcessHandle(self.kit.Role.WORKER, worker, ""), ExitReason.KILLED, -9)
        self.core.process_exited(exited, self.play.now)

    def leave(self, worker):
        return self.core.leave(Role.WORKER, worker, f"s{worker}", self.play.now)

    def begin(self):
        """Form the first world."""
        self.register(0, 1)
        self.attend(0)
        self.attend(1)
        assert self.attend(0) == BeginWith(None)
        seat = self.attend(0, version=0)
        assert isinstance(seat, Seat)
        return seat


@pytest.fixture
def worlds(master_kit):
    return Worlds(master_kit, num_workers=2, num_epochs=1)


def test_no_lease_goes_out_before_there_is_a_world(worlds):
    worlds.register(0, 1)
    assert isinstance(worlds.attend(0), Wait)
    assert worlds.core.phase is Phase.PENDING
    assert status.picture(worlds.core, worlds.play.now).message == "waiting for workers"
    assert isinstance(worlds.lease(0), Wait)
    worlds.attend(1)
    worlds.attend(0, version=0)
    assert worlds.core.phase is Phase.TRAINING
    assert isinstance(worlds.lease(0), Lease)


def test_all_members_hear_the_same_of_a_world(worlds):
    first = worlds.begin()
    second = worlds.attend(1)
    assert (first.world_id, first.rank, first.workers) == (1, 0, (0, 1))
    assert (second.world_id, second.rank, second.rings) == (1, 1, ("ring0", "ring1"))
    assert first.are_behind == second.are_behind == (False, True)
    assert worlds.core.parameters.route.addresses == ("store0",)


def test_the_loss_of_one_gives_its_task_to_another_and_rolls_nothing_back(worlds):
    worlds.begin()
    lease = worlds.lease(0)
    worlds.lose(0)
    assert isinstance(worlds.lease(1), Wait)  # until there is a world again
    seat = worlds.attend(1, version=3, synced=1, told=1)
    assert (seat.world_id, seat.workers, seat.generation) == (2, (1,), 0)
    again = worlds.lease(1)
    assert (again.task.id, again.number) == (lease.task.id, 2)
    assert not worlds.play.do(AskWatermarks)


def test_when_all_are_lost_parameters_and_ledger_go_back_together(worlds):
    worlds.begin()
    for _ in range(2):
        worlds.core.report(0, "s0", _done(worlds.lease(0)), worlds.play.now)
    assert worlds.core.ledger.num_done == 2
    worlds.core.parameters.schedule.written_for_recovery(3)
    worlds.lose(0)
    worlds.lose(1)
    worlds.register(2, 3)
    worlds.attend(2)
    assert isinstance(worlds.attend(3), Wait)
    assert worlds.attend(2) == BeginWith(WholeCheckpoint(3, is_private=True))
    assert isinstance(worlds.attend(2, version=3), Wait)
    (asked,) = worlds.play.do(AskWatermarks)
    assert (asked.index, asked.address) == (2, "store2")
    worlds.core.answered(Watermarks(2, "s2", Applied.of({0: 3}), Role.WORKER), worlds.play.now)
    assert worlds.core.ledger.num_done == 1
    seat = worlds.attend(3)
    assert (seat.world_id, seat.workers, seat.generation) == (2, (2, 3), 1)
    (recovery,) = worlds.core.parameters.recoveries
    assert (recovery.version, recovery.tasks, recovery.is_replayed) == (3, 1, True)


def test_a_worker_that_was_given_up_is_told_so(worlds):
    worlds.begin()
    worlds.lose(1)
    assert worlds.attend(1, version=0, told=1) == Finished()


def test_a_joiner_is_announced_with_the_heartbeats_of_the_others(worlds):
    worlds.begin()
    assert worlds.core.parameters.ended_world(worlds.kit.Role.WORKER, 0) == 0
    worlds.core.processes.set_num_workers(3, worlds.play.now)
    worlds.register(2)
    worlds.attend(2)
    assert worlds.core.parameters.ended_world(worlds.kit.Role.WORKER, 0) == 1


def test_another_master_goes_on_with_the_world(worlds):
    worlds.begin()
    worlds.facts += json.loads(json.dumps(worlds.core.journal.take()))
    core = worlds.kit.core(worlds.config, training=(("a", 120),))
    for fact in worlds.facts:
        core.journal.replay(fact)
    assert core.snapshot() == worlds.core.snapshot()
    restored = worlds.kit.core(worlds.config, training=(("a", 120),))
    restored.restore(json.loads(json.dumps(core.snapshot())))
    assert restored.snapshot() == core.snapshot()
    core.resume(1.0)
    assert core.parameters.is_complete


def test_losses_in_a_journal_of_an_earlier_version_are_known(worlds):
    recovery = Recovery(2, 3, 1, 3, 30, True, 4.0)
    for fact in (
        ["world lost", 1.0],
        ["world restores", 3, True],
        ["world restored", dataclasses.asdict(recovery)],
    ):
        worlds.core.journal.replay(fact)
    assert worlds.core.parameters.recoveries == (recovery,)
    assert JointGeneration.of(worlds.core.parameters.generation) == JointGeneration(1, 0)


def test_other_jobs_have_no_rendezvous(master_kit):
    play = master_kit.play(master_kit.config())
    play.register(0)
    with pytest.raises(ElasticdlError, match="AllreduceStrategy alone"):
        play.core.attend(0, "s", Attendance("ring"), 0.0)


def _done(lease):
    return TaskReport(lease.task.id, lease.number, Outcome.DONE, num_records=30)


def deterministic(kit, **settings):
    """A deterministic job; its kit has tasks of 30 records, in minibatches of 10."""
    worlds = Worlds(kit, num_workers=2, deterministic=True, global_batch_size=60, **settings)
    worlds.begin()
    return worlds


def test_members_hear_how_many_tasks_an_epoch_has(master_kit):
    assert deterministic(master_kit).attend(1).tasks_per_epoch == 4


def test_a_task_that_is_given_back_is_leased_next_in_a_deterministic_job(master_kit):
    worlds = deterministic(master_kit, shuffle_tasks=False)
    first, second = worlds.lease(0), worlds.lease(1)
    for lease, worker in ((second, 1), (first, 0)):
        report = TaskReport(lease.task.id, 1, Outcome.RETURNED)
        assert worlds.core.report(worker, f"s{worker}", report, worlds.play.now)
    assert [worlds.lease(0).task.id, worlds.lease(1).task.id] == [0, 1]


def test_a_task_that_fails_for_good_fails_a_deterministic_job_at_once(master_kit):
    worlds = deterministic(master_kit, max_task_retries=0)
    done, failed = worlds.lease(0), worlds.lease(1)
    worlds.core.report(0, "s0", TaskReport(done.task.id, 1, Outcome.DONE), worlds.play.now)
    report = TaskReport(failed.task.id, 1, Outcome.FAILED, message="boom in records 30 to 60")
    worlds.core.report(1, "s1", report, worlds.play.now)
    message = status.picture(worlds.core, worlds.play.now).message
    assert "--deterministic" in message
    assert "boom in records 30 to 60" in message


def test_the_last_worker_with_parameters_hands_over_and_its_successor_goes_on_there(worlds):
    worlds.begin()
    assert isinstance(worlds.lease(0), Lease)
    worlds.lose(1)
    worlds.attend(0, version=3, synced=1, told=1)
    assert not worlds.leave(2).is_awaited  # nobody
    assert worlds.leave(0) == Leaving(is_awaited=True, hands_over=True)
    worlds.register(2, 3)
    worlds.attend(2)
    worlds.attend(3)
    # It still hands over: nobody begins with what came before.
    assert isinstance(worlds.attend(2), Wait)
    worlds.core.parameters.handed_over(0, "s0", 3, worlds.play.now)
    worlds.lose(0)
    begins = worlds.attend(2)
    assert begins == BeginWith(HandOver(0, "s0", 3, worlds.play.now, is_of_worker=True))
    assert isinstance(worlds.attend(2, version=3), Wait)
    assert worlds.play.do(AskWatermarks)
    worlds.core.answered(Watermarks(2, "s2", Applied.of({}), Role.WORKER), worlds.play.now)
    (recovery,) = worlds.core.parameters.recoveries
    assert (recovery.version, recovery.tasks, recovery.is_handed_over) == (3, 0, True)


def test_a_worker_that_leaves_others_with_the_parameters_hands_nothing_over(worlds):
    worlds.begin()
    worlds.attend(1)
    worlds.lose(0)
    worlds.register(2)
    worlds.attend(1, version=1, synced=1, told=1)
    worlds.attend(2)
    seat = worlds.attend(1, version=1, synced=2, told=2)
    assert isinstance(seat, Seat)
    worlds.attend(1, version=2, synced=3, told=3)
    worlds.attend(2, version=2, synced=3, told=3)
    assert not worlds.leave(2).hands_over


def test_nothing_is_handed_over_where_nothing_is_kept(master_kit):
    worlds = Worlds(master_kit, num_workers=2, num_epochs=1, recovery_seconds=0.0)
    worlds.begin()
    worlds.lose(1)
    assert worlds.leave(0) == Leaving(is_awaited=True, hands_over=False)
