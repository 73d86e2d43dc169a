"""A ps replica is lost at each moment of a job, and comes back with less than it had."""

from pathlib import Path

import pytest

from elasticdl.job import (
    Finished,
    Lease,
    Outcome,
    Progress,
    PsRoute,
    Role,
    TaskAudit,
    TaskKind,
    Wait,
)
from elasticdl.launchers.base import ProcessHandle
from elasticdl.master.actions import (
    AskAudit,
    AskWatermarks,
    Note,
    StartProcess,
    StopProcess,
    WriteCheckpoint,
)
from elasticdl.master.parameters.answers import (
    Audited,
    AuditFailed,
    CheckpointFailed,
    CheckpointWritten,
    WatermarksFailed,
)
from elasticdl.master.phases import Phase
from elasticdl.master.status import picture

NUM_TASKS = 4


@pytest.fixture
def game(recovery_game):
    return recovery_game


def is_exact(status):
    return status.status == "finished" and [
        (line.trained_once, line.repeated, line.lost) for line in status.ledger
    ] == [(30 * NUM_TASKS, 0, 0)]


def test_exactly_what_a_replica_lacks_is_trained_again_before_all_else(game):
    job = game()
    job.ids(until=lambda task: task.id == 2)
    job.lose()
    job.back(minibatches=[3, 1])
    job.master_restarts()
    status = picture(job.core, 0.0)
    assert status.records_done == 30
    (recovery,) = status.recoveries
    assert (recovery.tasks, recovery.minibatches, recovery.records) == (2, 5, 50)
    first = job.play.lease()
    assert (first.task.id, first.number, first.generation) == (1, 2, 1)
    job.play.work_off(first)
    assert job.ids(until=lambda task: task.id == 3) == [2, 3]
    assert is_exact(job.finish())


def test_a_lease_from_before_a_loss_is_given_up_and_not_replaced_in_answer_to_its_request(game):
    job = game()
    void = job.core.lease(0, "s", 1, 0.0)
    job.lose()
    job.back(minibatches=[0])
    job.master_restarts()
    # The answer of before may still be the one that the worker hears.
    assert isinstance(job.core.lease(0, "s", 1, 0.0), Wait)
    assert not job.core.ledger.held_by(0)
    anew = job.core.lease(0, "s", 2, 0.0)
    assert (anew.task.id, anew.number) == (void.task.id, void.number + 1)


def test_nothing_is_leased_while_a_replica_is_missing(game):
    job = game()
    job.lose()
    assert isinstance(job.play.lease(), Wait)
    assert picture(job.core, 0.0).message == "1 of 2 ps replicas are being restored"
    session = job.comes_up()
    assert isinstance(job.play.lease(), Wait)
    assert job.core.parameters.route == PsRoute(0, ("host:0", ""))
    job.back(session=session)
    assert job.core.parameters.route == PsRoute(1, ("host:0", "host:11"))
    assert isinstance(job.play.lease(), Lease)


def test_lease_from_before_the_loss_cannot_end_as_done(game):
    job = game()
    early = job.play.lease()
    job.lose()
    job.back()
    job.master_restarts()
    job.play.work_off(early)
    assert picture(job.core, 0.0).records_done == 0
    again = job.play.lease()
    assert (again.task.id, again.number) == (early.task.id, 2)
    job.play.work_off(again)
    assert is_exact(job.finish())


def test_what_is_computed_again_is_counted(game):
    job = game()
    job.ids(until=lambda task: task.id == 0)  # three minibatches, which are lost with the replica
    early = job.play.lease()
    job.lose()
    job.back()
    job.play.report(early, outcome=Outcome.RETURNED, num_minibatches=2, end_index=3)
    replayed = job.play.lease()
    assert replayed.task.id == 0
    job.play.report(replayed, num_minibatches=3, end_index=3)
    again = job.play.lease()
    assert again.task.id == early.task.id
    job.play.report(again, num_minibatches=3, end_index=3)
    assert picture(job.core, 0.0).num_recomputed == 3 + 2


def test_what_another_worker_goes_on_with_is_not_computed_again(game):
    job = game()
    early = job.play.lease()
    job.play.report(early, outcome=Outcome.RETURNED, num_minibatches=2, end_index=3)
    job.play.report(job.play.lease(), num_minibatches=1, end_index=3)
    assert picture(job.core, 0.0).num_recomputed == 0


def test_lease_that_met_a_gap_costs_no_retry(game):
    job = game(max_task_retries=0)
    lease = job.play.lease()
    job.lose()
    job.back()
    assert job.play.report(lease, outcome=Outcome.RETURNED)
    assert is_exact(job.finish())


def test_two_replicas_lost_at_once_are_served_by_one_replay(game):
    job = game()
    job.ids(until=lambda task: task.id == 3)
    for index in (0, 1):
        job.lose(index)
    job.back(0, minibatches=[3, 0, 3])
    job.back(1, minibatches=[3, 3, 2])
    assert job.core.parameters.route.generation == 2
    assert [r.tasks for r in picture(job.core, 0.0).recoveries] == [2, 1]
    assert sorted(job.ids(until=lambda task: job.core.ledger.is_whole)) == [1, 2, 3]
    assert is_exact(job.finish())


def test_replica_lost_again_before_it_was_taken_in_is_not_taken_in(game):
    job = game()
    job.ids(until=lambda task: task.id == 1)
    job.lose()
    session = job.comes_up()
    job.lose()
    job.back(session=session)  # the answer that was under way
    assert job.core.parameters.route.generation == 0
    job.back(minibatches=[3])
    assert job.ids(until=lambda task: True) == [1]
    assert is_exact(job.finish())


def test_replica_lost_again_during_its_replay_gets_that_too(game):
    job = game()
    job.ids(until=lambda task: task.id == 3)
    job.lose()
    job.back(minibatches=[])
    held = job.play.lease()
    job.lose()
    job.back(minibatches=[1])
    job.master_restarts()
    job.play.work_off(held)  # of an earlier generation: comes back once more
    assert sorted(job.ids(until=lambda task: job.core.ledger.is_whole)) == [0, 1, 2, 3]
    assert is_exact(job.finish())


def test_master_that_comes_back_asks_a_replica_that_had_only_registered(game):
    job = game()
    job.ids(until=lambda task: task.id == 1)
    job.lose()
    session = job.comes_up()
    job.master_restarts()
    assert job.play.do(AskWatermarks) == [AskWatermarks(1, session, "host:11", Role.PS)]
    job.back(session=session, minibatches=[3])
    assert is_exact(job.finish())


def test_master_that_comes_back_starts_a_replica_that_was_to_be_started(game):
    job = game()
    job.lose()
    job.master_restarts()
    assert StartProcess(Role.PS, 1) in job.play.do(StartProcess)


def test_replica_that_cannot_be_asked_is_replaced(game):
    job = game()
    job.lose()
    session = job.comes_up()
    job.core.processes.started(ProcessHandle(Role.PS, 1, "stuck"), 0.0)
    job.play.do(StartProcess)
    job.core.answered(WatermarksFailed(1, session, "no answer"), 1.0)
    assert job.play.do(StopProcess) == [StopProcess(ProcessHandle(Role.PS, 1, "stuck"))]
    assert job.play.do(StartProcess) == [StartProcess(Role.PS, 1)]


def test_evaluation_waits_for_the_replay_and_is_made_once(game):
    job = game()
    job.until(Phase.EVALUATING)
    early = job.play.lease()
    assert early.task.kind is TaskKind.EVALUATION
    job.lose()
    job.back(minibatches=[3, 3, 3, 2])
    replay = job.play.lease()
    assert replay.task.id == 3
    assert isinstance(job.play.lease(), Wait)
    job.play.work_off(early)  # may have read what was not there yet: does not count
    job.play.work_off(replay)
    assert is_exact(job.finish())
    assert [result.metrics for result in job.core.evaluations.results] == [{"count": 30.0}]


def test_export_waits_for_the_replay_and_evaluation_is_not_repeated(game):
    job = game(output=Path("out"))
    job.until(Phase.EXPORTING)
    early = job.play.lease()
    job.lose()
    job.back()
    assert job.play.report(early, outcome=Outcome.RETURNED)
    job.master_restarts()
    kinds = [task.kind for task in job.play.run()]
    assert kinds == [TaskKind.TRAINING] * NUM_TASKS + [TaskKind.EXPORT]
    assert is_exact(job.finish())
    assert len(job.core.evaluations.results) == 1


def test_last_checkpoint_is_written_again_after_the_replay(game):
    job = game(checkpoint_dir=Path("c"))
    job.until(Phase.CHECKPOINTING)
    assert len(job.play.do(WriteCheckpoint)) == 1
    job.lose()
    job.core.answered(CheckpointFailed(12, "replica 1 is gone", was_unreachable=True), 0.0)
    assert job.play.do(WriteCheckpoint) == []
    job.back(minibatches=[3, 3, 3])
    assert job.play.do(WriteCheckpoint) == []
    assert job.ids() == [3]
    assert len(job.play.do(WriteCheckpoint)) == 1
    job.core.answered(CheckpointWritten(12), 0.0)
    assert is_exact(job.finish())


def test_last_checkpoint_that_a_successor_took_part_in_is_not_the_last(game):
    job = game(checkpoint_dir=Path("c"))
    job.until(Phase.CHECKPOINTING)
    assert len(job.play.do(WriteCheckpoint)) == 1
    job.lose()
    job.back(minibatches=[])
    job.core.answered(CheckpointWritten(12), 0.0)
    assert job.core.phase is Phase.CHECKPOINTING
    assert len(job.ids()) == NUM_TASKS
    assert len(job.play.do(WriteCheckpoint)) == 1


def test_proof_is_made_again_after_the_replay(game):
    job = game()
    job.until(Phase.AUDITING)
    assert len(job.play.do(AskAudit)) == 1
    assert isinstance(job.play.lease(), Wait)  # workers stay, in case of this:
    job.lose()
    job.back(minibatches=[3, 3, 3])
    job.play.audit(2)  # may be of before or of after: says nothing
    assert job.core.phase is Phase.AUDITING
    assert job.ids() == [3]
    assert len(job.play.do(AskAudit)) == 1
    job.play.audit(2)
    assert is_exact(picture(job.core, 0.0))
    assert isinstance(job.play.lease(), Finished)


def test_proof_from_before_a_loss_stands(game):
    job = game()
    job.until(Phase.AUDITING)
    job.lose()
    job.play.audit(2)
    assert is_exact(picture(job.core, 0.0))


def test_proof_that_cannot_be_had_fails_the_job_after_some_attempts(game):
    job = game()
    job.until(Phase.AUDITING)
    now = 0.0
    for pause_seconds in (1.0, 2.0, 4.0, 8.0, 0.0):  # in which a lost replica is noticed
        assert len(job.play.do(AskAudit)) == 1
        job.core.answered(AuditFailed("no route to host", was_unreachable=True), now)
        assert job.play.do(AskAudit) == []
        now += pause_seconds
        job.core.tick(now)
    assert job.core.message == "the ledger could not be proved: no route to host"


def test_latest_goes_on_without_replay_and_says_what_was_lost(game):
    job = game(ps_recovery="latest")
    job.ids(until=lambda task: task.id == 2)
    held = job.play.lease()
    job.lose()
    job.back(minibatches=[3, 1])
    job.master_restarts()
    job.play.work_off(held)
    assert job.ids(until=lambda task: True) == [3]  # begins again at the restored watermark
    job.play.run()
    whole = list(job.play.applied.values())
    rest = [TaskAudit(0, 3, 30), TaskAudit(1, 1, 10), TaskAudit(3, 3, 30)]
    assert len(job.play.do(AskAudit)) == 1
    job.core.answered(Audited([whole, rest]), 0.0)
    status = picture(job.core, 0.0)
    assert status.status == "finished"
    assert status.message == "50 records were lost to a ps replica with its memory"
    assert [(line.trained_once, line.lost) for line in status.ledger] == [(70, 50)]
    (recovery,) = status.recoveries
    assert (recovery.is_replayed, recovery.minibatches, recovery.records) == (False, 5, 50)


def test_task_of_which_feed_made_fewer_minibatches_is_not_replayed(game):
    job = game()
    lease = job.play.lease()
    assert job.play.report(lease, num_records=10, num_minibatches=1, end_index=1)
    job.lose()
    job.back(minibatches=[1])
    job.master_restarts()
    assert picture(job.core, 0.0).recoveries[0].tasks == 0
    job.lose()
    job.back(minibatches=[0])
    assert job.play.lease().task.id == 0


def test_checkpoint_of_the_users_waits_for_the_replay(game):
    job = game(checkpoint_dir=Path("c"), checkpoint_steps=6)
    job.ids(until=lambda task: task.id == 0)
    job.lose()
    job.back()
    replay = job.play.lease()
    job.core.heartbeat(Role.WORKER, 0, "s", Progress(model_version=9), 0.0)
    assert job.play.do(WriteCheckpoint) == []
    job.play.work_off(replay)
    assert job.play.do(WriteCheckpoint) == [WriteCheckpoint(9)]


def test_job_keeps_a_checkpoint_of_its_own(game):
    job = game(recovery_seconds=60)
    job.ids(until=lambda task: task.id == 0)
    job.core.members.heard_all(300.0)
    job.core.tick(1.0)
    job.core.tick(62.0)
    assert job.play.do(WriteCheckpoint) == [WriteCheckpoint(3, is_private=True)]
    job.core.answered(CheckpointWritten(3), 82.0)  # ten seconds of work: the next one is far off
    assert picture(job.core, 0.0).checkpoints == ()
    job.ids(until=lambda task: task.id == 1)
    job.core.tick(210.0)
    assert job.play.do(WriteCheckpoint) == []
    job.core.tick(283.0)
    assert job.play.do(WriteCheckpoint) == [WriteCheckpoint(6, is_private=True)]
    job.core.answered(CheckpointFailed(6, "disk full"), 284.0)
    assert not picture(job.core, 0.0).message
    job.lose()
    assert job.core.parameters.restore_point(1).version == 3


def test_what_happened_is_told(game):
    job = game()
    job.ids(until=lambda task: task.id == 1)
    job.play.do(Note)
    job.lose()
    job.play.now = 2.5
    job.back(minibatches=[3])
    texts = [note.text for note in job.play.do(Note)]
    assert texts[0] == "ps replica 1 was killed by signal 9"
    assert texts[-1] == "ps replica 1 is back after 2.5 s, empty; 1 tasks to replay"


def test_evaluation_job_goes_on_with_a_restored_replica(game):
    job = game(command="evaluate")
    job.lose()
    job.comes_up()
    assert job.play.do(AskWatermarks)
    assert not job.core.parameters.is_complete
    job.back(session="successor 1")
    assert job.core.parameters.route == PsRoute(1, ("host:0", "host:11"))
    job.play.run()
    assert picture(job.core, 0.0).status == "finished"


def test_replica_goes_back_to_an_older_checkpoint_if_the_newest_is_unsound(game):
    job = game(checkpoint_dir=Path("c"))
    for version in (4, 8):
        job.core.parameters.schedule.written(version)
    job.core.parameters.schedule.written_for_recovery(9)
    job.lose()
    job.play.do(Note)
    tried = [job.core.parameters.restore_point(1, tries, "torn") for tries in range(4)]
    assert [point and point.version for point in tried] == [9, 8, 4, None]
    notes = [note.text for note in job.play.do(Note) if note.is_warning]
    assert notes == [
        "ps replica 1 goes back to version 8: torn",
        "ps replica 1 goes back to version 4: torn",
        "ps replica 1 goes back to the start of the job: torn",
    ]
