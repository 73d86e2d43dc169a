"""A worker, real ps replicas on sockets, and one of them that is lost and comes back elsewhere."""

import errno
import json
import os
import threading

import numpy as np
import pytest

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer
from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import ModelDescription
from elasticdl.backends.numpy import NumpyTrainer
from elasticdl.config import (
    CheckpointSection,
    DataSection,
    JobConfig,
    ModelSection,
    TrainingSection,
)
from elasticdl.data.base import Metadata, Records
from elasticdl.errors import UnavailableError
from elasticdl.job import Finished, Lease, Mode, Outcome, PsRoute, Shard, Task, TaskKind
from elasticdl.model_spec import ModelSpec
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.loop import Worker
from elasticdl.worker.records import sample_minibatch
from elasticdl.worker.route import Route, connect
from elasticdl.worker.stores import StoreExchange

TOKEN = b"k" * 32
NUM_RECORDS, MINIBATCH = 40, 4

SPEC = ModelSpec(
    model=lambda: ArrayModel(
        tables=[ArrayTable("count", 1, Initializer("constant", {"value": 0.0}))],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][:, 0],
        gradients=lambda dense, rows, features, labels: (0.5, [np.full_like(rows[0], -1.0)], {}),
    ),
    loss=None,
    optimizer=lambda: ArrayOptimizer(learning_rate=1.0),
    feed=lambda records, mode, metadata: (np.array([int(r) for r in records], np.int64),) * 2,
    eval_metrics_fn=None,
    callbacks=None,
    prediction_outputs_processor=None,
    custom_data_reader=None,
)


class NumberReader:
    """Record number n of the only shard is the text of n."""

    metadata = Metadata()

    def shards(self):
        return [Shard("numbers", 0, NUM_RECORDS)]

    def read(self, shard):
        values = [str(n).encode() for n in range(shard.start, shard.end)]
        yield Records(start=shard.start, values=values)


def training(task_id, start, end, number=1):
    return Lease(Task(task_id, TaskKind.TRAINING, Shard("numbers", start, end)), number)


class Replicas:
    """Two ps replicas; one may be replaced by a store of less."""

    def __init__(self):
        self.stores = [Store(0, 2), Store(1, 2)]
        self.servers = [PsServer(store, "127.0.0.1", 0, TOKEN) for store in self.stores]
        self.generation = 0

    def route(self):
        return PsRoute(self.generation, tuple(server.address for server in self.servers))

    def connect(self, route):
        return PsClient.connect(route.addresses, TOKEN, 0, 60.0, 1.0)

    def checkpoint(self, folder):
        """Write a whole checkpoint, as the master does."""
        entries = [json.loads(entry) for entry in self.client().checkpoint(str(folder))]
        (folder / "manifest.json").write_text(json.dumps({"format": 1, "replicas": entries}))

    def client(self):
        return self.connect(self.route())

    def replace(self, index, store):
        self.servers[index].stop()
        self.stores[index] = store
        self.servers[index] = PsServer(store, "127.0.0.1", 0, TOKEN)
        self.generation += 1

    def counts(self):
        counts = np.zeros(NUM_RECORDS)
        for keys, rows in self.client().scan(0):
            counts[keys] = rows[:, 0]
        return counts.tolist()

    def stop(self):
        for server in self.servers:
            server.stop()


@pytest.fixture
def replicas():
    replicas = Replicas()
    yield replicas
    replicas.stop()


class PatientMaster:
    """Gives the next lease when the one before has been reported, up to the last."""

    def __init__(self, leases):
        self.reports = []
        self._leases = list(leases)
        self._num_given = 0
        self._changed = threading.Condition()

    def lease(self, worker_id, is_patient=False, reports=()):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.reports) == self._num_given, timeout=100)
            if self._num_given == len(self._leases):
                return Finished()
            self._num_given += 1
            return self._leases[self._num_given - 1]

    def report(self, worker_id, report):
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()


class Losing(StoreExchange):
    """Has something happen before a minibatch is pushed for the first time."""

    at, happen = None, None

    def push(self, pulled, result, learning_rate, lease, index, *rest):
        if self.happen is not None and index == self.at:
            happen, self.happen = self.happen, None
            happen()
        return super().push(pulled, result, learning_rate, lease, index, *rest)


class Job:
    def __init__(self, replicas, leases, output=None):
        self.route = Route()
        self.master = PatientMaster(leases)
        self.trainer = backend = NumpyTrainer(SPEC, SPEC.model(), Metadata(), seed=0)
        client = connect(replicas.route, replicas.connect, self.route)
        self.exchange = Losing(client, backend, self.route)
        model = backend.build(sample_minibatch(NumberReader(), backend, Mode.TRAINING, MINIBATCH))
        assert isinstance(model, ModelDescription)
        self.exchange.declare(model)
        config = JobConfig(
            command="train",
            model=ModelSection(model_def="m.f"),
            data=DataSection(training_data="numbers"),
            training=TrainingSection(minibatch_size=MINIBATCH),
            checkpoint=CheckpointSection(output=output),
        )
        readers = dict.fromkeys(TaskKind, NumberReader())
        self.worker = Worker(
            config,
            0,
            self.master,
            backend,
            Exchange(self.exchange),
            readers,
            lambda: None,
            backend,
        )

    def outcomes(self):
        return [(r.task_id, r.lease, r.outcome) for r in self.master.reports]


def test_gap_gives_the_lease_back_and_the_next_one_trains_what_is_missing(replicas, tmp_path):
    job = Job(replicas, [training(1, 0, 20), training(2, 20, 40), training(2, 20, 40, number=2)])

    def lose():
        replicas.replace(1, Store.restore(str(tmp_path), 1, 2))
        job.route.follow(replicas.route())

    def write_checkpoint():
        replicas.checkpoint(tmp_path)
        job.exchange.at, job.exchange.happen = 4, lose  # in the next task

    job.exchange.at, job.exchange.happen = 4, write_checkpoint
    job.worker.run()
    # Task 1 had its first four minibatches in the checkpoint; the loss came in task 2.
    assert job.outcomes() == [
        (1, 1, Outcome.DONE),
        (2, 1, Outcome.RETURNED),
        (2, 2, Outcome.DONE),
    ]
    audits = [audit.tolist() for audit in replicas.client().audit()]
    assert audits[0] == [[1, 5, 20], [2, 5, 20]]
    assert audits[1] == [[1, 4, 16], [2, 5, 20]]  # task 1 is for the ledger to replay
    assert [r.end_index for r in job.master.reports if r.outcome is Outcome.DONE] == [5, 5]


def test_empty_successor_is_told_the_model_again(replicas):
    job = Job(replicas, [training(1, 0, 20), training(1, 0, 20, number=2)])

    def lose():
        replicas.replace(0, Store(0, 2))
        job.route.follow(replicas.route())

    job.exchange.at, job.exchange.happen = 3, lose
    job.worker.run()
    assert job.outcomes() == [(1, 1, Outcome.RETURNED), (1, 2, Outcome.DONE)]
    assert replicas.counts() == [1.0] * 20 + [0.0] * 20
    assert [audit.tolist() for audit in replicas.client().audit()] == [[[1, 5, 20]]] * 2


def test_export_that_met_a_successor_is_given_back_and_made_again(replicas, tmp_path):
    output = tmp_path / "out"

    def export(number, generation):
        task = Task(9, TaskKind.EXPORT, Shard("", 0, 0))
        return Lease(task, number, generation=generation)

    job = Job(replicas, [training(1, 0, 20), export(1, 0), export(2, 1)], output)
    export_model = job.trainer.export

    def lose_and_export(folder, dense, state, source):
        if replicas.generation == 0:
            replicas.checkpoint(tmp_path)
            replicas.replace(1, Store.restore(str(tmp_path), 1, 2))
            job.route.follow(replicas.route())
        export_model(folder, dense, state, source)

    job.trainer.export = lose_and_export
    job.worker.run()
    assert job.outcomes()[1:] == [(9, 1, Outcome.RETURNED), (9, 2, Outcome.DONE)]
    assert {path.name for path in tmp_path.glob("out*")} == {"out"}
    with np.load(output / "model.npz") as arrays:
        assert len(arrays["table/count/keys"]) == 20


@pytest.mark.parametrize("number", [1, 2])
def test_export_leaves_alone_what_has_come_to_its_place(replicas, tmp_path, number):
    output = tmp_path / "out"
    lease = Lease(Task(9, TaskKind.EXPORT, Shard("", 0, 0)), number)
    job = Job(replicas, [training(1, 0, 20), lease], output)
    output.mkdir()
    (output / "mine").write_text("of somebody else")

    job.worker.run()

    (report,) = [report for report in job.master.reports if report.task_id == 9]
    assert report.outcome is Outcome.FAILED
    assert f"{output}: expected a folder that is new or empty" in report.message
    assert (output / "mine").read_text() == "of somebody else"
    assert {path.name for path in tmp_path.glob("out*")} == {"out"}


def test_export_that_cannot_be_written_leaves_nothing(replicas, tmp_path):
    output = tmp_path / "out"
    lease = Lease(Task(9, TaskKind.EXPORT, Shard("", 0, 0)), 1)
    job = Job(replicas, [training(1, 0, 20), lease], output)

    def fill_the_disk(folder, dense, state, source):
        (folder / "half").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "half"))

    job.trainer.export = fill_the_disk
    job.worker.run()

    (report,) = [report for report in job.master.reports if report.task_id == 9]
    assert f"--output={output}: the model cannot be written: No space left" in report.message
    assert not list(tmp_path.glob("out*"))


def test_lease_of_a_newer_route_waits_until_the_worker_knows_it(replicas):
    route = Route()
    route.begin(replicas.client(), 0)
    with pytest.raises(UnavailableError, match="generation 1 are; known is 0"):
        route.reach(1, timeout_seconds=0.0)
    waiter = threading.Thread(target=route.reach, args=(1, 30.0))
    waiter.start()
    route.follow(PsRoute(1, ("", "")))
    waiter.join(30)
    assert not waiter.is_alive()


def test_worker_that_connects_while_a_replica_moves_finds_it(replicas):
    old = replicas.route()
    replicas.replace(1, Store(1, 2))
    answers = [old, replicas.route()]
    route = Route()
    connect(lambda: answers.pop(0), replicas.connect, route)
    assert (route.generation, answers) == (1, [])


def test_replica_that_is_where_the_master_says_and_does_not_answer_is_an_error(replicas):
    replicas.servers[1].stop()
    with pytest.raises(UnavailableError, match=r"ps replica 1 at .* within 1\.0 s"):
        connect(replicas.route, replicas.connect, Route())
