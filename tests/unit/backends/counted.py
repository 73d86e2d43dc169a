"""Trains a model of any backend, and counts beside it what its statistics are to be."""

import numpy as np

from elasticdl._core import PsClient, Store
from elasticdl.backends.load import load_trainer
from elasticdl.data.base import Metadata
from elasticdl.job import Lease, Mode, Shard, Task, TaskKind
from elasticdl.layers.row_statistics import RowStatistics
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.parameters import Step
from elasticdl.worker.stores import StoreExchange
from tests.unit.backends.conftest import records_of

KEPT = RowStatistics(("show", "click", "price"), decay=0.9, decay_steps=3, as_features=True)
PER_TASK, SIZE, NUM_RECORDS = 2, 16, 128
draw = np.random.default_rng(7)
DATA = {
    "ids": draw.integers(1, 12, (NUM_RECORDS, 3)),
    "price": draw.random(NUM_RECORDS).astype(np.float32),
    "click": draw.integers(0, 2, NUM_RECORDS).astype(np.float32),
}


class Trained:
    """Trains a model on tasks of two minibatches each, in this process, and reads its tables."""

    def __init__(self, spec, kept=KEPT):
        self.trainer = load_trainer(spec, Metadata(), 0, 0, 1, False)
        sample = next(self.trainer.minibatches(records_of(DATA), Mode.TRAINING, SIZE, 0))
        self.description = self.trainer.build(sample)
        stores = StoreExchange(
            PsClient.in_process(Store()), self.trainer, minibatches_per_task=PER_TASK
        )
        self.exchange = Exchange(stores)
        self.exchange.declare(self.description)
        self.read, self.wanted = [], {}
        per_task = PER_TASK * SIZE
        for place in range(NUM_RECORDS // per_task):
            part = {k: v[place * per_task : (place + 1) * per_task] for k, v in DATA.items()}
            self._train(part, place, kept)

    def _train(self, part, place, kept):
        task = Task(place, TaskKind.TRAINING, Shard("a", 0, 1))
        lease = Lease(task, 1, place=place)
        self.exchange.start_index(lease)
        minibatches = self.trainer.minibatches(records_of(part), Mode.TRAINING, SIZE, 1)
        for index, minibatch in enumerate(minibatches):
            ids = self.trainer.ids(minibatch)
            given = self.exchange.pull(ids, Step(lease, index))
            result = self.trainer.train_step(minibatch, given.rows, given.dense, given.state)
            self.exchange.push(given, result, 0.1, lease, index, SIZE)
            self._count(minibatch, (place * PER_TASK + index) // kept.decay_steps, kept)

    def _count(self, minibatch, period, kept):
        features, labels = minibatch.features, np.asarray(minibatch.labels).ravel()
        added = {}
        for record, ids in enumerate(np.asarray(features["ids"])):
            for i in ids[ids != 0]:
                one = np.float32([1, labels[record], np.asarray(features["price"]).ravel()[record]])
                added[i] = added.get(i, np.zeros(3, np.float32)) + one
        for i, amounts in added.items():
            sums, of = self.wanted.get(i, (np.zeros(3, np.float32), 0))
            left = np.float32(1.0)
            for _ in range(period - of):
                left = np.float32(np.float64(left) * kept.decay)
            self.wanted[i] = (amounts + left * sums, period)

    def table(self, number):
        chunks = list(self.exchange.client.scan(number))
        return {k: row for keys, rows in chunks for k, row in zip(keys.tolist(), rows, strict=True)}

    def check(self, number):
        """The table of statistics has what was counted, decayed to the newest period."""
        found = self.table(number)
        newest = max(period for _, period in self.wanted.values())
        assert set(found) == set(self.wanted)
        for i, (sums, period) in self.wanted.items():
            left = np.float32(KEPT.decay ** (newest - period))
            np.testing.assert_allclose(found[i][:3], left * sums, rtol=3e-7)
            assert found[i][3] == newest
