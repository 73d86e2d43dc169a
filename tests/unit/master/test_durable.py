"""A master that was killed goes on from its journal."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, ElasticdlError, JobFailedError, StateError
from elasticdl.job import Finished, Lease, Outcome, Role, Shard, Wait
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master import durable, tasks
from elasticdl.master.actions import (
    AdoptProcess,
    AskAudit,
    StartProcess,
    StopProcess,
    WriteCheckpoint,
)
from elasticdl.master.core import Phase
from elasticdl.master.durable import JobData, JobEnd, differing_flags, end_of_job, open_job
from elasticdl.master.features.outputs import WaitsForStorage
from elasticdl.master.parameters.answers import CheckpointWritten
from elasticdl.master.status import picture
from elasticdl.registry import packages
from elasticdl.state.memory import MemoryState

JOURNALS = json.loads((Path(__file__).parent / "journals/before_patience.json").read_text())
DATA = JobData(training=(Shard("a", 0, 90),), validation=(Shard("v", 0, 50),))


class Kit:
    """Runs a job over any number of masters; every event goes through the journal."""

    def __init__(self, master_kit, config, data=DATA):
        self.state = MemoryState()
        self._kit, self._config, self._data = master_kit, config, data
        self.clock = 1000.0
        self.job, self.is_new = self._open()
        self.play = master_kit.Play(self.job.core)

    def _open(self):
        return open_job(self.state, self._config, lambda: self._data, lambda: self.clock)

    def do(self, event):
        answer, actions = self.job.handle(event)
        self.play.actions += actions
        return answer

    def restart(self):
        before = self.job.core.snapshot()
        self.job, self.is_new = self._open()
        assert self.job.core.snapshot() == before
        self.play.core = self.job.core
        self.play.actions = []


def begun(master_kit, **settings):
    kit = Kit(master_kit, master_kit.config(**settings))
    core = kit.job.core
    kit.do(lambda: core.begin(0.0))
    for action in kit.play.do(StartProcess):
        handle = ProcessHandle(action.role, action.index, f"{action.role} {action.index}")
        kit.do(lambda handle=handle: core.processes.started(handle, 0.0))
    kit.do(lambda: kit.play.register_ps(*range(core.config.num_ps)))
    kit.do(lambda: kit.play.register(*range(settings.get("num_workers", 1))))
    return kit


def test_job_is_new_once(master_kit):
    kit = Kit(master_kit, master_kit.config())
    assert kit.is_new
    kit.restart()
    assert not kit.is_new


def test_leases_of_living_workers_stay_theirs(master_kit):
    kit = begun(master_kit, num_workers=2)
    first = kit.do(lambda: kit.play.lease(0))
    kit.restart()
    assert kit.do(lambda: kit.play.lease(1)).task != first.task
    assert kit.do(lambda: kit.play.report(first, 0, num_records=30))


def test_lease_whose_answer_was_lost_is_given_again(master_kit):
    kit = begun(master_kit)
    first = kit.do(lambda: kit.job.core.lease(0, "s", 5, 0.0))
    kit.restart()
    assert kit.do(lambda: kit.job.core.lease(0, "s", 5, 0.0)) == first


def test_every_moment_is_a_good_one_to_die(master_kit, tmp_path):
    kit = begun(
        master_kit,
        num_epochs=2,
        evaluation_steps=4,
        checkpoint_dir=tmp_path,
        output=tmp_path / "out",
    )
    while not isinstance(lease := kit.do(kit.play.lease), Finished):
        kit.restart()
        assert isinstance(lease, Lease)
        kit.do(lambda lease=lease: kit.play.work_off(lease))
        kit.restart()
        kit.do(lambda: kit.job.core.resume(1.0))
    kit.do(lambda: kit.job.core.resume(1.0))
    assert kit.play.do(WriteCheckpoint) != []
    kit.do(lambda: kit.job.core.answered(CheckpointWritten(18), 1.0))
    kit.restart()
    kit.do(lambda: kit.job.core.resume(1.0))
    assert len(kit.play.do(AskAudit)) == 1
    kit.do(kit.play.audit)
    kit.restart()
    status = picture(kit.job.core, 9.0)
    assert (status.status, status.seconds) == ("finished", 0.0)
    assert [line.trained_once for line in status.ledger] == [90, 90]
    assert [r.metrics for r in kit.job.core.evaluations.results] == [{"count": 50.0}] * len(
        kit.job.core.evaluations.results
    )


def test_snapshot_stands_for_the_facts_before_it(master_kit, monkeypatch):
    monkeypatch.setattr(durable, "_FACTS_PER_SNAPSHOT", 5)
    kit = begun(master_kit, num_epochs=3, num_ps=1)
    for _ in range(5):
        lease = kit.do(kit.play.lease)
        kit.do(lambda lease=lease: kit.play.work_off(lease))
    kit.do(lambda: kit.job.listen_at(4711))
    snapshot, facts = kit.state.load()
    assert snapshot is not None
    assert len(facts) < 5
    kit.restart()
    assert kit.job.port == 4711
    assert kit.job.core.phase is Phase.TRAINING


def test_processes_are_adopted_and_the_unstarted_are_started(master_kit):
    kit = begun(master_kit, num_workers=2, num_ps=1)
    kit.do(lambda: kit.job.core.processes.set_num_workers(3, 0.0))  # and dies before it starts one
    kit.restart()
    kit.do(lambda: kit.job.core.resume(5.0))
    assert kit.play.do(AdoptProcess) == [
        AdoptProcess(ProcessHandle(Role.PS, 0, "ps 0")),
        AdoptProcess(ProcessHandle(Role.WORKER, 0, "worker 0")),
        AdoptProcess(ProcessHandle(Role.WORKER, 1, "worker 1")),
    ]
    assert kit.play.do(StartProcess) == [StartProcess(Role.WORKER, 2)]


def test_what_an_earlier_master_gave_up_and_did_not_end_is_ended(master_kit):
    kit = begun(master_kit, num_workers=2, num_ps=1, heartbeat_timeout_seconds=30)
    lost = [kit.job.core.members.find(*whom) for whom in ((Role.PS, 0), (Role.WORKER, 1))]
    for member in lost:  # and dies before it ends them
        kit.do(lambda member=member: kit.job.core.processes.give_up(member, "silent", 60.0))
    kit.restart()
    kit.do(lambda: kit.job.core.resume(61.0))
    ended = [action.handle.ref for action in kit.play.do(StopProcess)]
    assert ended == ["ps 0", "worker 1"]
    adopted = [action.handle.ref for action in kit.play.do(AdoptProcess)]
    assert adopted == ["ps 0", "worker 0", "worker 1"]


def test_time_goes_on_where_the_master_before_has_left_it(master_kit):
    kit = begun(master_kit)
    kit.clock += 90.0
    kit.do(lambda: kit.job.core.tick(kit.job.now()))
    kit.clock += 0.5  # not noted
    last = kit.job.now()
    kit.clock = -1e6  # another machine's, after a night
    kit.restart()
    assert 90.5 == last <= kit.job.now() <= 91.0
    kit.clock += 10.0
    assert 100.5 <= kit.job.now() <= 101.0


def test_nobody_is_silent_because_the_master_was_away(master_kit):
    kit = begun(master_kit, heartbeat_timeout_seconds=30)
    kit.restart()
    kit.do(lambda: kit.job.core.resume(1000.0))
    kit.do(lambda: kit.job.core.tick(1029.0))
    assert kit.job.core.members.num_alive(Role.WORKER) == 1


def test_job_of_other_settings_is_refused(master_kit):
    kit = begun(master_kit)
    other = master_kit.config(num_epochs=7, minibatch_size=20)
    with pytest.raises(ConfigError) as error:
        open_job(kit.state, other, lambda: DATA, lambda: 0.0)
    assert "--minibatch_size was 10, is 20; --num_epochs was 1, is 7" in str(error.value)


def test_job_keeps_the_shards_it_began_with(master_kit):
    kit = begun(master_kit)
    kit._data = replace(DATA, training=(Shard("new", 0, 1000),))
    kit.restart()
    assert kit.job.core.tasks.training.shards == DATA.training


def test_job_without_records_is_refused_and_leaves_nothing(master_kit):
    state = MemoryState()
    with pytest.raises(JobFailedError, match="--training_data=train/: expected records, found"):
        open_job(state, master_kit.config(), lambda: JobData(), lambda: 0.0)
    assert state.load() == (None, [])


def test_validation_data_without_records_is_refused(master_kit):
    empty = replace(DATA, validation=(Shard("v", 0, 0),))
    with pytest.raises(JobFailedError, match="--validation_data=valid/: expected records, found"):
        empty.checked(master_kit.config())
    assert empty.checked(master_kit.config(validation_data="")) is empty


def test_journal_of_something_else_is_refused(master_kit):
    state = MemoryState()
    state.append([["hello"]])
    with pytest.raises(StateError, match="begins with 'hello'"):
        open_job(state, master_kit.config(), lambda: DATA, lambda: 0.0)


def test_config_survives_the_journal(master_kit):
    kit = begun(master_kit, output=Path("out"), learning_rate=0.1)
    kit.restart()
    assert not kit.is_new


def test_job_that_is_to_fail_after_its_last_checkpoint_still_does(master_kit, tmp_path):
    kit = begun(master_kit, checkpoint_dir=tmp_path)
    lease = kit.do(kit.play.lease)
    kit.do(lambda: kit.play.report(lease, outcome=Outcome.FAILED, message="NaN", fatal=True))
    kit.restart()
    kit.do(lambda: kit.job.core.resume(1.0))
    assert isinstance(kit.do(kit.play.lease), Wait)
    assert kit.play.do(WriteCheckpoint) == [WriteCheckpoint(0)]
    kit.do(lambda: kit.job.core.answered(CheckpointWritten(0), 1.0))
    status = picture(kit.job.core, 2.0)
    assert (status.status, status.message) == ("failed", "NaN")


def test_checkpoint_that_died_with_its_master_is_written_by_the_next(master_kit, tmp_path):
    kit = begun(master_kit, checkpoint_dir=tmp_path, checkpoint_steps=3)
    kit.do(lambda: kit.play.work_off(kit.play.lease()))
    assert kit.play.do(WriteCheckpoint) == [WriteCheckpoint(3)]
    kit.restart()
    kit.do(lambda: kit.job.core.resume(1.0))
    assert kit.play.do(WriteCheckpoint) == [WriteCheckpoint(3)]


def test_processes_that_fail_alike_fail_the_job_over_two_masters(master_kit):
    kit = begun(master_kit, num_workers=2)

    def fails(index):
        handle = ProcessHandle(Role.WORKER, index, f"worker {index}")
        exited = Exited(handle, ExitReason.FAILED, 1, "ModelError: no loss")
        kit.do(lambda: kit.job.core.process_exited(exited, 0.0))

    fails(0)
    kit.restart()
    kit.do(lambda: kit.job.core.resume(1.0))
    fails(1)
    assert picture(kit.job.core, 2.0).status == "failed"


def test_job_begun_again_after_all_its_processes_are_gone_spends_no_relaunches(master_kit):
    kit = begun(master_kit, num_workers=2, num_ps=2, max_relaunches=0)
    for _ in range(3):
        kit.restart()
        kit.do(lambda: kit.job.core.resume(1.0))
        for action in kit.play.do(AdoptProcess):
            gone = Exited(action.handle, ExitReason.UNKNOWN, None)
            kit.do(lambda gone=gone: kit.job.core.process_exited(gone, 1.0))
        started = kit.play.do(StartProcess)
        assert [a.role for a in started].count(Role.PS) == 2
        assert [a.role for a in started].count(Role.WORKER) == 2
        for action in started:
            handle = ProcessHandle(action.role, action.index, f"{action.role} {action.index}")
            kit.do(lambda handle=handle: kit.job.core.processes.started(handle, 1.0))


def test_workers_that_have_long_been_dead_are_forgotten(master_kit):
    kit = begun(master_kit, num_workers=1, max_relaunches=10_000, num_epochs=1_000)
    for number in range(130):
        lease = kit.do(lambda number=number: kit.play.lease(number))
        kit.do(lambda lease=lease, number=number: kit.play.report(lease, number, num_records=30))
        handle = ProcessHandle(Role.WORKER, number, f"worker {number}")
        exited = Exited(handle, ExitReason.KILLED, -9)
        kit.do(lambda exited=exited: kit.job.core.process_exited(exited, 0.0))
        kit.do(
            lambda n=number + 1: kit.job.core.processes.started(
                ProcessHandle(Role.WORKER, n, f"worker {n}"), 0.0
            )
        )
        kit.do(lambda number=number: kit.play.register(number + 1))
    kit.restart()
    core = kit.job.core
    assert [member.index for member in core.members] == list(range(30, 131))
    assert set(core.ledger.done_by_worker) == set(range(30, 130))
    assert core.ledger.num_done == 130
    assert core.lease(3, "long gone", 1, 0.0) == Finished()
    with pytest.raises(ElasticdlError, match="has not registered"):
        core.lease(131, "nobody", 1, 0.0)
    kit.do(lambda: core.register_worker(3, "by hand", 1, 0.0))
    assert core.members.find(Role.WORKER, 3).is_alive


def test_end_of_a_job_is_read_from_its_journal(master_kit, monkeypatch):
    kit = begun(master_kit)
    assert end_of_job(kit.state) is None
    kit.do(lambda: kit.job.core.stop("enough", 1.0))
    assert end_of_job(kit.state) == JobEnd("failed", "stopped: enough")
    monkeypatch.setattr(durable, "_FACTS_PER_SNAPSHOT", 1)
    kit.do(lambda: kit.job.core.journal.record("problem", "x"))
    assert kit.state.load()[1] == []
    assert end_of_job(kit.state) == JobEnd("failed", "stopped: enough")


@pytest.mark.skipif(
    not {"all_reduce", "kubernetes"} <= packages().keys(), reason="they are of jobs of packages"
)
@pytest.mark.parametrize("journal", JOURNALS.values(), ids=JOURNALS)
def test_journal_of_an_earlier_version_is_gone_on_with(master_kit, journal):
    """As that version wrote them, before there were waits, `--keep_best` and evaluations by epoch.

    `evaluation_steps` is in the settings of these jobs, for its default is another one now.
    """
    state = MemoryState()
    if journal["snapshot"] is not None:
        state.compact(journal["snapshot"])
    state.append(journal["facts"])
    created = (journal["snapshot"] or {"created": journal["facts"][0]})["created"]
    assert end_of_job(state) is None
    job, is_new = open_job(state, JobConfig.model_validate(created[1]), lambda: DATA)
    job.core.resume(1.0)
    snapshot = job.core.snapshot()
    again = master_kit.core(job.core.config, training=(("a", 90),), validation=(("v", 50),))
    again.restore(json.loads(json.dumps(snapshot)))
    assert not is_new
    assert again.snapshot() == snapshot
    assert not job.core.features.of(WaitsForStorage).patience.is_waiting
    assert job.core.parameters.schedule.best is None


def test_tasks_that_have_grown_stay_so_whatever_a_later_version_decides(master_kit, monkeypatch):
    settings = {"minibatch_size": 10, "num_minibatches_per_task": 20, "num_ps": 1}
    data = replace(DATA, training=(Shard("a", 0, 2 * 200 * 20_000),))
    kit = Kit(master_kit, master_kit.config(**settings), data)
    monkeypatch.setattr(tasks, "_TASKS_OF_AN_EPOCH", 10)
    kit.restart()
    table = kit.job.core.tasks
    assert (len(table.training), table.training.piece(1)) == (20_000, Shard("a", 400, 800))
    assert [kit.job.core.ledger.place_of(number) for number in (0, 1)] == [0, 2]
    assert table.validation.piece(0) == Shard("v", 0, 50)


def test_a_model_may_be_another_one_if_that_is_said(master_kit):
    before = master_kit.config(model_def="a.forward").shown()
    now = master_kit.config(model_def="b.forward", minibatch_size=2).shown()
    (other,) = differing_flags(before, now, may_model_change=True)
    assert other == "--minibatch_size was 10, is 2"
    assert len(differing_flags(before, now)) == 2


@pytest.mark.parametrize("settings", [{}, {"job_dir": Path("job")}])
def test_a_job_that_cannot_go_on_has_no_other_model(master_kit, settings):
    num_ps = 0 if settings else 1  # a folder, but no journal; ps replicas, but no folder
    with pytest.raises(ValueError, match=r"--model_changes=true goes on with a job .* --job_dir"):
        master_kit.config(num_ps=num_ps, model_changes=True, **settings)
