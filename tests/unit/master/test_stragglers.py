"""A job that need not wait for its slowest workers ends without them, and says what is missing."""

import pytest

from elasticdl.job import Finished, Lease, TaskAudit, Wait
from elasticdl.job.status import EpochLedger
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle, Role
from elasticdl.master.actions import StartProcess, StopProcess
from elasticdl.master.features.stragglers import Stragglers
from elasticdl.master.phases import Phase

NUM_TASKS, TASK_SECONDS = 8, 10.0


class TestStragglers:
    def of(self, rate, seconds=10.0):
        found = Stragglers(rate)
        found.leased(0, 0.0)
        found.ended(0, seconds, is_done=True)
        found.leased(1, 100.0)
        return found

    def test_the_last_tasks_are_left_after_twice_the_time_of_one(self):
        found = self.of(0.75)
        assert not found.may_be_left(4, 1, [1], 119.9)
        assert found.may_be_left(4, 1, [1], 120.0)

    def test_not_while_too_many_workers_hold_tasks(self):
        assert not self.of(0.75).may_be_left(4, 2, [1, 2], 1_000.0)
        assert not self.of(1.0).may_be_left(4, 1, [1], 1_000.0)

    def test_what_a_task_takes_is_learnt_of_those_that_are_done(self):
        found = Stragglers(0.5)
        found.leased(0, 0.0)
        found.ended(0, 50.0, is_done=False)
        assert not found.may_be_left(2, 1, [1], 1_000.0)
        slower = self.of(0.5, seconds=30.0)
        assert not slower.may_be_left(2, 1, [1], 159.9)
        assert slower.may_be_left(2, 1, [1], 160.0)

    def test_another_master_counts_anew(self):
        found = self.of(0.5)
        assert not found.may_be_left(2, 1, [7], 500.0)
        assert found.may_be_left(2, 1, [7], 520.0)


@pytest.fixture
def job(master_kit):
    config = master_kit.config(num_ps=1, num_workers=4, finish_rate=0.75, validation_data="")
    play = master_kit.play(config, training=(("a", 30 * NUM_TASKS),), validation=())
    play.core.begin(0.0)
    play.register_ps(0)
    play.register(0, 1, 2, 3)
    play.do(StartProcess)
    return play


def until_the_last(job):
    """Work until worker 3 holds the only task that is not done."""
    for _ in range(NUM_TASKS - 1):
        lease = job.lease(0)
        job.now += TASK_SECONDS
        job.work_off(lease)
    return job.lease(3)


def test_the_job_ends_when_the_straggler_has_ended_and_tells_what_is_left(job):
    held = until_the_last(job)
    for worker_id, handle in enumerate(["w0", "w1", "w2", "w3"]):
        job.core.processes.started(ProcessHandle(Role.WORKER, worker_id, handle), job.now)
    job.core.tick(job.now)
    assert job.do(StopProcess) == []
    job.now = 200.0
    job.core.tick(job.now)
    handle = ProcessHandle(Role.WORKER, 3, "w3")
    assert job.do(StopProcess) == [StopProcess(handle)]
    assert job.core.phase is Phase.TRAINING  # it may have a step to push
    assert not job.report(held, 3)
    job.applied[held.task.id] = TaskAudit(held.task.id, 1, 10)
    job.core.process_exited(Exited(handle, ExitReason.KILLED, -15), job.now)
    assert job.do(StartProcess) == []
    assert job.core.phase is Phase.AUDITING
    job.audit()
    assert job.core.phase is Phase.FINISHED
    assert job.core.history.ledger == (EpochLedger(0, 240, 220, 0, 20, 240),)
    assert "1 tasks were left to stragglers: " in job.core.history.message
    assert isinstance(job.lease(0), Finished)


def test_a_straggler_that_is_done_in_time_is_waited_for(job):
    held = until_the_last(job)
    assert isinstance(job.lease(1), Wait)
    job.work_off(held, 3)
    job.audit()
    assert job.core.history.ledger == (EpochLedger(0, 240, 240, 0, 0, 240),)


def test_a_task_that_nobody_holds_is_not_left(job):
    until_the_last(job)
    job.core.process_exited(
        Exited(ProcessHandle(Role.WORKER, 3, ""), ExitReason.KILLED, -9), job.now
    )
    job.now = 1_000.0
    lease = job.lease(1)
    assert isinstance(lease, Lease)
    job.work_off(lease, 1)
    job.audit()
    assert job.core.history.ledger[0].lost == 0


def test_another_master_knows_what_was_left(job, master_kit):
    until_the_last(job)
    job.now = 200.0
    job.core.tick(job.now)
    left = set(job.core.ledger.aside.left)
    other = master_kit.core(job.core.config, training=(("a", 30 * NUM_TASKS),), validation=())
    for fact in job.core.journal.take():
        other.journal.replay(fact)
    assert (other.ledger.aside.left, other.snapshot()) == (left, job.core.snapshot())
    assert left
    other.restore(job.core.snapshot())
    assert other.ledger.aside.left == left
