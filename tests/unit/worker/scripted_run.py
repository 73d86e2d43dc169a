"""A run of a worker against a real store in the process and a master that plays a script."""

import dataclasses
import math
import threading
from collections import deque
from pathlib import Path

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Initializer, Mode
from elasticdl._core import PsClient, Store
from elasticdl.backends.numpy import NumpyTrainer
from elasticdl.config import ClusterSection, DataSection, JobConfig, ModelSection, TrainingSection
from elasticdl.data.base import Metadata, Records
from elasticdl.job import Finished, Lease, Shard, Task, TaskKind
from elasticdl.model_spec import ModelSpec
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.loop import Worker
from elasticdl.worker.records import sample_minibatch
from elasticdl.worker.stores import StoreExchange

SHARD_RECORDS = 40
MINIBATCH = 4


class ScriptedMaster:
    """Hands out the leases it was given and keeps the reports."""

    def __init__(self, leases):
        self._leases = deque(leases)
        self.reports, self.announced, self.with_requests = [], [], []
        self._lock = threading.Lock()

    def lease(self, worker_id, is_patient=False, reports=()):
        self.with_requests.append([report.task_id for report in reports])
        for report in reports:
            self.report(worker_id, report)
        with self._lock:
            return self._leases.popleft() if self._leases else Finished()

    def report(self, worker_id, report):
        self.reports.append(report)

    def announce(self, worker_id, position):
        self.announced.append(position)

    def heartbeat(self, role, index, *what):
        pass


class MemoryReader:
    """Record number n of the only shard is the text of n."""

    metadata = Metadata()

    def shards(self):
        return [Shard("memory", 0, SHARD_RECORDS)]

    def read(self, shard):
        for start in range(shard.start, shard.end, 7):
            numbers = range(start, min(start + 7, shard.end))
            yield Records(start=start, values=[str(n).encode() for n in numbers])


class CollectingSink:
    def __init__(self):
        self.written = {}

    def write(self, task, minibatches, attempt):
        self.written[task.id] = np.concatenate([part.outputs for part in minibatches])


def counting_model(nan_label=-1, nan_grad_label=-1):
    return ArrayModel(
        tables=[ArrayTable("count", 1, Initializer("constant", {"value": 0.0}))],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][:, 0],
        gradients=lambda dense, rows, features, labels: (
            math.nan if (labels == nan_label).any() else 0.5,
            [np.full_like(rows[0], math.nan if (labels == nan_grad_label).any() else -1.0)],
            {},
        ),
    )


def feed(records, mode, metadata):
    if b"bad" in records:
        raise ValueError("not a number: bad")
    ids = np.array([int(record) for record in records], np.int64)
    return ids if mode == Mode.PREDICTION else (ids, ids)


SPEC = ModelSpec(
    model=counting_model,
    loss=None,
    optimizer=lambda: ArrayOptimizer(learning_rate=1.0),
    feed=feed,
    eval_metrics_fn=lambda: {"mean": lambda labels, predictions: predictions},
    callbacks=None,
    prediction_outputs_processor=None,
    custom_data_reader=None,
)

NAN_SPEC = dataclasses.replace(SPEC, model=lambda: counting_model(nan_label=13))
NAN_GRAD_SPEC = dataclasses.replace(SPEC, model=lambda: counting_model(nan_grad_label=13))


def dense_model(value):
    """A model without tables, whose gradient has a certain number in it."""
    return ArrayModel(
        tables=[],
        ids=lambda features: [],
        predict=lambda dense, rows, features: features,
        gradients=lambda dense, rows, features, labels: (
            0.5,
            [],
            {"w": np.array([1.0, value], np.float32)},
        ),
        dense={"w": np.zeros(2, np.float32)},
    )


def training(task_id, start, end, number=1):
    return Lease(Task(task_id, TaskKind.TRAINING, Shard("memory", start, end)), number)


class UnevenTrainer(NumpyTrainer):
    """Its `feed` leaves out the records below 20, and makes two examples of each odd one."""

    def minibatches(self, records, mode, minibatch_size, seed):
        values = [v for chunk in records for v in chunk.values if int(v) >= 20]
        values = [v for value in values for v in [value] * (1 + int(value) % 2)]
        return super().minibatches(iter([Records(0, values)]), mode, minibatch_size, seed)


class Run:
    """A worker with its store, ready to work through leases."""

    def __init__(
        self, leases, store=None, reader=None, spec=SPEC, trainer=NumpyTrainer, **training_settings
    ):
        self.master = ScriptedMaster(leases)
        self.client = PsClient.in_process(store or Store())
        self.sink = CollectingSink()
        self.trainer = trainer(spec, spec.model(), Metadata(), seed=0)
        self.model = self.trainer.build(
            sample_minibatch(MemoryReader(), self.trainer, Mode.TRAINING, MINIBATCH)
        )
        self._reader = reader or MemoryReader()
        self._config = JobConfig(
            command="train",
            model=ModelSection(model_def="m.f", model_zoo=Path(".")),
            data=DataSection(training_data="memory"),
            training=TrainingSection(minibatch_size=MINIBATCH, **training_settings),
            cluster=ClusterSection(),
        )
        self.use(StoreExchange)

    def use(self, make_exchange):
        """Put the worker together, with an exchange of this kind."""
        self.exchange = make_exchange(self.client, self.trainer)
        self.exchange.declare(self.model)
        self.worker = Worker(
            self._config,
            0,
            self.master,
            self.trainer,
            Exchange(self.exchange),
            dict.fromkeys(
                (TaskKind.TRAINING, TaskKind.EVALUATION, TaskKind.PREDICTION), self._reader
            ),
            lambda: self.sink,
            self.trainer,
        )

    def __call__(self):
        self.worker.run()
        return self

    def counts(self):
        counts = np.zeros(SHARD_RECORDS)
        for keys, rows in self.client.scan(0):
            counts[keys] = rows[:, 0]
        return counts.tolist()
