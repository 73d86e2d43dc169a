"""Frames and bytes of a step, counted on the way between a worker's client and two replicas."""

import json
import struct
from dataclasses import asdict

import numpy as np
import pytest

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from tests.unit.ps.test_client import TOKEN
from tests.unit.recording_relay import RecordingRelay

NUM_TABLES, NUM_STEPS, MINIBATCH, NUM_DENSE = 26, 4, 512, 50_000
TABLE = Initializer("uniform", {"low": -0.05, "high": 0.05})
MODEL = ModelDescription(
    tables=tuple(
        TableDescription(f"table {number}", 16, TABLE, OptimizerSpec("sgd"))
        for number in range(NUM_TABLES)
    ),
    dense=(VariableDescription("w", (NUM_DENSE,), 0),),
    state=(),
    optimizer=OptimizerSpec("sgd"),
    seed=5,
)
PULL, PUSH, PUSH_EACH = 4, 5, 16  # crates/edl-wire/src/frame/op.rs
EMPTY = np.zeros(0, np.float32)


class Cluster:
    """Two replicas, each behind a relay that counts."""

    def __init__(self):
        self.servers = [PsServer(Store(i, 2), "127.0.0.1", 0, TOKEN) for i in range(2)]
        self.relays = [RecordingRelay(server.address) for server in self.servers]
        addresses = [relay.address for relay in self.relays]
        self.client = PsClient.connect(
            addresses, TOKEN, worker_id=0, timeout_seconds=60.0, unix_sockets=False
        )
        self.client.declare(json.dumps(asdict(MODEL)), np.zeros(NUM_DENSE, np.float32), EMPTY)
        self.client.begin_task(1, 1)
        self._before = [len(relay.heard) for relay in self.relays]

    def heard(self):
        """Return what each relay has heard of the steps: of both directions."""
        both = zip(self.relays, self._before, strict=True)
        return [relay.heard[before:] for relay, before in both]

    def num_frames(self, op):
        """Return the requests of an operation at both replicas; each has an answer."""
        header = b"EDLW" + struct.pack("<HH", 2, op)
        return sum(heard.count(header) for heard in self.heard()) / 2

    def close(self):
        del self.client
        for each in self.relays:
            each.close()
        for server in self.servers:
            server.stop()


@pytest.fixture
def cluster():
    running = Cluster()
    yield running
    running.close()


def minibatches():
    """Draw skewed ids for all tables: some in every minibatch, as categories are."""
    rng = np.random.default_rng(3)
    for _ in range(NUM_STEPS):
        ids = rng.zipf(1.2, (NUM_TABLES, MINIBATCH)) % 1_000_000
        yield list(enumerate(ids.astype(np.int64)))


def compute(cluster):
    """Pull for each minibatch; return what its push takes."""
    for sites in minibatches():
        pulled = cluster.client.pull(sites, training=True)
        grads = [np.ones_like(rows) for rows in pulled.rows]
        yield pulled, grads, np.ones(NUM_DENSE, np.float32), EMPTY


@pytest.mark.timeout(60)
def test_a_step_is_one_frame_to_each_replica_and_back_whatever_the_number_of_tables(cluster):
    for index, gradients in enumerate(compute(cluster)):
        cluster.client.push(*gradients, 0.1, 1, 1, index, MINIBATCH)
    assert cluster.num_frames(PULL) == 2 * NUM_STEPS
    assert cluster.num_frames(PUSH) == 2 * NUM_STEPS


@pytest.mark.timeout(60)
def test_minibatches_that_are_pushed_together_are_one_frame_to_each_replica(cluster):
    together = [(*gradients, MINIBATCH) for gradients in compute(cluster)]
    assert cluster.client.push_several(together, 0.1, 1, 1, 0) == (1, 0)
    assert cluster.num_frames(PULL) == 2 * NUM_STEPS
    assert cluster.num_frames(PUSH) == 2
    for audit in cluster.client.audit():
        assert audit.tolist() == [[1, NUM_STEPS, NUM_STEPS * MINIBATCH]]


@pytest.mark.timeout(60)
def test_minibatches_that_are_exchanged_together_are_a_frame_each_way_and_an_update_each(cluster):
    sites = [site for each in minibatches() for site in each]
    together = cluster.client.pull_several(sites, NUM_STEPS)
    steps = [
        (each, [np.ones_like(rows) for rows in each.rows], np.ones_like(each.dense), EMPTY, 512)
        for each in together
    ]
    updates = cluster.client.push_each(steps, [0.1] * NUM_STEPS, 1, 1, 0)
    assert updates == [(1 + index, index) for index in range(NUM_STEPS)]
    assert cluster.num_frames(PULL) == cluster.num_frames(PUSH_EACH) == 2
    for audit in cluster.client.audit():
        assert audit.tolist() == [[1, NUM_STEPS, NUM_STEPS * MINIBATCH]]


@pytest.mark.timeout(60)
def test_replicas_have_equal_shares_of_the_bytes_without_any_hint(cluster):
    for index, gradients in enumerate(compute(cluster)):
        cluster.client.push(*gradients, 0.1, 1, 1, index, MINIBATCH)
    one, other = (len(heard) for heard in cluster.heard())
    assert abs(one - other) < 0.05 * (one + other)  # each within a tenth of the other
