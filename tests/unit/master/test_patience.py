"""What was trained is never thrown away: the job waits for its disks, keeps it, and goes on."""

from pathlib import Path

import pytest

from elasticdl.errors import CheckpointError
from elasticdl.job import Lease, Outcome, Role, Shard, Strategy, TaskKind, Wait
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import AdoptProcess, Note, StartProcess, WriteCheckpoint
from elasticdl.master.durable import JobData, JobEnd, end_of_job, open_job, reopen
from elasticdl.master.features.outputs import WaitsForStorage
from elasticdl.master.in_process import InProcessMaster
from elasticdl.master.parameters.answers import CheckpointFailed, CheckpointWritten
from elasticdl.master.patience import PATIENCE_SECONDS
from elasticdl.master.phases import Phase
from elasticdl.master.status import picture
from elasticdl.state.memory import MemoryState
from tests.unit.master.store_access import StoreAccess

DATA = JobData(training=(Shard("a", 0, 60),), validation=(Shard("v", 0, 30),))
FULL = "out: No space left on device"


class Kit:
    """A job with a journal, and whoever plays its processes; a master may follow another."""

    def __init__(self, kit, num_workers=1, **settings):
        self._kit = kit
        given = {"num_ps": 1, "job_dir": Path("/job"), "output": Path("out"), **settings}
        self._config = kit.config(num_workers=num_workers, **given)
        self._num_workers = num_workers
        self.state = MemoryState()
        self.session = 0
        self._master()
        self.core.begin(0.0)
        self.processes()

    def _master(self):
        self._job, _ = open_job(self.state, self._config, lambda: DATA, lambda: 0.0)
        play = self._kit.Play(self._job.core)
        if hasattr(self, "play"):
            play.now, play.applied = self.play.now + 5.0, self.play.applied
            play.version, play._requests = self.play.version, self.play._requests
        self.play = play

    @property
    def core(self):
        return self.play.core

    def processes(self):
        """Those that are planned come up."""
        self.session += 1
        for action in self.play.do(StartProcess):
            play, session = self.play, f"s{self.session}"
            handle = ProcessHandle(action.role, action.index, f"{action.role}{action.index}")
            self.core.processes.started(handle, play.now)
            if action.role is Role.PS:
                self.core.parameters.restore_point(action.index)
                play.register_ps(action.index, session=session)
                self.watermarks(action.index, session)
            else:
                play.register(action.index, session=session)
                self.worker, self.of_worker = action.index, session

    def watermarks(self, index, session):
        from elasticdl.master.missing_tasks import Applied
        from elasticdl.master.parameters.answers import Watermarks

        has = Applied.of({task: audit.next_index for task, audit in self.play.applied.items()})
        self.core.answered(Watermarks(index, session, has), self.play.now)

    def lease(self):
        return self.play.lease(self.worker, session=self.of_worker)

    def fails(self, lease, message=FULL, may_pass=True):
        values = {"outcome": Outcome.FAILED, "message": message, "may_pass": may_pass}
        self.play.report(lease, self.worker, session=self.of_worker, **values)

    def until(self, kind, fails=()):
        """Work up to a task of a kind; tasks whose numbers are in `fails` fail on each try."""
        while True:
            lease = self.lease()
            assert isinstance(lease, Lease), (self.core.phase, lease)
            if lease.task.kind is kind:
                return lease
            if lease.task.id in fails:
                self.fails(lease, "boom", may_pass=False)
            else:
                self._done(lease)

    def _done(self, lease):
        was, self.play.report = self.play.report, self._report
        try:
            self.play.work_off(lease, self.worker)
        finally:
            self.play.report = was

    def _report(self, lease, worker_id, **values):
        return type(self.play).report(self.play, lease, worker_id, session=self.of_worker, **values)

    def finish(self, fails=()):
        """Work up to the end of the job, with all that the holder is asked for; return it."""
        while not self.core.has_ended:
            while isinstance(lease := self.lease(), Lease):
                if lease.task.id in fails:
                    self.fails(lease, "boom", may_pass=False)
                else:
                    self._done(lease)
            for action in self.play.do(WriteCheckpoint):
                self.core.answered(CheckpointWritten(action.version), self.play.now)
            if self.core.phase is Phase.AUDITING:
                self.play.audit()
        return picture(self.core, self.play.now)

    def written(self):
        """Have all facts written."""
        self.state.append(self.core.journal.take())

    def another_master(self, is_same_command=True):
        """All processes are gone, and another master takes up the job."""
        self.written()
        if is_same_command:
            reopen(self.state)
        self._master()
        self.core.resume(self.play.now)
        for action in self.play.do(AdoptProcess):
            exited = Exited(action.handle, ExitReason.UNKNOWN, None, "")
            self.core.process_exited(exited, self.play.now)
        self.processes()
        assert self._job.core.snapshot()  # what it came to can be written down

    def wait(self, seconds):
        self.play.now += seconds
        self.core.tick(self.play.now)
        for member in self.core.members:
            member.last_heard = self.play.now

    def told(self):
        return [note.text for note in self.play.do(Note)]


@pytest.fixture
def kit(master_kit):
    return lambda **settings: Kit(master_kit, **settings)


def test_export_that_meets_a_full_disk_is_tried_again_with_growing_pauses(kit):
    job = kit()
    pauses = []
    lease = job.until(TaskKind.EXPORT)
    for _ in range(4):
        job.fails(lease)
        assert picture(job.core, job.play.now).message.startswith(f"{FULL}; the export is tried")
        began = job.play.now
        while isinstance(lease := job.lease(), Wait):
            job.wait(0.5)
        pauses.append(job.play.now - began)
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert any("tried again in 8 s, for 10 minutes" in text for text in job.told())
    job._done(lease)
    status = job.finish()
    assert (status.status, status.message) == ("finished", "")


def fail_for_long(job, kind=TaskKind.EXPORT):
    job.fails(job.until(kind))
    began = job.play.now
    while job.core.phase is Phase.EXPORTING:
        lease = job.lease()
        job.fails(lease) if isinstance(lease, Lease) else job.wait(10.0)
    return job.play.now - began


def test_export_that_fails_for_long_leaves_a_checkpoint_and_the_same_command_exports(kit):
    job = kit()
    assert PATIENCE_SECONDS <= fail_for_long(job) < PATIENCE_SECONDS + 60
    assert job.play.do(WriteCheckpoint) == [WriteCheckpoint(6, is_private=True)]
    job.core.answered(CheckpointWritten(6), job.play.now)
    status = job.finish()
    assert status.status == "failed"
    assert FULL in status.message
    assert status.message.endswith("; the same command with --job_dir=/job goes on")
    job.another_master()
    export = job.until(TaskKind.EXPORT)  # nothing is trained again
    assert export.number > 4  # so what others have left half-written is replaced
    job._done(export)
    status = job.finish()
    assert (status.status, status.message) == ("finished", "")
    assert [(e.trained_once, e.repeated, e.lost) for e in status.ledger] == [(60, 0, 0)]


def test_code_of_the_user_that_cannot_export_is_not_waited_for(kit):
    job = kit(max_task_retries=3)
    for _ in range(4):
        job.fails(job.until(TaskKind.EXPORT), "boom", may_pass=False)
    assert job.play.do(WriteCheckpoint) == [WriteCheckpoint(6, is_private=True)]
    job.core.answered(CheckpointWritten(6), job.play.now)
    assert job.finish().status == "failed"
    job.another_master()
    assert job.finish().status == "finished"


def test_master_that_is_killed_while_it_waits_goes_on_waiting(kit):
    job = kit()
    job.fails(job.until(TaskKind.EXPORT))
    began = job.play.now
    job.another_master(is_same_command=False)
    assert job.core.phase is Phase.EXPORTING
    while isinstance(lease := job.lease(), Wait):
        job.wait(1.0)
    job.fails(lease)
    patience = job.core.features.of(WaitsForStorage).patience
    assert not patience.may_try(job.play.now + 1.5)  # the second pause, not the first
    assert job.play.now - began < 60
    job.wait(2.0)
    job._done(job.until(TaskKind.EXPORT))
    assert job.finish().status == "finished"


def test_job_with_a_poison_record_keeps_what_it_trained_and_tries_the_record_again(kit):
    job = kit(max_task_retries=1)
    status = job.finish(fails=[1])
    assert (status.status, status.ledger[0].lost) == ("failed", 30)
    assert job.core.parameters.schedule.newest.is_private
    assert "goes on" in status.message
    job.another_master()  # somebody has mended the file
    status = job.finish()
    assert (status.status, status.message) == ("finished", "")
    assert [(e.trained_once, e.repeated, e.lost) for e in status.ledger] == [(60, 0, 0)]


def test_poison_record_that_is_still_there_fails_the_job_alike(kit):
    job = kit(max_task_retries=1)
    job.finish(fails=[1])
    job.another_master()
    status = job.finish(fails=[1])
    assert (status.status, status.ledger[0].lost) == ("failed", 30)
    job.another_master()
    assert job.finish().status == "finished"


def test_evaluation_that_fails_does_not_cost_the_model(kit):
    job = kit(max_task_retries=0)
    job.fails(job.until(TaskKind.EVALUATION), "boom", may_pass=False)
    assert job.finish().status == "failed"
    job.another_master()
    status = job.finish()
    assert status.status == "finished"
    assert status.metrics == {"count": 30.0}


def test_job_that_lost_its_workers_for_good_goes_on_with_new_ones(kit):
    job = kit(max_relaunches=0, num_workers=2)
    job._done(job.lease())
    for index in (0, 1):
        exited = Exited(
            ProcessHandle(Role.WORKER, index, f"worker{index}"), ExitReason.FAILED, 76, "no license"
        )
        job.core.process_exited(exited, job.play.now)
    (checkpoint,) = job.play.do(WriteCheckpoint)
    job.core.answered(CheckpointWritten(checkpoint.version), job.play.now)
    status = picture(job.core, job.play.now)
    assert status.status == "failed"
    assert "no license" in status.message
    job.another_master()
    status = job.finish()
    assert status.status == "finished"
    assert [(e.trained_once, e.repeated, e.lost) for e in status.ledger] == [(60, 0, 0)]


def test_cancelled_job_does_not_go_on(kit):
    job = kit()
    job._done(job.lease())
    job.core.stop("enough", job.play.now)
    job.written()
    assert end_of_job(job.state) == JobEnd("failed", "stopped: enough")


def test_job_that_is_cancelled_while_it_waits_for_its_export_leaves_a_checkpoint(kit):
    job = kit()
    job.fails(job.until(TaskKind.EXPORT))
    job.core.stop("enough", job.play.now)
    assert job.play.do(WriteCheckpoint) == [WriteCheckpoint(6, is_private=True)]
    job.core.answered(CheckpointFailed(6, FULL), job.play.now)
    assert picture(job.core, job.play.now).message == "stopped: enough"  # it was tried, once


def test_last_checkpoint_is_waited_for_and_then_written_elsewhere(kit):
    job = kit(checkpoint_dir=Path("c"), output=None)
    while isinstance(lease := job.lease(), Lease):
        job._done(lease)
    pauses, asked = [], job.play.now
    while (written := job.play.do(WriteCheckpoint)) != [WriteCheckpoint(6, is_private=True)]:
        assert written in ([], [WriteCheckpoint(6)])
        if written:
            pauses.append(job.play.now - asked)
            asked = job.play.now
            job.core.answered(CheckpointFailed(6, FULL), job.play.now)
        else:
            job.wait(1.0)
    assert pauses[:5] == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert sum(pauses) >= PATIENCE_SECONDS
    job.core.answered(CheckpointWritten(6), job.play.now)
    status = job.finish()
    assert (status.status, status.ledger[0].trained_once) == ("failed", 60)
    assert FULL in status.message
    job.another_master()  # it has evaluated: what is left to do is this checkpoint
    status = job.finish()
    assert (status.status, status.message, status.checkpoints) == ("finished", "", (6,))


def test_last_checkpoint_whose_disk_has_room_again_is_as_good_as_any(kit):
    job = kit(checkpoint_dir=Path("c"), output=None)
    while isinstance(lease := job.lease(), Lease):
        job._done(lease)
    assert job.play.do(WriteCheckpoint) == [WriteCheckpoint(6)]
    job.core.answered(CheckpointFailed(6, FULL), job.play.now)
    job.wait(1.0)
    assert job.play.do(WriteCheckpoint) == [WriteCheckpoint(6)]
    job.core.answered(CheckpointWritten(6), job.play.now)
    status = job.finish()
    assert (status.status, status.message, status.checkpoints) == ("finished", "", (6,))


def test_predictions_wait_for_their_disk(master_kit):
    play = master_kit.play(master_kit.config("predict"), prediction=(("p", 30),))
    play.core.begin(0.0)
    play.register(0)
    for _ in range(20):  # as often as no task may fail
        while isinstance(lease := play.lease(), Wait):
            play.now += 1.0
        play.report(lease, outcome=Outcome.FAILED, message=FULL, may_pass=True)
    play.now += 60.0
    play.run()
    assert picture(play.core, play.now).status == "finished"


def test_local_job_keeps_what_it_trained_in_its_own_folder(master_kit, tmp_path):
    config = master_kit.config(
        distribution_strategy=Strategy.LOCAL, job_dir=tmp_path / "job", output=tmp_path / "out"
    )
    now = [0.0]
    applied = {}

    def checkpoint(directory):
        if not directory.is_relative_to(tmp_path / "job"):
            raise CheckpointError(FULL)
        return ['{"replica": 0}']

    master = InProcessMaster(config, DATA, StoreAccess(applied, checkpoint), clock=lambda: now[0])
    master.register_worker(0, 1)
    play = master_kit.Play(master._core)
    play.lease = lambda: master.lease(0)
    play.report = lambda lease, worker_id=0, **values: bool(
        master.report(0, _report(lease, values)) or True
    )
    lease = play.lease()
    while lease.task.kind is not TaskKind.EXPORT:
        play.work_off(lease)
        lease = play.lease()
    applied |= play.applied
    while not master.has_ended:
        if isinstance(lease, Lease):
            failure = {"outcome": Outcome.FAILED, "message": FULL, "may_pass": True}
            play.report(lease, **failure)
        now[0] += 10.0
        lease = play.lease()
    status = master.status()
    assert status.status == "failed"
    assert status.message.endswith(
        f"; what was trained is in {tmp_path}/job/recovery, where --checkpoint_dir_for_init begins"
    )
    assert len(list((tmp_path / "job" / "recovery").glob("version-*"))) == 1


def _report(lease, values):
    from elasticdl.job import TaskReport

    values.setdefault("outcome", Outcome.DONE)
    return TaskReport(lease.task.id, lease.number, **values)
