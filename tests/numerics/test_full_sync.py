"""Synchronous workers train as one process does on a minibatch as large as all of theirs."""

import json
import threading
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

TOKEN = bytes(32)
SIZES = (8, 5, 11)  # records of each worker's minibatch
NUM_IDS, DIM, UPDATES, RATE = 20, 3, 100, 0.05
SGD = OptimizerSpec("sgd")
MODEL = ModelDescription(
    (TableDescription("rows", DIM, Initializer("constant", {"value": 0.1}), SGD),),
    (VariableDescription("w", (DIM,), 0),),
    (),
    SGD,
    0,
)


def gradients(rows, w, y):
    """Return those of the mean of half the squared error of sum(row * w)."""
    error = (rows @ w - y) / len(y)
    return error[:, None] * w, rows.T @ error


@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_full_sync_is_sgd_on_large_minibatches(num_replicas):
    servers = [
        PsServer(Store(n, num_replicas), "127.0.0.1", 0, TOKEN, grads_to_wait=len(SIZES))
        for n in range(num_replicas)
    ]
    addresses = [server.address for server in servers]
    clients = [PsClient.connect(addresses, TOKEN, n, 30.0) for n in range(len(SIZES))]
    rng = np.random.default_rng(0)
    start = rng.normal(size=DIM).astype(np.float32)
    ids = [rng.integers(0, NUM_IDS, (UPDATES, size)) for size in SIZES]
    labels = [rng.normal(size=(UPDATES, size)) for size in SIZES]
    none = np.zeros(0, np.float32)

    def work(worker):
        client = clients[worker]
        for step in range(UPDATES):
            pulled = client.pull([(0, ids[worker][step])], True, step=(worker, 1, step))
            of_rows, of_w = gradients(pulled.rows[0], pulled.dense, labels[worker][step])
            given = ([of_rows.astype(np.float32)], of_w.astype(np.float32), none, RATE)
            client.push(pulled, *given, worker, 1, step, SIZES[worker])

    for worker, client in enumerate(clients):
        client.declare(json.dumps(asdict(MODEL)), start, none)
        client.begin_task(worker, 1)
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(len(SIZES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)

    table, w = np.full((NUM_IDS, DIM), 0.1), start.astype(np.float64)
    for step in range(UPDATES):
        all_ids = np.concatenate([each[step] for each in ids])
        of_rows, of_w = gradients(table[all_ids], w, np.concatenate([y[step] for y in labels]))
        np.subtract.at(table, all_ids, RATE * of_rows)
        w = w - RATE * of_w

    found = clients[0].pull([(0, np.arange(NUM_IDS))], False)
    assert found.version == UPDATES
    np.testing.assert_allclose(found.dense, w, atol=1e-6)
    np.testing.assert_allclose(found.rows[0], table, atol=1e-6)
    assert np.abs(w - start).max() > 0.01
    for server in servers:
        server.stop()
