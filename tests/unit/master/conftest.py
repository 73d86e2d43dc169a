"""Configurations and a worker played by the test, for the master's tests."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.config import JobConfig
from elasticdl.job import (
    Finished,
    Lease,
    Outcome,
    Role,
    Shard,
    Strategy,
    TaskAudit,
    TaskKind,
    TaskReport,
    Wait,
)
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import AskAudit, WriteCheckpoint
from elasticdl.master.core import JobCore
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.parameters.answers import Audited, CheckpointWritten, Watermarks
from elasticdl.master.status import picture
from elasticdl.master.tasks import make_tasks
from elasticdl.rpc.client import GrpcMasterClient
from tests.unit.master.running_master import TOKEN, Running

MINIBATCH, MINIBATCHES = 10, 3
NUM_TASKS_TO_LOSE = 4  # of `Game`


def make_config(command="train", num_ps=0, **settings):
    """A job of minibatches of 10 records, 3 in a task; settings find their section."""
    given = {
        "model_def": "zoo.model.forward",
        "training_data": "train/",
        "validation_data": "valid/",
        "prediction_data": "predict/",
        "minibatch_size": MINIBATCH,
        "num_minibatches_per_task": MINIBATCHES,
        "shuffle_tasks": False,
        "distribution_strategy": Strategy.PARAMETER_SERVER if num_ps else Strategy.LOCAL,
        "num_ps_pods": num_ps or 1,
        **settings,
    }
    if command != "train":
        given.setdefault("checkpoint_dir_for_init", Path("init"))
    return JobConfig(command=command, model=given)  # each setting finds its section


def make_core(config, training=(("a", 60),), validation=(("v", 30),), prediction=(("p", 30),)):
    """A core on shards given as (name, number of records)."""

    def shards(pairs):
        return [Shard(name, 0, num_records) for name, num_records in pairs]

    return JobCore(
        config, make_tasks(config, shards(training), shards(validation), shards(prediction))
    )


class Play:
    """Plays the workers, the ps replicas, the launcher and the clock around a core."""

    def __init__(self, core):
        self.core = core
        self.now = 0.0
        self.applied = {}  # training task -> records, as a replica has it
        self.version = 0
        self.actions = []
        self._requests = 0

    def register(self, *worker_ids, session="s"):
        for worker_id in worker_ids:
            self.core.register_worker(worker_id, session, 100 + worker_id, self.now)

    def register_ps(self, *indexes, session="s"):
        for index in indexes:
            self.core.register_ps(index, session, 200 + index, f"host:{index}", self.now)

    def lease(self, worker_id=0, session="s"):
        self._requests += 1
        has_word = self.core.leasing.has_word_for(worker_id, session, self.now)
        answer = self.core.lease(worker_id, session, self._requests, self.now)
        assert has_word == (not isinstance(answer, Wait))
        return answer

    def report(self, lease, worker_id=0, session="s", **values):
        values.setdefault("outcome", Outcome.DONE)
        report = TaskReport(lease.task.id, lease.number, **values)
        return self.core.report(worker_id, session, report, self.now)

    def work_off(self, lease, worker_id=0):
        """Do what a lease asks for, and report it as done."""
        task = lease.task
        num_records = task.shard.num_records
        values = {}
        if task.kind is TaskKind.TRAINING:
            num_minibatches = -(-num_records // MINIBATCH)
            self.version += num_minibatches
            self.applied[task.id] = TaskAudit(task.id, num_minibatches, num_records)
            values = {
                "num_records": num_records,
                "num_minibatches": num_minibatches,
                "loss_sum": 0.5 * num_records,
                "model_version": self.version,
            }
        elif task.kind is TaskKind.EVALUATION:
            states = {"count": [np.array([num_records, 1.0])]}
            values = {"num_records": num_records, "metric_states": states}
        elif task.kind is TaskKind.METRICS:
            values = {"metrics": {"count": float(lease.metric_states["count"][0][0])}}
        assert self.report(lease, worker_id, **values)
        return task

    def run(self, worker_id=0, until=lambda task: False):
        """Work off what is leased until the job lets go or has nothing to give."""
        done = []
        while isinstance(lease := self.lease(worker_id), Lease):
            done.append(self.work_off(lease, worker_id))
            if until(done[-1]):
                break
        assert isinstance(lease, Lease | Wait | Finished)
        return done

    def do(self, kind):
        """Take the actions of one kind; others stay for later."""
        self.actions += self.core.take_actions()
        found = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def audit(self, num_replicas=1):
        self.core.answered(Audited([list(self.applied.values())] * num_replicas), self.now)


class Game:
    """A job of four training tasks on two ps replicas, with a worker, as `Play` plays it."""

    def __init__(self, kit, **settings):
        self._kit = kit
        self._config = kit.config(num_ps=2, **settings)
        self.play = kit.Play(self.make_core())
        self.facts = []
        self.play.core.begin(0.0)
        self.play.register_ps(0, 1)
        self.play.register(0)
        self.processes = 0

    def make_core(self):
        return self._kit.core(self._config, training=(("a", 30 * NUM_TASKS_TO_LOSE),))

    @property
    def core(self):
        return self.play.core

    def lose(self, index=1):
        handle = ProcessHandle(Role.PS, index, "")
        self.core.process_exited(Exited(handle, ExitReason.KILLED, -9), self.play.now)

    def comes_up(self, index=1):
        """A successor registers; return its session."""
        self.processes += 1
        session = f"successor {self.processes}"
        self.core.parameters.restore_point(index)
        address = f"host:{10 + self.processes}"
        self.core.register_ps(index, session, 300, address, self.play.now)
        return session

    def back(self, index=1, minibatches=(), session=None):
        """A successor has registered and said how many minibatches it has of each task."""
        session = session or self.comes_up(index)
        has = Applied.of(dict(enumerate(minibatches)))
        self.core.answered(Watermarks(index, session, has), self.play.now)

    def master_restarts(self):
        self.facts += json.loads(json.dumps(self.core.journal.take()))
        before = self.core.snapshot()
        core = self.make_core()
        for fact in self.facts:
            core.journal.replay(fact)
        assert core.snapshot() == before
        restored = self.make_core()
        restored.restore(json.loads(json.dumps(before)))
        assert restored.snapshot() == before
        self.play.core = core
        self.play.actions = []
        core.resume(self.play.now)

    def ids(self, until=lambda task: False):
        return [task.id for task in self.play.run(until=until)]

    def until(self, phase):
        """Work until the job is in a phase; what it then waits for has not been answered."""
        while self.core.phase is not phase:
            lease = self.play.lease()
            assert isinstance(lease, Lease), self.core.phase
            self.play.work_off(lease)

    def finish(self):
        """Answer all questions; return the job's last picture."""
        for _ in range(100):  # else it hangs
            if self.core.has_ended:
                break
            self.play.run()
            for action in self.play.do(WriteCheckpoint):
                self.core.answered(CheckpointWritten(action.version), self.play.now)
            for _ in self.play.do(AskAudit):
                self.play.audit(2)
        return picture(self.core, self.play.now)


@pytest.fixture
def recovery_game(master_kit):
    """Return what makes a job with ps replicas that can be lost, given its settings."""
    return lambda **settings: Game(master_kit, **settings)


@pytest.fixture
def master_kit():
    return SimpleNamespace(
        config=make_config,
        core=make_core,
        Play=Play,
        play=lambda config, **shards: Play(make_core(config, **shards)),
        Role=Role,
    )


@pytest.fixture
def run(tmp_path, master_kit):
    with contextlib.ExitStack() as stack:

        def start(state=None, replicas=None, **settings):
            running = Running(master_kit.config(**settings), tmp_path, state, replicas)

            def end():
                with contextlib.suppress(RuntimeError):  # its loop is closed already
                    running._loop.call_soon_threadsafe(running._run_task.cancel)
                running.join()

            stack.callback(end)
            return running

        yield start


@pytest.fixture
def connect():
    with contextlib.ExitStack() as stack:

        def make(running, kind=GrpcMasterClient):
            client = kind(running.address, TOKEN)
            stack.callback(client.close)
            return client

        yield make
