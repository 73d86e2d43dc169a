"""A job in one process, as `Local` runs it."""

import itertools
import threading

import pytest

from elasticdl.checkpoints.versions import versions
from elasticdl.errors import CheckpointError
from elasticdl.job import (
    Finished,
    Lease,
    Outcome,
    Progress,
    Role,
    Shard,
    TaskAudit,
    TaskKind,
    TaskReport,
)
from elasticdl.master.durable import JobData
from elasticdl.master.in_process import InProcessMaster
from elasticdl.observe.kinds import CheckpointWritten
from elasticdl.state.memory import MemoryState
from elasticdl.state.sqlite import SqliteState
from tests.unit.master.store_access import StoreAccess

DATA = JobData(training=(Shard("a", 0, 90),), validation=(Shard("v", 0, 30),))


class Killed(BaseException):
    """The process ends here."""


class Job:
    def __init__(self, config, state=None, clock=None, data=DATA, tell=None):
        self.applied = {}
        self.written = []
        self.problem = None
        self.version = 0
        self.master = InProcessMaster(
            config,
            data,
            StoreAccess(self.applied, self.checkpoint),
            state=state,
            tell=tell,
            **({} if clock is None else {"clock": clock}),
        )

    def checkpoint(self, directory):
        if self.problem:
            raise CheckpointError(self.problem)
        self.written.append(directory.name)
        return ['{"replica": 0}']

    def work_off(self, until=lambda lease: False):
        while not isinstance(lease := self.master.lease(0), Finished):
            assert isinstance(lease, Lease), self.master.status()
            if until(lease):
                return
            records = lease.task.shard.num_records
            values = {}
            if lease.task.kind is TaskKind.TRAINING:
                self.version += 3
                self.applied[lease.task.id] = TaskAudit(lease.task.id, 3, records)
                values = {
                    "num_records": records,
                    "model_version": self.version,
                    "num_minibatches": 3,
                }
            report = TaskReport(lease.task.id, lease.number, Outcome.DONE, **values)
            self.master.report(0, report)


def test_job_runs_to_its_end(master_kit, tmp_path):
    config = master_kit.config(
        checkpoint_dir=tmp_path, checkpoint_steps=3, keep_checkpoint_max=2, output=tmp_path / "o"
    )
    times = iter(range(1000))
    job = Job(config, clock=lambda: next(times))
    job.master.register_worker(0, 1)
    job.work_off()
    status = job.master.status()
    assert (status.status, status.message) == ("finished", "")
    assert [line.trained_once for line in status.ledger] == [90]
    assert status.checkpoints == (6, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "version-00000006",
        "version-00000009",
    ]
    assert job.written == [f"version-0000000{v}.partial" for v in (3, 6, 9)]


def test_full_disk_fails_the_job_at_its_end_only(master_kit, tmp_path):
    times = itertools.count(step=10)
    config = master_kit.config(checkpoint_dir=tmp_path, checkpoint_steps=3)
    job = Job(config, clock=lambda: next(times))
    job.problem = "rows: No space left on device"
    job.master.register_worker(0, 1)
    job.work_off()
    while not job.master.has_ended:  # it waits for the disk
        job.master.heartbeat(Role.WORKER, 0, Progress())
    status = job.master.status()
    assert status.status == "failed"
    assert status.message == "checkpoint of version 9: rows: No space left on device"
    assert [line.trained_once for line in status.ledger] == [90]


def test_cancelled_job_lets_its_worker_go(master_kit):
    job = Job(master_kit.config())
    job.master.register_worker(0, 1)
    assert isinstance(job.master.lease(0), Lease)
    job.master.stop("Ctrl-C")
    assert job.master.lease(0) == Finished()
    assert job.master.status().message == "stopped: Ctrl-C"


def test_second_process_takes_the_job_up(master_kit, tmp_path):
    config = master_kit.config()
    first = Job(config, SqliteState(tmp_path / "state"))
    first.master.register_worker(0, 1)
    first.work_off(until=lambda lease: lease.task.id == 1)
    first.master.close()
    second = Job(config, SqliteState(tmp_path / "state"))
    second.applied.update(first.applied)
    second.master.register_worker(0, 2)
    second.work_off()
    assert [line.trained_once for line in second.master.status().ledger] == [90]
    second.master.close()


def test_what_a_killed_process_has_not_deleted_is_deleted_later(master_kit, tmp_path):
    place = tmp_path / "checkpoints"
    config = master_kit.config(
        checkpoint_dir=place, checkpoint_steps=3, keep_checkpoint_max=2, num_epochs=2
    )

    def tell(note):
        if note.kind == CheckpointWritten(9):  # it is journalled, and nothing is deleted yet
            raise Killed

    first = Job(config, SqliteState(tmp_path / "state"), tell=tell)
    first.master.register_worker(0, 1)
    with pytest.raises(Killed):
        first.work_off()
    first.master.close()
    assert versions(place) == [3, 6, 9]

    second = Job(config, SqliteState(tmp_path / "state"))
    second.applied.update(first.applied)
    second.version = first.version
    second.master.register_worker(0, 2)
    second.work_off()

    assert second.master.status().checkpoints == (15, 18)
    assert versions(place) == [15, 18]
    second.master.close()


def test_threads_may_call_at_once(master_kit):
    job = Job(master_kit.config(), MemoryState(), data=JobData(training=(Shard("a", 0, 9000),)))
    job.master.register_worker(0, 1)
    done = threading.Event()

    def look():
        while not done.is_set():
            job.master.heartbeat(Role.WORKER, 0)
            assert job.master.status().records_total == 9000

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    job.work_off()
    done.set()
    for thread in threads:
        thread.join()
    assert job.master.status().status == "finished"
