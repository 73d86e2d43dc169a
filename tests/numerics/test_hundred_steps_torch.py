"""A hundred steps of each `torch_...` optimizer in the store are a hundred steps of PyTorch's own.

PyTorch is no dependency of the core: `make test-torch` runs this with a copy of its own, elsewhere
it is skipped. As in `test_hundred_steps.py`, the same gradients go to
a table and a dense vector of the store, and to two parameters of PyTorch.
"""

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

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

pytestmark = pytest.mark.torch

STEPS, ROWS, DIM, DENSE = 100, 9, 5, 37
# With PyTorch 2.15 the largest difference is 2.3e-5 of |w| + 0.001 (AdamW), most are 2e-6.
TOLERANCE = {"rtol": 3e-5, "atol": 3e-6}

# Name: (class, learning rate, our kind, settings by our names, settings by theirs).
OPTIMIZERS = {
    "sgd": ("SGD", 0.05, "torch_sgd", {}, {}),
    "sgd_decay": ("SGD", 0.05, "torch_sgd", {"weight_decay": 0.1}, {"weight_decay": 0.1}),
    "momentum": ("SGD", 0.02, "torch_sgd", {"momentum": 0.9}, {"momentum": 0.9}),
    "damped": (
        "SGD",
        0.02,
        "torch_sgd",
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05},
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05},
    ),
    "nesterov": (
        "SGD",
        0.02,
        "torch_sgd",
        {"momentum": 0.8, "nesterov": 1.0, "weight_decay": 0.05},
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
    ),
    "adagrad": ("Adagrad", 0.05, "torch_adagrad", {}, {}),
    "adagrad_all": (
        "Adagrad",
        0.05,
        "torch_adagrad",
        {"lr_decay": 0.01, "weight_decay": 0.05, "initial_accumulator": 0.2, "epsilon": 1e-6},
        {"lr_decay": 0.01, "weight_decay": 0.05, "initial_accumulator_value": 0.2, "eps": 1e-6},
    ),
    "adam": ("Adam", 0.01, "torch_adam", {}, {}),
    "adam_all": (
        "Adam",
        0.01,
        "torch_adam",
        {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4, "weight_decay": 0.05},
        {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.05},
    ),
    "amsgrad": (
        "Adam",
        0.01,
        "torch_adam",
        {"beta_2": 0.9, "amsgrad": 1.0},
        {"betas": (0.9, 0.9), "amsgrad": True},
    ),
    "adamw": ("AdamW", 0.01, "torch_adamw", {}, {}),
    "adamw_amsgrad": (
        "AdamW",
        0.01,
        "torch_adamw",
        {"beta_2": 0.9, "amsgrad": 1.0, "weight_decay": 0.1},
        {"betas": (0.9, 0.9), "amsgrad": True, "weight_decay": 0.1},
    ),
    "rmsprop": ("RMSprop", 0.005, "torch_rmsprop", {}, {}),
    "rmsprop_momentum": (
        "RMSprop",
        0.005,
        "torch_rmsprop",
        {"momentum": 0.5, "weight_decay": 0.05},
        {"momentum": 0.5, "weight_decay": 0.05},
    ),
    "rmsprop_centered": (
        "RMSprop",
        0.005,
        "torch_rmsprop",
        {"centered": 1.0, "alpha": 0.9},
        {"centered": True, "alpha": 0.9},
    ),
    "rmsprop_both": (
        "RMSprop",
        0.005,
        "torch_rmsprop",
        {"centered": 1.0, "momentum": 0.5},
        {"centered": True, "momentum": 0.5},
    ),
}


class Pair:
    """A table and a dense vector in the store, and the same as parameters of PyTorch."""

    def __init__(self, kind, settings):
        spec = OptimizerSpec(kind, settings)
        uniform = Initializer("uniform", {"low": -0.5, "high": 0.5})
        model = ModelDescription(
            tables=(TableDescription("t", DIM, uniform, spec),),
            dense=(VariableDescription("w", (DENSE,), 0),),
            state=(),
            optimizer=spec,
            seed=3,
        )
        self.client = PsClient.in_process(Store())
        dense = np.full(DENSE, 0.1, np.float32)
        self.client.declare(json.dumps(asdict(model)), dense, np.zeros(0, "f"))
        first = self.pull(np.arange(ROWS))
        self.table = torch.nn.Parameter(torch.tensor(first.rows[0]))
        self.dense = torch.nn.Parameter(torch.tensor(first.dense))

    def pull(self, ids):
        return self.client.pull([(0, ids)], training=True)

    def push(self, step, rate, ids, of_table, of_dense):
        self.client.push(
            self.pull(ids), [of_table], of_dense, np.zeros(0, "f"), rate, 0, 1, step, 1
        )

    def assert_equal(self):
        last = self.pull(np.arange(ROWS))
        np.testing.assert_allclose(last.rows[0], self.table.detach().numpy(), **TOLERANCE)
        np.testing.assert_allclose(last.dense, self.dense.detach().numpy(), **TOLERANCE)


def gradients(step):
    draw = np.random.default_rng(step)
    table = draw.normal(scale=0.3, size=(ROWS, DIM))
    return table.astype(np.float32), draw.normal(size=DENSE).astype(np.float32)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_hundred_steps_are_those_of_pytorch(name):
    theirs, rate, kind, settings, their_settings = OPTIMIZERS[name]
    pair = Pair(kind, settings)
    optimizer = getattr(torch.optim, theirs)([pair.table, pair.dense], lr=rate, **their_settings)

    for step in range(STEPS):
        of_table, of_dense = gradients(step)
        pair.push(step, rate, np.arange(ROWS), of_table, of_dense)
        pair.table.grad, pair.dense.grad = torch.tensor(of_table), torch.tensor(of_dense)
        optimizer.step()

    pair.assert_equal()


# PyTorch's own lazy updates: rows without a gradient stay as they are, slots and all.
LAZY = {
    "sgd": ("SGD", 0.05, "torch_sgd"),
    "adagrad": ("Adagrad", 0.05, "torch_adagrad"),
    "adam": ("SparseAdam", 0.01, "torch_adam"),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_hundred_sparse_steps_are_those_of_pytorch_with_sparse_gradients(name):
    theirs, rate, kind = LAZY[name]
    pair = Pair(kind, {})
    optimizer = getattr(torch.optim, theirs)([pair.table], lr=rate)

    torch.sparse.check_sparse_tensor_invariants.enable()
    for step in range(STEPS):
        of_table, _ = gradients(step)
        ids = np.random.default_rng(1000 + step).permutation(ROWS)[: 1 + step % 4]
        pair.push(step, rate, ids, of_table[ids], np.zeros(DENSE, np.float32))
        pair.table.grad = torch.sparse_coo_tensor(
            torch.tensor(ids)[None], torch.tensor(of_table[ids]), (ROWS, DIM)
        )
        optimizer.step()

    last = pair.pull(np.arange(ROWS))
    np.testing.assert_allclose(last.rows[0], pair.table.detach().numpy(), **TOLERANCE)
