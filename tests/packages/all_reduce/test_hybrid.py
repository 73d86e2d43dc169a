"""A worker of a hybrid job: a real store for the rows, and a real ring of one for all else."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, Mode
from elasticdl._core import PsClient, PsServer, RingListener, Store
from elasticdl.backends.base import ModelDescription, OptimizerSpec
from elasticdl.backends.numpy import NumpyTrainer
from elasticdl.config import JobConfig
from elasticdl.data.base import Metadata
from elasticdl.errors import GapError, ModelError, StaleParametersError
from elasticdl.job import Finished, Outcome, TaskKind, Wait
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.all_reduce.exchange import RingExchange
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.ring_member import RingMember
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.loop import Worker
from elasticdl.worker.records import sample_minibatch
from elasticdl.worker.stores import StoreExchange
from tests.packages.all_reduce.ring_workers import TOKEN, Meeting
from tests.unit.worker.scripted_run import (
    MINIBATCH,
    SHARD_RECORDS,
    MemoryReader,
    ScriptedMaster,
    feed,
    training,
)

pytestmark = pytest.mark.timeout(120)
WAIT_SECONDS = 30
NUM_STEPS = SHARD_RECORDS // MINIBATCH
TASKS = [training(1, 0, 20), training(2, 20, 40)]


def model():
    """A row of each record counts it, and so does a number of the only dense variable."""
    return ArrayModel(
        tables=[ArrayTable("count", 1, Initializer("constant", {"value": 0.0}))],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][:, 0],
        gradients=lambda dense, rows, features, labels: (
            0.5,
            [np.full_like(rows[0], -1.0)],
            {"seen": -np.bincount(features, minlength=SHARD_RECORDS).astype(np.float32)},
        ),
        dense={"seen": np.zeros(SHARD_RECORDS, np.float32)},
    )


SPEC = ModelSpec(
    model, None, lambda: ArrayOptimizer(learning_rate=1.0), feed, None, None, None, None
)


class Rows(StoreExchange):
    """Notes what is asked of the stores, as it begins, in one order for all threads."""

    def __init__(self, *given):
        super().__init__(*given)
        self.calls = []
        self._changed = threading.Condition()

    def pull(self, ids, step=None):
        if step is not None:
            self._note("pull", step.lease.task.id, step.index)
        return super().pull(ids, step)

    def push(self, pulled, result, rate, lease, index, *more):
        pushed = super().push(pulled, result, rate, lease, index, *more)
        self._note("pushed", lease.task.id, index)
        return pushed

    def _note(self, *call):
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()

    def until(self, *call):
        """Wait until something was asked."""
        with self._changed:
            assert self._changed.wait_for(lambda: call in self.calls, WAIT_SECONDS), self.calls


class LeasingAgain(ScriptedMaster):
    """Hands out a task anew when its lease was given back."""

    def __init__(self, leases):
        super().__init__(leases)
        self._num_out = 0

    def lease(self, worker_id, is_patient=False, reports=()):
        answer = super().lease(worker_id, is_patient, reports)
        with self._lock:
            if not isinstance(answer, Finished):
                self._num_out += 1
            elif self._num_out:
                return Wait(0.01)
        return answer

    def report(self, worker_id, report):
        super().report(worker_id, report)
        with self._lock:
            self._num_out -= 1
            if report.outcome is Outcome.RETURNED:
                (lease,) = [lease for lease in TASKS if lease.task.id == report.task_id]
                self._leases.append(replace(lease, number=report.lease + 1))


class Hybrid:
    """A worker with both its exchanges."""

    worker_id, name = 0, "worker 0"

    def __init__(self, rows=Rows, **settings):
        self.master = LeasingAgain(TASKS)
        self.client = PsClient.in_process(Store())
        self.trainer = NumpyTrainer(SPEC, model(), Metadata(), seed=0)
        described = self.trainer.build(
            sample_minibatch(MemoryReader(), self.trainer, Mode.TRAINING, MINIBATCH)
        )
        config = JobConfig(
            command="train",
            model={"model_def": "m.f", "model_zoo": "."},
            data={"training_data": "memory"},
            training={
                "minibatch_size": MINIBATCH,
                "distribution_strategy": "HybridStrategy",
                "max_staleness": 2,
                **settings,
            },
        )
        self._replica = Replica(self._serve, None)
        meeting = Meeting()
        listener = RingListener("127.0.0.1", 0, TOKEN)
        self.member = RingMember(
            lambda said: meeting.attend(self, said),
            listener,
            listener.address,
            self._replica,
            lambda: self._replica.address,
        )
        meeting.add(self)
        self.rows = rows(self.client, self.trainer)
        self.ring = RingExchange(self.trainer, self._replica, self.member)
        self.exchange = Exchange(self.rows, self.ring)
        self.exchange.declare(described)
        readers = {TaskKind.TRAINING: MemoryReader()}
        self.worker = Worker(
            config, 0, self.master, self.trainer, self.exchange, readers, None, self.trainer
        )

    def _serve(self, store):
        return PsServer(store, "127.0.0.1", 0, TOKEN, is_copy=True)

    def __call__(self):
        try:
            self.worker.run()
            self.seen = self.ring.pull().dense.tolist()
        finally:
            self.ring.close()
        return self

    def outcomes(self):
        return sorted((r.task_id, r.lease, r.outcome) for r in self.master.reports)

    def counts(self):
        counts = np.zeros(SHARD_RECORDS)
        for keys, rows in self.client.scan(0):
            counts[keys] = rows[:, 0]
        return counts.tolist()


class PushesLate(Rows):
    """Answers the push of a step when the rows of the one after the next are asked for."""

    def push(self, pulled, result, rate, lease, index, *more):
        if lease.task.id == 1 and index < 3:
            self.until("pull", 1, index + 2)
        return super().push(pulled, result, rate, lease, index, *more)


def test_a_model_without_tables_is_refused():
    dense_alone = ModelDescription((), (), (), OptimizerSpec("sgd"), seed=0)
    with pytest.raises(ModelError, match="expected --distribution_strategy=AllreduceStrategy"):
        Exchange(StoreExchange(None, None), RingExchange(None, None, None)).declare(dense_alone)


def test_rows_of_the_next_steps_are_pulled_before_the_push_of_this_one_is_answered():
    run = Hybrid(rows=PushesLate)()
    assert run.counts() == run.seen == [1.0] * SHARD_RECORDS
    assert [(r.outcome, r.num_records) for r in run.master.reports] == [(Outcome.DONE, 20)] * 2


def test_without_staleness_no_row_is_pulled_before_the_push_before_is_answered():
    run = Hybrid(max_staleness=None)()  # the default is 0
    assert run.counts() == run.seen == [1.0] * SHARD_RECORDS
    numbers = [(task, index) for task in (1, 2) for index in range(5)]
    pushed = [call[1:] for call in run.rows.calls if call[0] == "pushed"]
    assert pushed == numbers
    for kind, task, index in run.rows.calls:
        if kind == "pull":  # others came with the push before
            before = run.rows.calls.index(("pull", task, index))
            assert ("pushed", task, index) not in run.rows.calls[:before]
            assert run.rows.calls[:before].count(("pushed", task, index - 1)) == (index > 0)
    assert [r.staleness_max for r in run.master.reports] == [0, 0]


def test_dense_parameters_of_a_step_have_the_update_before_though_its_rows_have_not():
    run = Hybrid(rows=PushesLate)
    seen, train_step = [], run.trainer.train_step

    def noting(minibatch, rows, dense, state):
        seen.append(float(dense.sum()))
        return train_step(minibatch, rows, dense, state)

    run.trainer.train_step = noting
    run()
    assert seen == [float(MINIBATCH * number) for number in range(NUM_STEPS)]


def test_a_step_on_older_dense_parameters_is_computed_again_on_the_rows_that_it_has():
    run = Hybrid()
    push, failed = run.ring.push, []

    def push_but_once(given, result, rate, lease, index, num_records):
        if index == 1 and lease not in failed:
            failed.append(lease)
            raise StaleParametersError("another round was counted")
        return push(given, result, rate, lease, index, num_records)

    run.ring.push = push_but_once
    run()
    assert run.counts() == run.seen == [1.0] * SHARD_RECORDS
    assert [r.num_recomputed for r in run.master.reports] == [1, 1]
    assert len([call for call in run.rows.calls if call[0] == "pull"]) == NUM_STEPS


COMPLETED = [(1, 1, Outcome.RETURNED), (1, 2, Outcome.DONE), (2, 1, Outcome.DONE)]


class LosesOnce(Rows):
    """Has lost what was pushed before the fourth minibatch of the first task."""

    has_lost = False

    def push(self, pulled, result, rate, lease, index, *more):
        if (lease.task.id, index) == (1, 3) and not self.has_lost:
            self.has_lost = True
            raise GapError("a replica lacks minibatches")
        return super().push(pulled, result, rate, lease, index, *more)


def test_minibatches_whose_rows_were_refused_are_completed_though_the_ring_is_ahead():
    run = Hybrid(rows=LosesOnce)()
    assert run.counts() == run.seen == [1.0] * SHARD_RECORDS
    assert run.outcomes() == COMPLETED


def test_a_gap_in_the_ring_gives_the_lease_back_and_the_next_one_completes_it():
    run = Hybrid()
    push = run.ring.push

    def push_until(given, result, rate, lease, index, num_records):
        if lease.number == 1 and lease.task.id == 1 and index >= 2:
            raise GapError("minibatches before it are missing")
        return push(given, result, rate, lease, index, num_records)

    run.ring.push = push_until
    run()
    assert run.counts() == run.seen == [1.0] * SHARD_RECORDS
    assert run.outcomes() == COMPLETED
