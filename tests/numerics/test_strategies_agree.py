"""One worker with --max_staleness=0 trains as plain Keras does, wherever its parameters live.

The real worker loop runs over a store in this process (`Local`) and over one and two ps replicas
behind sockets; its losses are compared step by step with each other and with `apply_gradients` on a
plain Keras model that starts from the same values.

Every minibatch looks up every row: plain Keras moves all rows in every step under momentum, Adam,
RMSprop and FTRL, whereas rows that nobody looks up rest here (docs/designs/store.md). Ids occur
several times in a minibatch. Keras squares the gradient of each occurrence on its own when it comes
as `tf.IndexedSlices`; the plain side gets it as a tensor, summed by id, which is the gradient that
the formulas of the optimizers mean.
"""

from collections import deque

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.config import DataSection, JobConfig, ModelSection, TrainingSection
from elasticdl.data.base import Metadata, Records
from elasticdl.job import Finished, Lease, Mode, Outcome, Shard, Task, TaskKind
from elasticdl.layers import Embedding
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.keras.trainer import KerasTrainer
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.loop import Worker
from elasticdl.worker.records import sample_minibatch
from elasticdl.worker.stores import StoreExchange

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]

NUM_IDS, DIM, MINIBATCH, RECORDS = 6, 4, 12, 60
TOKEN = bytes(32)

STRATEGIES = {"Local": 0, "1 ps replica": 1, "2 ps replicas": 2}


def model_with(embedding):
    """Build a model with an embedding, batch norm and two outputs."""
    ids = keras.Input((2,), dtype="int64", name="ids")
    x = keras.layers.Flatten()(embedding(ids))
    # No bias: batch norm takes it away again, and Adam would enlarge the rounding of its gradient.
    x = keras.layers.Dense(8, use_bias=False)(x)
    x = keras.layers.BatchNormalization()(x)
    click = keras.layers.Dense(1, name="click")(x)
    price = keras.layers.Dense(1, name="price")(x)
    return keras.Model({"ids": ids}, {"click": click, "price": price})


def loss(labels, predictions):
    click = tf.nn.sigmoid_cross_entropy_with_logits(labels["click"], predictions["click"])
    price = tf.square(labels["price"] - predictions["price"])
    return tf.reduce_mean(click) + 0.5 * tf.reduce_mean(price)


def feed(dataset, mode, metadata):
    def parse(record):
        numbers = tf.io.decode_raw(record, tf.int32)
        ids = tf.cast(numbers[:2], tf.int64)
        value = tf.cast(numbers[2:3], tf.float32)
        return {"ids": ids}, {"click": tf.cast(value > 3, tf.float32), "price": value / 10}

    return dataset.map(parse).shuffle(100)


class MemoryReader:
    """Each run of six records looks up each of the six ids: so does every minibatch of twelve."""

    metadata = Metadata()

    def shards(self):
        return [Shard("memory", n, n + MINIBATCH) for n in range(0, RECORDS, MINIBATCH)]

    def read(self, shard):
        rng = np.random.default_rng(shard.start)
        values = [
            np.array([n % NUM_IDS, (n * 5 + 1) % NUM_IDS, rng.integers(7)], np.int32).tobytes()
            for n in range(shard.start, shard.end)
        ]
        yield Records(start=shard.start, values=values)


class TwoEpochs:
    """A master that hands out every shard, twice over."""

    def __init__(self, shards):
        tasks = [Task(n, TaskKind.TRAINING, shard) for n, shard in enumerate([*shards, *shards])]
        self._leases = deque(Lease(task, 1) for task in tasks)
        self.reports = []

    def lease(self, worker_id, is_patient=False, reports=()):
        return self._leases.popleft() if self._leases else Finished()

    def report(self, worker_id, report):
        self.reports.append(report)


class Recorded(StoreExchange):
    """Keeps the loss of each step."""

    def __init__(self, client, backend):
        super().__init__(client, backend)
        self.losses = []

    def push(self, pulled, result, *rest):
        self.losses.append(result.loss)
        return super().push(pulled, result, *rest)


def make_backend(optimizer):
    spec = ModelSpec(
        model=lambda: model_with(Embedding(DIM, input_dim=NUM_IDS, name="table")),
        loss=loss,
        optimizer=optimizer,
        feed=feed,
        eval_metrics_fn=None,
        callbacks=None,
        prediction_outputs_processor=None,
        custom_data_reader=None,
    )
    return KerasTrainer(spec, Metadata(), seed=3, embedding_threshold_bytes=1 << 20)


def train(optimizer, client):
    """Run a worker; return its losses, the values it began from, and the minibatches it saw."""
    backend, reader = make_backend(optimizer), MemoryReader()
    description = backend.build(sample_minibatch(reader, backend, Mode.TRAINING, MINIBATCH))
    exchange = Recorded(client, backend)
    exchange.declare(description)
    start = client.pull([(0, np.arange(NUM_IDS))], training=True)
    config = JobConfig(
        command="train",
        model=ModelSection(model_def="m.f"),
        data=DataSection(training_data="memory"),
        training=TrainingSection(minibatch_size=MINIBATCH, max_staleness=0),
    )
    master = TwoEpochs(reader.shards())
    readers = {TaskKind.TRAINING: reader}
    Worker(config, 0, master, backend, Exchange(exchange), readers, None, backend).run()
    assert {report.outcome for report in master.reports} == {Outcome.DONE}
    end = client.pull([(0, np.arange(NUM_IDS))], training=False)
    return exchange.losses, start, end, description


def plain_keras(optimizer, start, description):
    """Train the same model with a plain Embedding, from the same start, on the same records."""
    keras.utils.set_random_seed(0)
    model = model_with(keras.layers.Embedding(NUM_IDS, DIM, name="table"))
    table = next(v for v in model.trainable_variables if "table" in v.path)
    dense = [v for v in model.trainable_variables if v is not table]
    table.assign(start.rows[0])
    fill(dense, description.dense, start.dense)
    fill(model.non_trainable_variables, description.state, start.state)
    backend = make_backend(optimizer)  # for its minibatches alone: `feed` shuffles by the task
    backend.build(sample_minibatch(MemoryReader(), backend, Mode.TRAINING, MINIBATCH))
    rule, losses = optimizer(), []
    for features, labels in minibatches_of(backend):
        with tf.GradientTape() as tape:
            value = loss(labels, model(features, training=True))
        variables = model.trainable_variables
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(value, variables)]
        rule.apply_gradients(zip(gradients, variables, strict=True))
        losses.append(float(value))
    flat = [np.ravel(v.numpy()) for v in dense]
    state = [np.ravel(v.numpy()) for v in model.non_trainable_variables]
    return losses, table.numpy(), np.concatenate(flat), np.concatenate(state)


def fill(variables, descriptions, flat):
    for variable, described in zip(variables, descriptions, strict=True):
        size = int(np.prod(described.shape))
        part = flat[described.offset : described.offset + size]
        variable.assign(part.reshape(described.shape))


def minibatches_of(backend):
    from elasticdl.worker.records import task_seed

    reader = MemoryReader()
    for task_id, shard in enumerate([*reader.shards(), *reader.shards()]):
        seed = task_seed(0, task_id)
        for minibatch in backend.minibatches(reader.read(shard), Mode.TRAINING, MINIBATCH, seed):
            yield minibatch.features, minibatch.labels


@pytest.fixture
def clients():
    servers, made = [], []

    def make(num_replicas):
        if num_replicas == 0:
            made.append(PsClient.in_process(Store()))
        else:
            started = [
                PsServer(Store(index, num_replicas), "127.0.0.1", 0, TOKEN)
                for index in range(num_replicas)
            ]
            servers.extend(started)
            made.append(PsClient.connect([s.address for s in started], TOKEN, 0, 30.0))
        return made[-1]

    yield make
    made.clear()
    for server in servers:
        server.stop()


def test_every_strategy_trains_as_plain_keras_does(clients):
    def optimizer():
        return keras.optimizers.Adam(0.01)

    runs = {
        strategy: train(optimizer, clients(num_replicas))
        for strategy, num_replicas in STRATEGIES.items()
    }
    losses, start, _, description = runs["Local"]
    plain_losses, table, dense, state = plain_keras(optimizer, start, description)
    assert len(losses) == len(plain_losses) == 2 * RECORDS // MINIBATCH
    for strategy, (other, began, ended, _) in runs.items():
        np.testing.assert_array_equal(began.rows[0], start.rows[0], strategy)
        np.testing.assert_allclose(other, plain_losses, rtol=2e-5, err_msg=strategy)
        np.testing.assert_allclose(ended.rows[0], table, rtol=2e-4, atol=2e-6, err_msg=strategy)
        np.testing.assert_allclose(ended.dense, dense, rtol=2e-4, atol=2e-6, err_msg=strategy)
        np.testing.assert_allclose(ended.state, state, rtol=2e-4, atol=2e-6, err_msg=strategy)
    np.testing.assert_array_equal(runs["1 ps replica"][0], runs["2 ps replicas"][0])
    np.testing.assert_array_equal(runs["1 ps replica"][0], runs["Local"][0])
