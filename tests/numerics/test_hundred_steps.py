"""A hundred steps of each optimizer in the store are a hundred steps of Keras' own.

No model: the same gradients go to a table and a dense vector of the store, and to two variables of
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
    Initializer,
    ModelDescription,
    TableDescription,
    VariableDescription,
)
from elasticdl.backends.keras.optimizer import describe_optimizer
from elasticdl.errors import ModelError
from elasticdl.optimizers import GroupFtrl

pytestmark = pytest.mark.keras

STEPS, ROWS, DIM, DENSE = 100, 9, 5, 37

o = keras.optimizers
OPTIMIZERS = {
    "sgd": lambda: o.SGD(0.05),
    "momentum": lambda: o.SGD(0.02, momentum=0.9),
    "nesterov": lambda: o.SGD(0.02, momentum=0.8, nesterov=True),
    "adagrad": lambda: o.Adagrad(0.05),
    "adam": lambda: o.Adam(0.01),
    "amsgrad": lambda: o.Adam(0.01, beta_2=0.9, amsgrad=True),
    "adamw": lambda: o.AdamW(0.01, weight_decay=0.02),
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
    "group_ftrl": lambda: GroupFtrl(
        0.05, group_lasso_strength=4.0, l1_regularization_strength=0.1, beta=0.1
    ),
}


def gradients(step):
    """Those of a row have a mean, larger from row to row, so that a group goes its way."""
    draw = np.random.default_rng(step)
    pull = np.linspace(0.0, 0.5, ROWS)[:, None]
    table = draw.normal(scale=0.3, size=(ROWS, DIM)) + pull
    return table.astype(np.float32), draw.normal(size=DENSE).astype(np.float32)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_hundred_steps_are_those_of_keras(name):
    optimizer = OPTIMIZERS[name]()
    spec = describe_optimizer(optimizer)
    uniform = Initializer("uniform", {"low": -0.5, "high": 0.5})
    model = ModelDescription(
        tables=(TableDescription("t", DIM, uniform, spec),),
        dense=(VariableDescription("w", (DENSE,), 0),),
        state=(),
        optimizer=spec,
        seed=3,
    )
    client = PsClient.in_process(Store())
    client.declare(json.dumps(asdict(model)), np.full(DENSE, 0.1, np.float32), np.zeros(0, "f"))
    ids = np.arange(ROWS)
    first = client.pull([(0, ids)], training=True)
    table = keras.Variable(first.rows[0], name="embeddings")
    dense = keras.Variable(first.dense, name="w")
    optimizer.build([table, dense])
    apply = tf.function(lambda g: optimizer.apply(g, [table, dense]), autograph=False)
    rate = float(optimizer.learning_rate)

    for step in range(STEPS):
        of_table, of_dense = gradients(step)
        pulled = client.pull([(0, ids)], training=True)
        client.push(pulled, [of_table], of_dense, np.zeros(0, "f"), rate, 0, 1, step, 1)
        apply([tf.constant(of_table), tf.constant(of_dense)])

    last = client.pull([(0, ids)], training=False)
    np.testing.assert_allclose(last.rows[0], table.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.dense, dense.numpy(), rtol=1e-4, atol=1e-5)
    if name == "group_ftrl":
        zeros = ~last.rows[0].any(axis=1)
        assert zeros.any(), "a row went to zero as a whole"
        assert not zeros.all(), "and another stayed"
        assert last.dense.any(), "dense variables have no groups"


def test_group_ftrl_survives_a_saved_configuration_and_refuses_what_cannot_be():
    optimizer = GroupFtrl(0.1, group_lasso_strength=0.5, beta=1.0)
    again = GroupFtrl.from_config(optimizer.get_config())

    assert (again.group_lasso_strength, again.beta) == (0.5, 1.0)
    with pytest.raises(ModelError, match="group_lasso_strength must be 0 or more"):
        GroupFtrl(group_lasso_strength=-1.0)
    with pytest.raises(ModelError, match=r"learning_rate_power must be -0\.5"):
        GroupFtrl(learning_rate_power=-0.3)
