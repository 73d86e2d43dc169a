"""The life of a job, as events and actions."""

from pathlib import Path

import pytest

from elasticdl.errors import ElasticdlError
from elasticdl.job import (
    Finished,
    Lease,
    Outcome,
    Progress,
    PsRoute,
    Role,
    TaskAudit,
    TaskKind,
    TaskReport,
    Wait,
)
from elasticdl.job.status import EpochLedger
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import (
    AskAudit,
    Note,
    StartProcess,
    StopProcess,
    WriteCheckpoint,
)
from elasticdl.master.core import Phase
from elasticdl.master.parameters.answers import AuditFailed, CheckpointWritten
from elasticdl.master.status import picture
from elasticdl.runtime.process import OWN_FAILURE_EXIT_CODE
from tests.unit.master.started_job import exits, fail, kinds, start

# --- phases ---------------------------------------------------------------------------------------


def test_job_plans_its_processes(master_kit):
    play = master_kit.play(master_kit.config(num_ps=2, num_workers=3))
    play.core.begin(0.0)
    assert play.do(StartProcess) == [
        StartProcess(Role.PS, 0),
        StartProcess(Role.PS, 1),
        StartProcess(Role.WORKER, 0),
        StartProcess(Role.WORKER, 1),
        StartProcess(Role.WORKER, 2),
    ]


def test_workers_wait_for_ps_replicas(master_kit):
    play = master_kit.play(master_kit.config(num_ps=2))
    play.register(0)
    assert isinstance(play.lease(), Wait)
    assert not play.core.parameters.is_complete
    assert picture(play.core, 0).message == "waiting for 2 of 2 ps replicas"
    play.register_ps(1, 0)
    assert play.core.parameters.route == PsRoute(0, ("host:0", "host:1"))
    assert isinstance(play.lease(), Lease)


def test_train_goes_through_all_phases(master_kit):
    play = start(master_kit, num_ps=1, checkpoint_dir=Path("c"), output=Path("out"))
    assert play.core.phase is Phase.TRAINING
    assert kinds(play.run()) == [
        TaskKind.TRAINING,
        TaskKind.TRAINING,
        TaskKind.EVALUATION,
        TaskKind.METRICS,
        TaskKind.EXPORT,
    ]
    assert play.core.phase is Phase.CHECKPOINTING
    assert play.do(WriteCheckpoint) == [WriteCheckpoint(6)]
    assert play.do(AskAudit) == []
    play.core.answered(CheckpointWritten(6), play.now)
    assert len(play.do(AskAudit)) == 1
    play.now = 30.0
    play.audit()
    status = picture(play.core, 99.0)
    assert (status.status, status.seconds, status.message) == ("finished", 30.0, "")
    assert status.ledger == (EpochLedger(0, 60, 60, 0, 0),)
    assert status.metrics == {"count": 30.0}
    assert (status.checkpoints, status.output) == ((6,), "out")


def test_job_without_validation_and_output_only_trains(master_kit):
    play = start(master_kit, shards={"validation": ()}, num_epochs=2)
    assert kinds(play.run()) == [TaskKind.TRAINING] * 4
    assert play.core.phase is Phase.AUDITING
    play.audit()
    assert play.core.phase is Phase.FINISHED
    assert len(picture(play.core, 0.0).ledger) == 2


def test_what_a_worker_can_read_nothing_of_is_told_and_when_it_reads_again(master_kit):
    play = start(master_kit)
    waits = Progress(waits_for="t-0: nothing came (no answer)")
    play.core.heartbeat(Role.WORKER, 0, "s", waits, play.now)
    assert picture(play.core, 0.0).message == "worker 0 is waiting: t-0: nothing came (no answer)"
    for progress in (waits, Progress(), Progress()):
        play.core.heartbeat(Role.WORKER, 0, "s", progress, play.now)
    assert picture(play.core, 0.0).message == ""
    notes = [note.text for note in play.do(Note) if note.kind.event == "stream"]
    assert notes == [f"worker 0 waits: {waits.waits_for}", "worker 0 reads again"]


def test_evaluate_only_evaluates(master_kit):
    play = start(master_kit, "evaluate", shards={"validation": (("v", 75),)})
    assert kinds(play.run()) == [TaskKind.EVALUATION] * 3 + [TaskKind.METRICS]
    status = picture(play.core, 0.0)
    assert (status.status, status.metrics) == ("finished", {"count": 75.0})
    assert (status.records_done, status.records_total, status.ledger) == (75, 75, ())


def test_predict_only_predicts(master_kit):
    play = start(master_kit, "predict", shards={"prediction": (("p", 75),)})
    assert kinds(play.run()) == [TaskKind.PREDICTION] * 3
    status = picture(play.core, 0.0)
    assert (status.status, status.records_done) == ("finished", 75)


def test_exported_model_needs_no_ps_replicas(master_kit):
    config = master_kit.config(
        "evaluate", num_ps=2, saved_model=Path("m"), checkpoint_dir_for_init=None
    )
    assert master_kit.core(config).config.num_ps == 0


def test_workers_are_let_go_when_their_work_is_done(master_kit):
    play = start(master_kit, num_workers=2, checkpoint_dir=Path("c"))
    play.run(0)
    assert isinstance(play.lease(0), Finished)
    assert isinstance(play.lease(1), Finished)


def test_training_waits_for_tasks_that_others_hold(master_kit):
    play = start(master_kit, num_workers=2)
    held = play.lease(1)
    play.run(0)
    assert play.core.phase is Phase.TRAINING
    assert isinstance(play.lease(0), Wait)
    play.work_off(held, 1)
    assert play.core.phase is Phase.EVALUATING


def test_cancelled_job_fails(master_kit):
    play = start(master_kit)
    play.core.stop("Ctrl-C", 5.0)
    status = picture(play.core, 9.0)
    assert (status.status, status.message) == ("failed", "stopped: Ctrl-C")
    assert isinstance(play.lease(), Finished)


# --- leases ---------------------------------------------------------------------------------------


def test_repeated_lease_call_gives_the_same_lease(master_kit):
    play = start(master_kit)
    first = play.core.lease(0, "s", 41, 0.0)
    again = play.core.lease(0, "s", 41, 0.0)
    other = play.core.lease(0, "s", 42, 0.0)
    assert first == again != other


def test_an_attempt_that_comes_late_is_leased_nothing(master_kit):
    """Its worker has an answer to that call, so nobody would know of the lease."""
    core = start(master_kit).core
    first = core.lease(0, "s", 1, 0.0)
    second = core.lease(0, "s", 2, 0.0)
    assert isinstance(core.lease(0, "s", 3, 0.0), Wait)
    for number, lease in enumerate((first, second), 1):
        assert core.report(0, "s", TaskReport(lease.task.id, 1, Outcome.RETURNED), 0.0)
        assert isinstance(core.lease(0, "s", number, 0.0), Wait)
    assert isinstance(core.lease(0, "s", 3, 0.0), Wait)
    assert isinstance(core.lease(0, "s", 4, 0.0), Lease)


def test_an_attempt_that_waits_is_leased_nothing_once_its_worker_has_another_answer(master_kit):
    core = start(master_kit).core
    leases = [core.lease(0, "s", number, 0.0) for number in (1, 2)]
    assert isinstance(core.lease(0, "s", 3, 0.0), Wait)

    def hand_back(lease):
        assert core.report(0, "s", TaskReport(lease.task.id, 1, Outcome.RETURNED), 0.0)

    assert core.leasing.awaits(0, "s", 3)
    hand_back(leases[0])
    assert isinstance(again := core.lease(0, "s", 3, 0.0, goes_on=True), Lease)
    assert core.lease(0, "s", 3, 0.0) == again  # that answer was lost
    assert isinstance(core.lease(0, "s", 4, 0.0), Wait)
    assert isinstance(core.lease(0, "s", 4, 0.0), Wait)  # another attempt, which is answered
    hand_back(leases[1])
    assert not core.leasing.awaits(0, "s", 4)
    assert isinstance(core.lease(0, "s", 4, 0.0, goes_on=True), Wait)
    assert isinstance(core.lease(0, "s", 5, 0.0), Lease)
    assert not core.leasing.awaits(0, "s", 4)


def test_worker_that_never_registered_is_refused(master_kit):
    play = start(master_kit)
    with pytest.raises(ElasticdlError, match="worker 5 asks for a task, but has not registered"):
        play.lease(5)


def test_report_of_an_old_lease_is_ignored(master_kit):
    play = start(master_kit, num_workers=2)
    old = play.lease(0)
    exits(play, 0)
    new = play.lease(1)
    assert (new.task, new.number) == (old.task, 2)
    assert not play.report(old, 0, num_records=30)
    assert picture(play.core, 0.0).records_done == 0


def test_silent_worker_is_lost_once_and_stopped(master_kit):
    play = start(master_kit, num_workers=2, heartbeat_timeout_seconds=30)
    held = play.lease(0)
    play.lease(1)
    play.now = 20.0
    play.core.heartbeat(Role.WORKER, 1, "s", None, play.now)
    for now in range(1, 33):
        play.core.tick(float(now))
    assert play.do(StopProcess) == [StopProcess(ProcessHandle(Role.WORKER, 0, "worker 0"))]
    assert play.do(StartProcess) == [StartProcess(Role.WORKER, 2)]
    assert play.lease(1).task == held.task
    assert isinstance(play.lease(0), Finished)  # should it wake up
    exits(play, 0)
    assert play.do(StartProcess) == []


def test_a_ps_replica_without_its_place_is_told_so(master_kit):
    play = start(master_kit, num_ps=1)

    def beat(session):
        return play.core.heartbeat(Role.PS, 0, session, None, play.now)

    beat("s")
    play.core.processes.give_up(play.core.members.find(Role.PS, 0), "silent", play.now)
    beat("s")  # its successor is planned, and restores: neither has said who it is
    play.register_ps(0, session="t")
    beat("t")
    with pytest.raises(ElasticdlError, match=r"lost its place to process 200 at host:0"):
        beat("s")


def test_nobody_is_lost_because_the_master_stood_still(master_kit):
    play = start(master_kit, num_workers=2, num_ps=1, heartbeat_timeout_seconds=30)
    for worker_id in (0, 1):
        play.lease(worker_id)
    play.core.tick(1.0)
    play.core.tick(1000.0)  # it was suspended
    assert play.do(StopProcess) == []
    (note,) = [note for note in play.do(Note) if note.kind.event == "late"]
    assert "stood still for 998.0 s" in note.text
    play.core.heartbeat(Role.WORKER, 1, "s", None, 1000.1)
    for now in range(1001, 1030):
        play.core.tick(float(now))
    assert [a.handle.ref for a in play.do(StopProcess)] == ["worker 0"]  # had time to answer


def test_new_process_at_an_old_index_takes_nothing_over(master_kit):
    play = start(master_kit)
    old = play.lease()
    play.register(0, session="t")
    new = play.lease(session="t")
    assert (new.task, new.number) == (old.task, 2)
    assert not play.report(old)
    assert isinstance(play.lease(session="s"), Finished)


# --- relaunch -------------------------------------------------------------------------------------


def test_lost_worker_is_replaced_by_one_with_a_new_index(master_kit):
    play = start(master_kit, num_workers=2)
    exits(play, 1)
    assert play.do(StartProcess) == [StartProcess(Role.WORKER, 2)]
    exits(play, 1)
    assert play.do(StartProcess) == []


def test_worker_is_not_replaced_when_its_work_is_done(master_kit):
    play = start(master_kit, num_workers=2, checkpoint_dir=Path("c"))
    play.run()
    exits(play, 0, reason=ExitReason.FINISHED, code=0)
    exits(play, 1, reason=ExitReason.KILLED, code=-9)
    assert play.do(StartProcess) == []


def test_workers_that_fail_alike_fail_the_job(master_kit):
    play = start(master_kit, num_workers=2)
    exits(play, 0, reason=ExitReason.FAILED, code=1, words="ModelError: no loss")
    assert play.core.phase is Phase.TRAINING
    exits(play, 1, reason=ExitReason.FAILED, code=1, words="ModelError: no loss")
    status = picture(play.core, 0.0)
    assert status.status == "failed"
    assert "worker 1 failed with exit code 1: ModelError: no loss" in status.message


def test_lost_ps_replica_is_started_again_at_its_place(master_kit):
    play = start(master_kit, num_ps=2)
    exits(play, 1, Role.PS)
    assert play.do(StartProcess) == [StartProcess(Role.PS, 1)]
    assert play.core.parameters.route == PsRoute(0, ("host:0", ""))


def test_crashing_ps_replica_fails_the_job_after_some_relaunches(master_kit):
    play = start(master_kit, num_ps=1, max_relaunches=1)
    exits(play, 0, Role.PS, code=-11)
    exits(play, 0, Role.PS, code=-11)
    assert picture(play.core, 0.0).message == (
        "ps replica 0 crashed (SIGSEGV) (--max_relaunches=1 are spent)"
    )


def test_ps_replica_that_never_got_ready_is_started_again_at_its_place(master_kit):
    play = master_kit.play(master_kit.config(num_ps=2))
    play.core.begin(0.0)
    play.core.processes.started(ProcessHandle(Role.PS, 1, "first"), 0.0)
    play.do(StartProcess)
    torn = (ExitReason.FAILED, 1, "CheckpointError: torn")
    first = Exited(ProcessHandle(Role.PS, 1, "first"), *torn)
    play.core.process_exited(first, 0.0)
    assert play.do(StartProcess) == [StartProcess(Role.PS, 1)]
    play.core.processes.started(ProcessHandle(Role.PS, 1, "second"), 0.0)
    play.core.process_exited(first, 0.0)  # told once more: nothing
    assert play.core.phase is Phase.PENDING
    second = Exited(ProcessHandle(Role.PS, 1, "second"), *torn)
    play.core.process_exited(second, 0.0)
    assert picture(play.core, 0.0).message == (
        "ps replica 1 failed with exit code 1: CheckpointError: torn "
        "(another one had failed alike, and no task is done)"
    )


def test_second_process_at_a_ps_replicas_place_is_refused(master_kit):
    play = start(master_kit, num_ps=1)
    play.register_ps(0)  # the same again: an answer was lost
    with pytest.raises(ElasticdlError, match="ps replica 0 is already process 200 at host:0"):
        play.register_ps(0, session="t")
    with pytest.raises(ElasticdlError, match="1 ps replicas, none is number 1"):
        play.register_ps(1)


# --- number of workers ----------------------------------------------------------------------------


def test_workers_are_added(master_kit):
    play = start(master_kit, num_workers=2)
    play.core.processes.set_num_workers(4, 0.0)
    assert play.do(StartProcess) == [StartProcess(Role.WORKER, 2), StartProcess(Role.WORKER, 3)]


def test_workers_are_taken_away_when_they_have_done_what_they_hold(master_kit):
    play = start(master_kit, num_workers=3)
    held = play.lease(2)
    play.core.processes.set_num_workers(2, 0.0)
    assert isinstance(play.lease(2), Finished)
    play.work_off(held, 2)
    exits(play, 2, reason=ExitReason.FINISHED, code=0)
    assert play.do(StartProcess) == []
    play.core.processes.set_num_workers(3, 0.0)
    assert play.do(StartProcess) == [StartProcess(Role.WORKER, 3)]


def test_a_worker_that_is_taken_away_while_it_starts_is_given_nothing(master_kit):
    play = start(master_kit, num_workers=1)
    play.core.processes.set_num_workers(2, 0.0)
    assert play.do(StartProcess) == [StartProcess(Role.WORKER, 1)]
    play.core.processes.set_num_workers(1, 0.0)
    play.register(1)
    assert isinstance(play.lease(1), Finished)
    exits(play, 1, reason=ExitReason.FINISHED, code=0)
    assert play.do(StartProcess) == []


def test_a_worker_that_has_not_spoken_yet_is_ended_when_it_is_taken_away(master_kit):
    play = start(master_kit, num_workers=1)
    play.core.processes.set_num_workers(2, 0.0)
    handle = ProcessHandle(Role.WORKER, 1, "worker 1")
    play.core.processes.started(handle, 0.0)
    play.core.processes.set_num_workers(1, 0.0)
    assert play.do(StopProcess) == [StopProcess(handle)]
    exits(play, 1, code=-15)
    assert [member.index for member in play.core.members.present(Role.WORKER)] == [0]
    assert play.core.history.failures == 0


def test_job_needs_a_worker(master_kit):
    play = start(master_kit)
    with pytest.raises(ElasticdlError, match="at least one worker, found 0"):
        play.core.processes.set_num_workers(0, 0.0)


def test_a_number_of_workers_that_nobody_has_is_a_slip_of_the_finger(master_kit):
    play = start(master_kit)
    with pytest.raises(ElasticdlError, match="expected 10,000 workers at most, found 20,000"):
        play.core.processes.set_num_workers(20_000, 0.0)


# --- failing tasks --------------------------------------------------------------------------------


def test_tries_that_fail_alike_are_told_once(master_kit):
    play = start(master_kit, max_task_retries=3)
    play.work_off(play.lease())
    task = fail(play, 4)
    texts = [note.text for note in play.do(Note) if note.kind.event == "task failed"]
    assert texts == ["boom in records 30 to 60"]
    assert task.id in play.core.ledger.aside.quarantined


def test_failing_task_fails_the_job_at_its_end(master_kit):
    play = start(master_kit, max_task_retries=1, checkpoint_dir=Path("c"), output=Path("out"))
    play.work_off(play.lease())
    fail(play, 2)
    play.run()
    assert [a.version for a in play.do(WriteCheckpoint)] == [3]  # what was trained is kept
    play.core.answered(CheckpointWritten(3), 0.0)
    play.audit()
    status = picture(play.core, 0.0)
    assert status.status == "failed"
    assert "1 tasks failed 2 times each and were set aside: boom in records 30" in status.message
    assert status.ledger == (EpochLedger(0, 60, 30, 0, 30),)
    assert status.output == ""


def test_job_in_which_nothing_works_fails_at_once(master_kit):
    play = start(master_kit, max_task_retries=1, num_epochs=100)
    fail(play, 2)
    assert picture(play.core, 0.0).message == (
        "no task succeeded, and one failed 2 times: boom in records 30 to 60"
    )


def test_fatal_report_fails_the_job_at_once(master_kit):
    play = start(master_kit)
    fail(play, 1, "loss is NaN in minibatch 3", fatal=True)
    assert picture(play.core, 0.0).message == "loss is NaN in minibatch 3"


def test_fatal_report_keeps_what_was_trained_in_a_last_checkpoint(master_kit):
    play = start(master_kit, num_workers=2, checkpoint_dir=Path("c"))
    fail(play, 1, "table 'user' cannot take 5 new rows", fatal=True)
    assert play.do(WriteCheckpoint) == [WriteCheckpoint(0)]
    assert isinstance(play.lease(1), Wait)
    assert not play.core.has_ended
    play.core.answered(CheckpointWritten(0), play.now)
    status = picture(play.core, 0.0)
    assert (status.status, status.message) == ("failed", "table 'user' cannot take 5 new rows")


@pytest.mark.parametrize("kind", [TaskKind.EVALUATION, TaskKind.EXPORT])
def test_export_that_kills_its_workers_does_not_cost_the_last_checkpoint(master_kit, kind):
    play = start(master_kit, checkpoint_dir=Path("c"), output=Path("out"), max_relaunches=0)
    while (lease := play.lease()).task.kind is not kind:
        play.work_off(lease)
    exits(play, 0, reason=ExitReason.FAILED, code=OWN_FAILURE_EXIT_CODE, words="no license")
    assert play.do(WriteCheckpoint) == [WriteCheckpoint(6)]
    play.core.answered(CheckpointWritten(6), play.now)
    status = picture(play.core, 0.0)
    assert status.status == "failed"
    assert "no license" in status.message
    assert status.checkpoints == (6,)


# --- audit ----------------------------------------------------------------------------------------


def test_records_trained_twice_fail_the_job(master_kit):
    play = start(master_kit)
    play.run()
    play.applied[0] = TaskAudit(0, 3, 40)
    play.audit()
    status = picture(play.core, 0.0)
    assert (status.status, status.message) == (
        "failed",
        "ledger: 10 records were trained more than once",
    )
    assert status.ledger == (EpochLedger(0, 60, 50, 10, 0),)


def test_replicas_that_cannot_be_asked_fail_the_job(master_kit):
    play = start(master_kit)
    play.run()
    play.core.answered(AuditFailed("replica 0 is gone"), 0.0)
    assert play.core.message == "the ledger could not be proved: replica 0 is gone"


def test_skipped_minibatches_are_named(master_kit):
    play = start(master_kit)
    lease = play.lease()
    play.report(lease, num_records=20, num_minibatches=2, skipped=(1,))
    play.run()
    play.applied[lease.task.id] = TaskAudit(lease.task.id, 3, 20)
    play.audit()
    status = picture(play.core, 0.0)
    assert (status.status, status.message) == ("finished", "")
    assert status.skipped == ("epoch 0, records 0 to 30 of a, minibatch 1",)
    assert status.ledger == (EpochLedger(0, 60, 50, 0, 10),)


# --- status ---------------------------------------------------------------------------------------


def test_progress_runs_ahead_of_reports_and_is_not_counted_twice(master_kit):
    play = start(master_kit)
    lease = play.lease()
    play.core.heartbeat(Role.WORKER, 0, "s", Progress(20, 10.0, 2, 2), 1.0)
    status = picture(play.core, 2.0)
    assert (status.records_done, status.records_total, status.loss) == (20, 60, 0.5)
    assert status.records_per_second == 10.0
    play.report(lease, num_records=30, loss_sum=30.0)
    status = picture(play.core, 2.0)
    assert (status.records_done, status.loss) == (30, 1.0)


def test_a_job_that_stands_still_has_no_speed(master_kit):
    play = start(master_kit)
    play.lease()
    for second in (1, 2, 3):
        play.core.heartbeat(Role.WORKER, 0, "s", Progress(second, 1.0, 1, 1), float(second))
    assert picture(play.core, 3.0).records_per_second == 1.0
    assert picture(play.core, 100.0).records_per_second == 0.0


def test_a_job_with_rare_reports_has_a_speed_between_them(master_kit):
    play = start(master_kit)
    play.lease()
    for n in (1, 2):
        play.core.heartbeat(Role.WORKER, 0, "s", Progress(10 * n, 1.0, n, n), 100.0 * n)
    assert picture(play.core, 290.0).records_per_second > 0.0


def test_lost_workers_progress_is_forgotten(master_kit):
    play = start(master_kit)
    play.lease()
    play.core.heartbeat(Role.WORKER, 0, "s", Progress(20, 10.0, 2, 2), 1.0)
    exits(play, 0)
    assert picture(play.core, 2.0).records_done == 0


def test_staleness_is_the_mean_over_updates(master_kit):
    play = start(master_kit)
    play.report(play.lease(), num_minibatches=3, staleness_sum=6, staleness_max=4)
    play.report(play.lease(), num_minibatches=1, staleness_sum=0, staleness_max=0)
    status = picture(play.core, 0.0)
    assert (status.mean_staleness, status.max_staleness) == (1.5, 4)


def test_an_evaluation_says_of_how_many_records_it_is(master_kit):
    play = start(
        master_kit, "evaluate", shards={"validation": (("v", 60),)}, evaluation_minibatches=4
    )
    play.run()
    status = picture(play.core, play.now)
    assert status.evaluated_records == status.records_total == 40
    assert status.metrics == {"count": 40.0}
