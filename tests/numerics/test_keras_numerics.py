"""A job with one worker computes what plain Keras computes, step by step.

The same model, initial values and minibatches go through a `KerasTrainer` with the store's rules,
and through Keras' own `apply` in one process. Losses agree at each step within float32 rounding,
and so do parameters at the end.

Each minibatch touches every row of every table. That is no accident: Keras' optimizers move *all*
rows at each step (momentum goes on, accumulators decay), where a row of the store moves when it is
used. With every row used at every step both are the same rule.
"""

import json
from dataclasses import asdict

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode
from elasticdl._core import PsClient, Store
from elasticdl.data.base import Metadata, Records
from elasticdl.layers import Embedding
from elasticdl.model_spec import ModelSpec
from elasticdl.optimizers import GroupFtrl
from elasticdl.packages.keras.trainer import KerasTrainer

pytestmark = pytest.mark.keras

NUM_IDS = 8
BATCH = 32
STEPS = 24

o = keras.optimizers
OPTIMIZERS = {
    "nesterov": lambda: o.SGD(0.02, momentum=0.9, nesterov=True),
    "adam": lambda: o.Adam(0.01),
    "group_ftrl": lambda: GroupFtrl(0.05, group_lasso_strength=0.005, beta=0.1),
    "schedule": lambda: o.SGD(o.schedules.ExponentialDecay(0.1, decay_steps=5, decay_rate=0.5)),
}
CLIPPED = {
    "clipnorm": lambda: o.SGD(0.2, momentum=0.5, clipnorm=0.05),
    "clipvalue": lambda: o.Adam(0.01, clipvalue=0.003, weight_decay=0.01),
    "global_clipnorm": lambda: o.SGD(0.2, momentum=0.5, global_clipnorm=0.1),
}


def model():
    """Embeddings of both kinds, batch norm, a regularizer, two outputs."""
    ids = keras.Input((2,), dtype="int64", name="ids")
    x = keras.Input((3,), name="x")
    ours = Embedding(4, input_dim=NUM_IDS, name="ours")(ids)
    plain = keras.layers.Embedding(NUM_IDS, 3, name="plain")(ids[:, 0])
    h = keras.layers.Concatenate()([keras.layers.Flatten()(ours), plain, x])
    # No bias ahead of batch norm, which takes it out again: its gradient is rounding alone, and
    # Adam makes of any gradient a step of full length.
    h = keras.layers.Dense(16, use_bias=False, kernel_regularizer="l2", name="hidden")(h)
    h = keras.layers.BatchNormalization(momentum=0.9, name="norm")(h)
    h = keras.layers.Activation("tanh")(h)
    outputs = {
        "late": keras.layers.Dense(1, name="late")(h),
        "delay": keras.layers.Dense(1, name="delay")(h),
    }
    return keras.Model({"ids": ids, "x": x}, outputs)


def loss(labels, predictions):
    late = tf.nn.sigmoid_cross_entropy_with_logits(labels["late"], predictions["late"])
    return tf.reduce_mean(late) + tf.reduce_mean(tf.square(labels["delay"] - predictions["delay"]))


def feed(dataset, mode, metadata):
    def split(r):
        return {"ids": r["ids"], "x": r["x"]}, {"late": r["late"], "delay": r["delay"]}

    return dataset.map(split)


def columns():
    rng = np.random.default_rng(0)
    n = STEPS * BATCH
    ids = np.stack([rng.permuted(np.arange(n) % NUM_IDS), np.arange(n) % NUM_IDS], 1)
    for start in range(0, n, BATCH):  # every id in both columns of every minibatch
        ids[start : start + BATCH, 0] = rng.permutation(BATCH) % NUM_IDS
    x = rng.normal(size=(n, 3)).astype(np.float32)
    score = x.sum(1) + (ids[:, 0] - 3.5)
    return {
        "ids": ids,
        "x": x,
        "late": (score > 0).astype(np.float32)[:, None],
        "delay": (0.3 * score + rng.normal(size=n)).astype(np.float32)[:, None],
    }


def minibatches(backend):
    records = iter([Records(0, columns=columns())])
    return list(backend.minibatches(records, Mode.TRAINING, BATCH, 0))


class Ours:
    def __init__(self, optimizer, rounds=1):
        spec = ModelSpec(model, loss, optimizer, feed, None, None, None, None)
        self.backend = KerasTrainer(spec, Metadata(), seed=5, embedding_threshold_bytes=0)
        self.minibatches = minibatches(self.backend) * rounds
        self.description = self.backend.build(self.minibatches[0])
        self.client = PsClient.in_process(Store())
        self.client.declare(json.dumps(asdict(self.description)), *self.backend.initial_values())
        self.client.begin_task(0, 1)

    def train(self):
        losses = []
        for index, minibatch in enumerate(self.minibatches):
            ids = self.backend.ids(minibatch)
            sites = list(zip(self.backend.id_sites(), ids, strict=True))
            pulled = self.client.pull(sites, training=True)
            step = self.backend.train_step(minibatch, pulled.rows, pulled.dense, pulled.state)
            rate = self.backend.learning_rate(pulled.version)
            self.client.push(
                pulled, step.row_grads, step.dense_grad, step.state_delta, rate, 0, 1, index, BATCH
            )
            losses.append(step.loss)
        return losses

    def parameters(self):
        """Return every variable and table by the last parts of its name."""
        every = np.arange(NUM_IDS)
        tables = range(len(self.description.tables))
        pulled = self.client.pull([(t, every) for t in tables], training=True)
        found = {
            f"{t.name}/embeddings": rows
            for t, rows in zip(self.description.tables, pulled.rows, strict=True)
        }
        for places, flat in (
            (self.description.dense, pulled.dense),
            (self.description.state, pulled.state),
        ):
            for v in places:
                size = int(np.prod(v.shape, dtype=int))
                found[v.name] = flat[v.offset : v.offset + size].reshape(v.shape)
        return found


class Plain:
    def __init__(self, optimizer, values):
        self.model = model()
        for variable in self.variables():
            variable.assign(values[variable.path])
        self.optimizer = optimizer()
        self.optimizer.build(self.model.trainable_variables)
        self.step = tf.function(self._step, autograph=False)

    def variables(self):
        return [v for v in self.model.variables if v.dtype == "float32"]

    def train(self, batches):
        return [float(self.step(mb.features, mb.labels)) for mb in batches]

    def _step(self, features, labels):
        with tf.GradientTape() as tape:
            predictions = self.model(features, training=True)
            value = loss(labels, predictions) + tf.add_n(self.model.losses)
        variables = self.model.trainable_variables
        gradients = tape.gradient(value, [v.value for v in variables])
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        self.optimizer.apply(gradients, variables)
        return value


def assert_equal(ours, plain):
    found, expected = ours.train(), plain.train(ours.minibatches)

    assert expected[-1] < 0.9 * expected[0]
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    parameters = ours.parameters()
    for variable in plain.variables():
        np.testing.assert_allclose(
            parameters[variable.path], variable.numpy(), rtol=1e-3, atol=2e-5,
            err_msg=variable.path,
        )  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)  # test_hundred_steps.py has each formula
def test_losses_and_parameters_are_those_of_plain_keras(name):
    ours = Ours(OPTIMIZERS[name])
    plain = Plain(OPTIMIZERS[name], ours.parameters())
    assert len(ours.description.tables) == 2

    assert_equal(ours, plain)


@pytest.mark.parametrize("name", CLIPPED)
def test_a_hundred_steps_on_clipped_gradients_are_those_of_plain_keras(name):
    """Each id stands four times in a minibatch or more: its gradients are summed, then clipped."""
    ours = Ours(CLIPPED[name], rounds=5)
    plain = Plain(CLIPPED[name], ours.parameters())
    assert len(ours.minibatches) > 100

    assert_equal(ours, plain)

    clipped = plain.optimizer._clip_gradients([tf.fill([9], 0.1)])[0]
    assert np.max(clipped) < 0.1


@pytest.fixture(autouse=True)
def _fresh_names():
    """Give the plain model the names of the other, which starts to count for itself."""
    keras.utils.clear_session(free_memory=False)
