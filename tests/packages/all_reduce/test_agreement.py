"""A worker that joins must have the model of those that give it the parameters."""

from dataclasses import replace

import numpy as np
import pytest

from elasticdl._core import PsServer
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from elasticdl.errors import ModelError, ModelMismatchError
from elasticdl.packages.all_reduce.agreement import check_agreement, described
from elasticdl.packages.all_reduce.replica import Replica

TOKEN = b"a token of this test"
MODEL = ModelDescription(
    tables=(),
    dense=(VariableDescription("w", (4,), 0), VariableDescription("b", (2,), 4)),
    state=(VariableDescription("s", (1,), 0),),
    optimizer=OptimizerSpec("adam", {"beta_1": 0.9}),
    seed=1,
)
OTHERS = {
    r"dense variable 'w' has shape \[5\] here, \[4\] in the other workers": replace(
        MODEL, dense=(VariableDescription("w", (5,), 0), VariableDescription("b", (2,), 5))
    ),
    "this worker's model has 1 dense variables, that of the others 2": replace(
        MODEL, dense=MODEL.dense[:1]
    ),
    "has name v here, s in the other workers": replace(
        MODEL, state=(VariableDescription("v", (1,), 0),)
    ),
    r"has optimizer \{.*0\.8.*\} here, \{.*0\.9.*\} in the other workers": replace(
        MODEL, optimizer=OptimizerSpec("adam", {"beta_1": 0.8})
    ),
}


def test_the_same_model_is_agreed_on():
    check_agreement(MODEL, described(MODEL))


@pytest.mark.parametrize(("said", "model"), OTHERS.items())
def test_another_model_is_refused_by_what_differs(said, model):
    with pytest.raises(ModelMismatchError, match=f"{said}.*was the model file"):
        check_agreement(model, described(MODEL))


@pytest.fixture
def worker():
    """Return a function that makes a worker's parameters, of some model."""
    made = []

    def make(model):
        replica = Replica(lambda store: PsServer(store, "127.0.0.1", 0, TOKEN), None)
        num_dense = sum(int(np.prod(variable.shape)) for variable in model.dense)
        replica.declare(model, np.zeros(num_dense, np.float32), np.zeros(1, np.float32))
        made.append(replica)
        return replica

    yield make
    for replica in made:
        replica.close()


@pytest.mark.parametrize("model", OTHERS.values())
def test_a_joiner_with_another_model_takes_nothing_at_once_or_in_pieces(worker, model):
    giver, joiner = worker(MODEL), worker(model)
    giver.begin("")
    with pytest.raises(ModelMismatchError):
        joiner.load(giver.dump())
    with pytest.raises(ModelMismatchError):
        joiner.begin_stage(giver.outline())
    assert (joiner.position, joiner.is_staging) == (-1, False)


def test_a_model_with_tables_is_refused_in_all_reduce_by_their_names():
    replica = Replica(lambda store: PsServer(store, "127.0.0.1", 0, TOKEN), None)
    rows = TableDescription(
        "rows", 2, Initializer("constant", {"value": 0.0}), OptimizerSpec("sgd")
    )
    zeros = np.zeros(6, np.float32)
    with pytest.raises(ModelError, match=r"\('rows'\).*or ParameterServerStrategy"):
        replica.declare(replace(MODEL, tables=(rows,)), zeros, zeros[:1])
