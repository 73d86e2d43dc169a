"""What a job on a stream of months holds does not grow (master/parameters/retired.py)."""

import copy
import json

import numpy as np
import pytest

from elasticdl.job import (
    Lease,
    MeasuredWindow,
    Outcome,
    Role,
    Shard,
    TaskAudit,
    TaskKind,
    TaskReport,
)
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import AskAudit, AskWatermarks, WriteCheckpoint
from elasticdl.master.core import JobCore
from elasticdl.master.features.sources import RecordSource
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.parameters.answers import Audited, CheckpointWritten, Watermarks
from elasticdl.master.phases import Phase
from elasticdl.master.status import picture
from elasticdl.master.tasks import make_tasks

PARTITIONS, NUM_PS, MINIBATCHES = 4, 2, 10
HOLES = 10  # one of so many positions has no record


class Months:
    """Plays a broker, a worker and ps replicas, which keep what they are told of tasks."""

    def __init__(self, make_config, per_task):
        self.config = make_config(
            num_ps=NUM_PS,
            training_data="kafka://b/t",
            validation_data="",
            minibatch_size=per_task // MINIBATCHES,
            num_minibatches_per_task=MINIBATCHES,
            max_lateness="30s",
        )
        self.core = self.make_core()
        self.now, self.version, self.arrived, self.requests = 0.0, 0, 0, 0
        self.marks = [{} for _ in range(NUM_PS)]
        self.firsts = [0] * NUM_PS  # each replica has forgotten the tasks before
        self.saved = None
        self.facts = []
        self.core.begin(0.0)
        for index in range(NUM_PS):
            self.register(index, "s")
        self.core.register_worker(0, "s", 100, 0.0)

    def make_core(self):
        shards = [Shard(f"t-{number}", 0, 0) for number in range(PARTITIONS)]
        return JobCore(self.config, make_tasks(self.config, shards, [], []))

    def register(self, index, session):
        self.core.register_ps(index, session, 200, f"{session}:{index}", self.now)

    def stream(self):
        return [Shard(f"t-{n}", 0, self.arrived // PARTITIONS) for n in range(PARTITIONS)]

    def step(self, num_messages):
        """Let a second pass, and work off what arrives."""
        self.now += 1.0
        self.arrived += num_messages
        self.core.features.of(RecordSource).arrived(self.stream(), self.now)
        self.act()
        while isinstance(lease := self.lease(), Lease):
            self.work_off(lease)
            self.act()

    def lease(self):
        self.requests += 1
        return self.core.lease(0, "s", self.requests, self.now)

    def work_off(self, lease):
        task = lease.task
        values = {}
        if task.kind is TaskKind.TRAINING:
            missing = task.shard.num_records // HOLES
            records = task.shard.num_records - missing
            minibatches = -(-records // self.config.training.minibatch_size)
            for first, marks in zip(self.firsts, self.marks, strict=True):
                assert task.id >= first
                marks[task.id] = (minibatches, records)
            self.version += minibatches
            values = {"end_index": minibatches, "num_examples": records, "num_missing": missing}
            values |= {"num_records": records, "model_version": self.version}
            values |= {"num_late": records, "time": self.now}
            window = MeasuredWindow(
                int(self.now // 60), records, records, 0.5 * records, 10, {"auc": [np.zeros(200)]}
            )
            values["windows"] = (window,)
        report = TaskReport(task.id, lease.number, Outcome.DONE, **values)
        assert self.core.report(0, "s", report, self.now)

    def act(self):
        """Carry out what the job asks for; the journal is on the disk before."""
        self.facts += self.core.journal.take()
        for action in self.core.take_actions():
            match action:
                case AskAudit():
                    self.core.answered(Audited((), self.audit(action)), self.now)
                case WriteCheckpoint():
                    self.saved = copy.deepcopy((self.marks, self.firsts))
                    self.core.answered(CheckpointWritten(action.version), self.now)
                case AskWatermarks(index, session):
                    marks = self.marks[index]
                    has = Applied.of({task: mark[0] for task, mark in marks.items()})
                    self.core.answered(Watermarks(index, session, has), self.now)
                case _:
                    continue
            self.act()

    def audit(self, action):
        for index in range(NUM_PS):
            self.firsts[index] = max(self.firsts[index], action.first)
            kept = self.marks[index].items()
            self.marks[index] = {task: mark for task, mark in kept if task >= self.firsts[index]}
        return action.prove(
            [[TaskAudit(task, *mark) for task, mark in marks.items()] for marks in self.marks]
        )

    def lose(self, index, is_sound=True):
        """A replica is killed, and its successor restores the newest checkpoint, if it can."""
        self.core.process_exited(
            Exited(ProcessHandle(Role.PS, index, ""), ExitReason.KILLED, -9), 1
        )
        self.act()
        session = f"successor at {self.now}"
        if self.core.parameters.restore_point(index) is None or not is_sound:
            point = self.core.parameters.restore_point(index, 1, "damaged")
            assert point is None
            self.marks[index], self.firsts[index] = {}, 0
        else:
            marks, firsts = copy.deepcopy(self.saved)
            self.marks[index], self.firsts[index] = marks[index], firsts[index]
        self.register(index, session)
        self.act()

    def restart_master(self):
        """Another master goes on: by the last snapshot, as by all facts."""
        self.facts += self.core.journal.take()
        before = json.loads(json.dumps(self.core.snapshot()))
        by_facts, self.core = self.make_core(), self.make_core()
        for fact in json.loads(json.dumps(self.facts)):
            by_facts.journal.replay(fact)
        self.core.restore(before)
        assert json.loads(json.dumps(by_facts.snapshot())) == before
        assert json.loads(json.dumps(self.core.snapshot())) == before
        self.core.resume(self.now)

    def finish(self):
        self.core.features.of(RecordSource).drain(self.now)
        for _ in range(10):
            self.step(0)
        return picture(self.core, self.now)

    def sizes(self):
        """Return how much there is in the master, in what it writes down, and in a replica."""
        ledger = self.core.ledger
        return (
            len(self.core.tasks.training.records_of_all()),
            len(ledger.missing.by_task) + len(ledger.uneven.by_task),
            len(json.dumps(self.core.snapshot())),
            len(self.marks[0]),
        )


def test_a_hundred_million_messages_take_as_much_memory_as_ten_million(master_kit):
    months = Months(master_kit.config, per_task=12_800)
    sizes = []
    for second in range(1000):
        months.step(100_000)
        if not second % 10:
            sizes.append(months.sizes())
        if second in (433, 650, 651):
            months.lose(second % 2)
        if second == 700:
            months.restart_master()
    most, later = np.max(sizes[:10], axis=0), np.max(sizes[10:], axis=0)
    assert (later <= 4 * most).all(), (most, later)
    status = months.finish()
    assert months.core.phase is Phase.FINISHED, status.message
    (line,) = status.ledger
    assert line.records == line.trained_once == status.records_done
    assert line.records + months.core.ledger.missing.num_positions == 100_000_000
    assert sum(window.num_messages for window in status.windows) == line.records
    assert status.num_late == line.records
    assert (line.repeated, line.lost) == (0, 0)
    assert months.firsts[0] > 6_000


@pytest.fixture
def small(monkeypatch, master_kit):
    """A job that forgets a few tasks at a time."""
    monkeypatch.setattr("elasticdl.master.parameters.retired._AT_ONCE", 64)
    return Months(master_kit.config, per_task=100)


def test_what_a_replica_lacks_of_tasks_that_are_forgotten_is_in_the_proof(small):
    small.step(4_000)
    minibatches, records = small.marks[1][17]
    small.marks[1][17] = (minibatches - 1, records - 10)
    for _ in range(150):
        small.step(400)
    assert small.firsts[1] > 17
    status = small.finish()
    assert small.core.phase is Phase.FAILED
    assert "the replicas have not applied the same of 1 tasks" in status.message
    assert status.ledger[0].lost == 10


def test_a_replica_that_can_restore_nothing_fails_a_job_that_has_forgotten_tasks(small):
    for _ in range(150):
        small.step(400)
    small.lose(1, is_sound=False)
    assert small.core.phase is Phase.FAILED
    assert "none of the job's checkpoints can be restored" in picture(small.core, 1.0).message


@pytest.mark.parametrize("second", [30, 75, 130])
def test_a_replica_that_is_back_is_given_what_it_lacks_and_no_forgotten_task(small, second):
    for at in range(150):
        small.step(400)
        if at == second:
            small.lose(1)
        if at == 100:
            small.restart_master()
    status = small.finish()
    (line,) = status.ledger
    assert line.records == line.trained_once
    assert (line.repeated, line.lost, status.recoveries[0].is_replayed) == (0, 0, True)
