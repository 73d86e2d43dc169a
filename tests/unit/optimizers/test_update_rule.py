"""An update rule of one's own: NumPy's operations on arrays, and the same in the store."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from elasticdl.errors import ModelError
from elasticdl.optimizers import UpdateRule

ROWS, DIM, DENSE, STEPS, RATE = 40, 6, 21, 50, 0.05


def everything(weight, gradient, slots, step, learning_rate):
    """A rule that makes no sense, of all that a rule may use."""
    mean = 0.9 * slots["mean"] + (1 - 0.9) * np.clip(gradient, -0.5, 0.5)
    largest = np.maximum(slots["largest"], abs(gradient))
    corrected = mean / (1 - 0.9**step)
    way = np.where(gradient * mean > 0, corrected, 0.5 * np.sign(corrected))
    size = np.sqrt(largest + 1e-3) + np.exp(-np.square(gradient)) * np.log(2.0 + largest)
    kept = np.where((weight >= -3) != (weight < 3), 0.0, weight)
    new = kept - learning_rate * way / size**1.5 + np.minimum(0.0, -weight - 2)
    return new, {"mean": mean, "largest": +largest}


def gradients(step):
    draw = np.random.default_rng(step)
    return tuple(draw.normal(size=n).astype(np.float32) for n in ((ROWS, DIM), DENSE))


def test_the_store_computes_what_numpy_does():
    rule = UpdateRule(everything, {"mean": 0.0, "largest": 0.1}, learning_rate=RATE)
    spec = OptimizerSpec("own", program=rule.program)
    table = TableDescription("t", DIM, Initializer("uniform", {"low": -1.0, "high": 1.0}), spec)
    dense = (VariableDescription("w", (DENSE,), 0),)
    client = PsClient.in_process(Store())
    model = json.dumps(asdict(ModelDescription((table,), dense, (), spec, seed=3)))
    client.declare(model, np.full(DENSE, 0.1, np.float32), np.zeros(0, np.float32))
    sites = [(0, np.arange(ROWS))]
    pulled = client.pull(sites, training=True)
    weights = [pulled.rows[0].copy(), pulled.dense.copy()]
    slots = [{"mean": np.zeros_like(w), "largest": np.full_like(w, 0.1)} for w in weights]

    for step in range(1, STEPS + 1):
        rows, flat = gradients(step)
        for k, gradient in enumerate((rows, flat)):
            weights[k], slots[k] = everything(weights[k], gradient, slots[k], step, RATE)
        pulled = client.pull(sites, training=True)
        client.push(pulled, [rows], flat, np.zeros(0, np.float32), RATE, 0, 1, step - 1, 1)

    pulled = client.pull(sites, training=True)
    np.testing.assert_allclose(pulled.rows[0], weights[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pulled.dense, weights[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (lambda w, g, s, t, lr: (w - lr * np.sin(g), {}), r"uses np\.sin.*arithmetic.*sqrt"),
        (lambda w, g, s, t, lr: (w - lr * np.sum(g), {}), r"uses np\.sum"),
        (lambda w, g, s, t, lr: (w - lr * g / np.linalg.norm(g), {}), r"uses np\.norm"),
        (lambda w, g, s, t, lr: (w - lr * g.mean(), {}), r"uses \.mean"),
        (lambda w, g, s, t, lr: (w - lr * g[0], {}), "uses a part of a value"),
        (lambda w, g, s, t, lr: (w - lr * np.add.reduce(g), {}), r"uses np\.add\.reduce"),
        (lambda w, g, s, t, lr: (max(w, g), {}), r"asks whether a value is true.*np\.where"),
        (lambda w, g, s, t, lr: (w - g * np.ones(3), {}), "expected numbers.*found ndarray"),
        (lambda w, g, s, t, lr: w - g, r"expected \(new weight, new slots by name\), found Traced"),
        (lambda w, g, s, t, lr: (w - g, {"m": g}), r"new values of the slots \[\].*\['m'\]"),
        (lambda w, g, s, t, lr: (w - g * s["m"], {}), "raises KeyError: 'm'"),
    ],
)  # fmt: skip
def test_what_is_not_done_element_by_element_is_refused_by_name(update, says):
    with pytest.raises(ModelError, match=says):
        UpdateRule(update)


def test_a_rule_that_is_too_long_or_has_no_rate_is_refused():
    def long(weight, gradient, slots, step, learning_rate):
        for number in range(40):
            weight = weight - gradient * number
        return weight, {}

    with pytest.raises(ModelError, match=r"operations and 0 slots; expected at most 64 and 8"):
        UpdateRule(long)
    with pytest.raises(ModelError, match="learning_rate: expected 0 or more, found -1"):
        UpdateRule(lambda w, g, s, t, lr: (w, {}), learning_rate=-1)
