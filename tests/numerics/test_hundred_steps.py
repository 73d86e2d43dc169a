"""A hundred steps of each optimizer in the store are a hundred steps of Keras' own.

No model: the same gradients go to a table and dense variables of the store, and to variables of
Keras. Every row is updated at every step, as Keras does.
"""

import json
from dataclasses import asdict

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import (
    ConstraintSpec,
    Initializer,
    ModelDescription,
    TableDescription,
    VariableDescription,
)
from elasticdl.errors import ModelError
from elasticdl.optimizers import GroupFtrl
from elasticdl.packages.keras.layers.constraint import describe_constraint
from elasticdl.packages.keras.optimizer import describe_optimizer, describe_updates, rule_of_table
from tests.numerics.own_optimizers import CautiousAdam, Yogi

pytestmark = pytest.mark.keras

STEPS, ROWS, DIM, DENSE = 100, 9, 5, 37

o = keras.optimizers
OPTIMIZERS = {
    "sgd": lambda: o.SGD(0.05),
    "momentum": lambda: o.SGD(0.02, momentum=0.9),
    "nesterov": lambda: o.SGD(0.02, momentum=0.8, nesterov=True),
    "adagrad": lambda: o.Adagrad(0.05),
    "adadelta": lambda: o.Adadelta(1.0),
    "adadelta_settings": lambda: o.Adadelta(0.5, rho=0.8, epsilon=1e-3),
    "adam": lambda: o.Adam(0.01),
    "amsgrad": lambda: o.Adam(0.01, beta_2=0.9, amsgrad=True),
    "adamw": lambda: o.AdamW(0.01, weight_decay=0.02),
    "adamax": lambda: o.Adamax(0.01),
    "adamax_settings": lambda: o.Adamax(0.01, beta_1=0.8, beta_2=0.9, epsilon=1e-3),
    "nadam": lambda: o.Nadam(0.01),
    "nadam_settings": lambda: o.Nadam(0.01, beta_1=0.99, beta_2=0.9, epsilon=1e-3),
    "lion": lambda: o.Lion(0.003),
    "lion_settings": lambda: o.Lion(0.003, beta_1=0.6, beta_2=0.8),
    "rmsprop": lambda: o.RMSprop(0.005),
    "rmsprop_momentum": lambda: o.RMSprop(0.005, momentum=0.5),
    "rmsprop_centered": lambda: o.RMSprop(0.005, centered=True),
    "rmsprop_both": lambda: o.RMSprop(0.005, momentum=0.5, centered=True),
    "ftrl": lambda: o.Ftrl(0.05),
    "ftrl_all": lambda: o.Ftrl(
        0.05,
        learning_rate_power=-0.4,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        l2_shrinkage_regularization_strength=0.03,
        beta=0.1,
    ),
    "own": lambda: Yogi(0.02),
    "own_of_adam": lambda: CautiousAdam(0.02),
    "group_ftrl": lambda: GroupFtrl(
        0.05, group_lasso_strength=4.0, l1_regularization_strength=0.1, beta=0.1
    ),
}
DECAYED = {
    "sgd_decayed": lambda: o.SGD(0.05, weight_decay=0.1),
    "momentum_decayed": lambda: o.SGD(0.02, momentum=0.9, weight_decay=0.1),
    "adagrad_decayed": lambda: o.Adagrad(0.05, weight_decay=0.1),
    "adadelta_decayed": lambda: o.Adadelta(1.0, weight_decay=0.1),
    "adam_decayed": lambda: o.Adam(0.01, weight_decay=0.1),
    "adamax_decayed": lambda: o.Adamax(0.01, weight_decay=0.1),
    "nadam_decayed": lambda: o.Nadam(0.01, weight_decay=0.1),
    "lion_decayed": lambda: o.Lion(0.003, weight_decay=0.1),
    "rmsprop_decayed": lambda: o.RMSprop(0.005, weight_decay=0.1),
    "own_decayed": lambda: Yogi(0.02, weight_decay=0.1),
    "ftrl_decayed": lambda: o.Ftrl(0.05, weight_decay=0.1),
}
CONSTRAINTS = {
    "non_neg": keras.constraints.NonNeg(),
    "unit_norm": keras.constraints.UnitNorm(axis=1),
    "max_norm": keras.constraints.MaxNorm(0.4, axis=-1),
    "min_max_norm": keras.constraints.MinMaxNorm(0.3, 0.5, rate=0.5, axis=1),
}


def gradients(step):
    """Those of a row have a mean, larger from row to row, so that a group goes its way."""
    draw = np.random.default_rng(step)
    pull = np.linspace(0.0, 0.5, ROWS)[:, None]
    table = draw.normal(scale=0.3, size=(ROWS, DIM)) + pull
    return table.astype(np.float32), draw.normal(size=DENSE).astype(np.float32)


class InStore:
    """A table and dense variables of which a client knows nothing but the description."""

    def __init__(self, optimizer, dense, constraint=None):
        spec = describe_optimizer(optimizer)
        uniform = Initializer("uniform", {"low": -0.5, "high": 0.5})
        self.rate = float(optimizer.learning_rate)
        held = describe_constraint(constraint, "t")
        held = held and ConstraintSpec(*held)
        table = TableDescription(
            "t", DIM, uniform, rule_of_table(optimizer, spec, PATH), constraint=held
        )
        self.model = ModelDescription((table,), dense, (), spec, seed=3)
        self.client = PsClient.in_process(Store())
        flat = np.full(DENSE, 0.1, np.float32)
        self.client.declare(json.dumps(asdict(self.model)), flat, np.zeros(0, "f"))

    def values(self):
        pulled = self.client.pull([(0, np.arange(ROWS))], training=True)
        return pulled.rows[0], pulled.dense

    def train(self):
        for step in range(STEPS):
            pulled = self.client.pull([(0, np.arange(ROWS))], training=True)
            rows, dense = gradients(step)
            self.client.push(pulled, [rows], dense, np.zeros(0, "f"), self.rate, 0, 1, step, 1)


def train_keras(optimizer, table, dense):
    variables = [table, *dense]
    optimizer.build(variables)
    apply = tf.function(lambda g: optimizer.apply(g, variables), autograph=False)
    sizes = [int(np.prod(v.shape)) for v in dense]
    for step in range(STEPS):
        rows, flat = gradients(step)
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        apply([tf.constant(rows), *map(tf.constant, parts)])


def assert_equal(store, table, dense):
    rows, flat = store.values()
    np.testing.assert_allclose(rows, table.numpy(), rtol=1e-4, atol=1e-5)
    of_keras = np.concatenate([v.numpy().ravel() for v in dense])
    np.testing.assert_allclose(flat, of_keras, rtol=1e-4, atol=1e-5)
    return rows, flat


WHOLE = (VariableDescription("w", (DENSE,), 0),)
PATH = "model/layer/embeddings"


@pytest.mark.parametrize("name", [*OPTIMIZERS, *DECAYED])
def test_a_hundred_steps_are_those_of_keras(name):
    make = (OPTIMIZERS | DECAYED)[name]
    optimizer = make()
    store = InStore(make(), WHOLE)
    first, flat = store.values()
    table = keras.Variable(first, name="embeddings")
    dense = [keras.Variable(flat, name="w")]

    store.train()
    train_keras(optimizer, table, dense)

    rows, flat = assert_equal(store, table, dense)
    if name == "group_ftrl":
        zeros = ~rows.any(axis=1)
        assert zeros.any(), "a row went to zero as a whole"
        assert not zeros.all(), "and another stayed"
        assert flat.any(), "dense variables have no groups"


def schedule_free(y, optimizer, z_is_read_after):
    """Algorithm 1 of Defazio et al., 2024, on the gradients of the table; x is found from y and z.

    Where it is found, z is as it was before the step. Keras 3 on TensorFlow reads it after.
    """
    b1, b2, lr = optimizer.beta_1, optimizer.beta_2, float(optimizer.learning_rate)
    y = y.astype(np.float64)
    z, v = y.copy(), np.zeros_like(y)
    for t in range(1, STEPS + 1):
        g = gradients(t - 1)[0]
        y -= y * (optimizer.weight_decay or 0.0) * lr
        v = b2 * v + (1 - b2) * g**2
        rate = lr * min(1.0, t / max(1, optimizer.warmup_steps))
        z_next = z - rate * g / (np.sqrt(v / (1 - b2**t)) + optimizer.epsilon)
        x = (y - (1 - b1) * (z_next if z_is_read_after else z)) / b1
        z, x = z_next, (1 - 1 / t) * x + z_next / t
        y = (1 - b1) * z + b1 * x
    return y


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.1},
        {"beta_1": 0.7, "beta_2": 0.9, "epsilon": 1e-3, "warmup_steps": 30},
    ],
)
def test_schedule_free_steps_are_those_of_the_paper_and_not_of_keras(settings):
    optimizer = o.ScheduleFreeAdamW(0.01, **settings)
    store = InStore(optimizer, WHOLE)
    first, flat = store.values()
    table = keras.Variable(first, name="embeddings")

    store.train()
    train_keras(optimizer, table, [keras.Variable(flat, name="w")])

    close = {"rtol": 1e-3, "atol": 1e-5}
    of_paper = schedule_free(first, optimizer, z_is_read_after=False)
    np.testing.assert_allclose(store.values()[0], of_paper, **close)
    of_keras = schedule_free(first, optimizer, z_is_read_after=True)
    np.testing.assert_allclose(table.numpy(), of_keras, **close)
    assert abs(of_keras - of_paper).max() > 1e-3


@pytest.mark.parametrize("name", ["adamw", "sgd_decayed"])
@pytest.mark.parametrize("excluded", ["bias", "embeddings"])
def test_variables_that_are_excluded_do_not_decay(name, excluded):
    optimizer = (OPTIMIZERS | DECAYED)[name]()
    optimizer.exclude_from_weight_decay(var_names=[excluded])
    whole = np.full(DENSE, 0.1, np.float32)
    dense = [keras.Variable(whole[:20], name="kernel"), keras.Variable(whole[20:], name="bias")]
    described = [
        VariableDescription("kernel", (20,), 0),
        VariableDescription("bias", (DENSE - 20,), 20),
    ]
    store = InStore(optimizer, describe_updates(optimizer, dense, described))
    table = keras.Variable(store.values()[0], name="embeddings")

    store.train()
    train_keras(optimizer, table, dense)

    assert_equal(store, table, dense)


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_rows_under_a_constraint_are_those_of_keras(name, optimizer):
    optimizer = OPTIMIZERS[optimizer]()
    store = InStore(optimizer, WHOLE, CONSTRAINTS[name])
    first, flat = store.values()
    table = keras.Variable(first, name="embeddings")
    # Keras takes a constraint from the layer that makes the variable.
    table.constraint = CONSTRAINTS[name]
    dense = [keras.Variable(flat, name="w")]

    store.train()
    train_keras(optimizer, table, dense)

    assert_equal(store, table, dense)


def test_dense_variables_that_are_not_negative_are_those_of_keras():
    optimizer = OPTIMIZERS["adam"]()
    whole = np.full(DENSE, 0.1, np.float32)
    dense = [keras.Variable(whole[:20], name="free"), keras.Variable(whole[20:], name="held")]
    dense[1].constraint = keras.constraints.NonNeg()
    described = [
        VariableDescription("free", (20,), 0),
        VariableDescription("held", (DENSE - 20,), 20),
    ]
    store = InStore(optimizer, describe_updates(optimizer, dense, described))
    table = keras.Variable(store.values()[0], name="embeddings")

    store.train()
    train_keras(optimizer, table, dense)

    _, flat = assert_equal(store, table, dense)
    assert flat[:20].min() < 0 <= flat[20:].min()
    assert (flat[20:] == 0).any()


def test_group_ftrl_survives_a_saved_configuration_and_refuses_what_cannot_be():
    optimizer = GroupFtrl(0.1, group_lasso_strength=0.5, beta=1.0)
    again = GroupFtrl.from_config(optimizer.get_config())

    assert (again.group_lasso_strength, again.beta) == (0.5, 1.0)
    with pytest.raises(ModelError, match="group_lasso_strength must be 0 or more"):
        GroupFtrl(group_lasso_strength=-1.0)
    with pytest.raises(ModelError, match=r"learning_rate_power must be -0\.5"):
        GroupFtrl(learning_rate_power=-0.3)
