"""A worker's own copy of the parameters makes updates by the learning rate that it is given."""

import numpy as np
import pytest

from elasticdl._core import PsServer
from elasticdl.backends.base import ModelDescription, OptimizerSpec, VariableDescription
from elasticdl.packages.all_reduce.collective.rounds import OfferedMinibatch
from elasticdl.packages.all_reduce.replica import Replica

NUM_RECORDS = 4
GRADIENT = np.ones(3, np.float32)


@pytest.fixture(params=[None, NUM_RECORDS], ids=["each round", "global batch"])
def replica(request):
    def serve(store):
        return PsServer(store, "127.0.0.1", 0, b"secret of this job", is_copy=True)

    made = Replica(serve, None, request.param)
    dense = (VariableDescription("w", (3,), 0),)
    model = ModelDescription((), dense, (), OptimizerSpec("sgd"), seed=0)
    made.declare(model, np.zeros(3, np.float32), np.zeros(0, np.float32))
    made.begin("")
    yield made
    made.close()


def count(replica, index, rate, is_skipped=False):
    minibatch = OfferedMinibatch(1, 1, index, 0 if is_skipped else NUM_RECORDS, is_skipped)
    replica.count([minibatch], rate, (GRADIENT, np.zeros(0, np.float32)))
    return replica.client.pull([], training=False).dense[0]


def test_a_schedule_that_has_come_to_zero_trains_no_more(replica):
    assert count(replica, 0, 0.5) == pytest.approx(-0.5)
    assert count(replica, 1, 0.0) == pytest.approx(-0.5)
    assert replica.version == 2


def test_a_skipped_minibatch_has_no_rate(replica):
    assert count(replica, 0, 0.5) == pytest.approx(-0.5)
    assert count(replica, 1, None, is_skipped=True) == pytest.approx(-0.5)
    assert count(replica, 2, 0.25) == pytest.approx(-0.75)
