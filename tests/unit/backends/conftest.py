"""Drives a backend step by step with the real store, in one process and one thread."""

import json
from dataclasses import asdict, dataclass, field

import numpy as np
import pytest

from elasticdl._core import PsClient, Store
from elasticdl.data.base import Records
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec


def make_spec(**functions):
    names = (
        "model", "loss", "optimizer", "feed", "eval_metrics_fn", "callbacks",
        "prediction_outputs_processor", "custom_data_reader", "weighted_metrics_fn",
        "loss_weights",
    )  # fmt: skip
    return ModelSpec(**{name: functions.get(name) for name in names})


def records_of(data, start=0, chunk=None):
    """Cut a list of bytes or a dict of arrays into `Records`."""
    columns = isinstance(data, dict)
    size = len(next(iter(data.values()))) if columns else len(data)
    chunk = chunk or max(size, 1)
    for at in range(0, size, chunk):
        part = slice(at, at + chunk)
        if columns:
            yield Records(start + at, columns={k: v[part] for k, v in data.items()})
        else:
            yield Records(start + at, values=data[part])


@dataclass
class Job:
    backend: object
    client: object
    description: object
    index: int = 0
    losses: list = field(default_factory=list)

    def given(self, minibatch, training):
        sites = list(zip(self.backend.id_sites(), self.backend.ids(minibatch), strict=True))
        return self.client.pull(sites, training=training)

    def train(self, data, minibatch_size, seed=0):
        minibatches = self.backend.minibatches(
            records_of(data), Mode.TRAINING, minibatch_size, seed
        )
        for minibatch in minibatches:
            self.step(minibatch)
        return self.losses

    def minibatches(self, data, minibatch_size, seed=0):
        return self.backend.minibatches(records_of(data), Mode.TRAINING, minibatch_size, seed)

    def step(self, minibatch):
        return self.push(*self.computed(minibatch))

    def computed(self, minibatch):
        pulled = self.given(minibatch, training=True)
        result = self.backend.train_step(minibatch, pulled.rows, pulled.dense, pulled.state)
        return minibatch, pulled, result

    def push(self, minibatch, pulled, result):
        self.client.push(
            pulled,
            result.row_grads,
            result.dense_grad,
            result.state_delta,
            learning_rate=self.backend.learning_rate(pulled.version),
            task_id=0,
            lease=1,
            index=self.index,
            num_records=minibatch.num_records,
        )
        self.index += 1
        self.losses.append(result.loss)
        return result

    def evaluate(self, data, minibatch_size):
        self.backend.new_metrics()
        for mb in self.backend.minibatches(records_of(data), Mode.EVALUATION, minibatch_size, 0):
            given = self.given(mb, training=False)
            self.backend.evaluate_step(mb, given.rows, given.dense, given.state)
        return self.backend.metric_results(self.backend.metric_states())

    def predict(self, data, minibatch_size):
        """Predict with a model of one output."""
        return np.concatenate(list(self.predictions(data, minibatch_size)))

    def predictions(self, data, minibatch_size):
        minibatches = self.backend.minibatches(records_of(data), Mode.PREDICTION, minibatch_size, 0)
        for mb in minibatches:
            given = self.given(mb, training=False)
            yield self.backend.predict_step(mb, given.rows, given.dense, given.state)

    def initial_weights(self):
        """Return the weights that a model of Keras was built with, as `get_weights` does."""
        with self.backend._held.open():
            return self.backend._placed.model.get_weights()

    def parameters(self):
        pulled = self.client.pull([], training=False)
        return pulled.dense, pulled.state

    def export(self, directory):
        self.backend.export(directory, *self.parameters(), self.client)


@pytest.fixture
def spec_of():
    return make_spec


@pytest.fixture
def as_records():
    return records_of


@pytest.fixture
def begin_job():
    """Return a function that declares the model of a backend that a test has made."""
    return lambda backend, data: begin(backend, data, 32, Mode.TRAINING, False)


def begin(backend, data, minibatch_size, mode, run_eagerly, store=None):
    """Build a model on the first records and declare it."""
    sample = next(backend.minibatches(records_of(data), mode, minibatch_size, 0))
    description = backend.build(sample)
    client = PsClient.in_process(store or Store())
    client.declare(
        json.dumps(asdict(description)), *backend.initial_values(), list(backend.given_rows())
    )
    client.begin_task(0, 1)
    if run_eagerly:
        backend.set_lookup(lambda sites, training: client.pull(sites, training=training))
    return Job(backend, client, description)
