"""A job of two ps replicas in this process, whose export goes on."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from elasticdl.checkpoints.remote import Sender
from elasticdl.layers import Expiry
from elasticdl.packages.serving.publishing import write_program

DIM, KEYS = 3, 500
NOTHING = np.zeros(0, np.float32)


def describe():
    uniform, rule = Initializer("uniform", {"low": -0.05, "high": 0.15}), OptimizerSpec("adagrad")
    expiry = asdict(Expiry(steps=6))
    tables = (
        TableDescription("word/é", DIM, uniform, rule, expiry=expiry),
        TableDescription("number", 1, uniform, rule),
    )
    dense = (VariableDescription("w", (20,), 0),)
    return ModelDescription(tables, dense, (), rule, seed=3)


class Job:
    """Two replicas of a job, in this process."""

    def __init__(self, scratch):
        self._scratch = scratch
        self.stores = [Store(r, 2) for r in range(2)]
        self.servers = []
        self.task = 0
        self.serve()

    def serve(self):
        self.close()
        self.servers = [
            PsServer(store, "127.0.0.1", 0, b"token", far=Sender(self._scratch / str(number)))
            for number, store in enumerate(self.stores)
        ]
        addresses = [server.address for server in self.servers]
        self.client = PsClient.connect(addresses, b"token", 0, 30)
        self.client.declare(json.dumps(asdict(describe())), np.zeros(20, np.float32), NOTHING)

    def close(self):
        for server in self.servers:
            server.stop()

    def update(self, rng, keys):
        """Train a minibatch; a pull creates rows of some more keys."""
        self.task += 1
        keys = np.unique(keys)
        self.client.pull([(1, rng.integers(0, KEYS, 5))], training=True)
        pulled = self.client.pull([(0, keys), (1, keys)], training=True)
        grads = [rng.normal(size=rows.shape).astype(np.float32) for rows in pulled.rows]
        dense = rng.normal(size=20).astype(np.float32)
        self.client.push(pulled, grads, dense, NOTHING, 0.1, self.task, 1, 0, len(keys))

    def expire(self):
        self.client.expire(0)

    def lose(self, number, folder):
        """Have a replica end and come back from a checkpoint."""
        self.stores[number] = Store.restore(str(folder), number, 2)
        self.serve()

    def rows(self, table):
        """What the replicas hold, by id."""
        found = {}
        for keys, rows in self.client.scan(table):
            found |= {k: r.tobytes() for k, r in zip(keys.tolist(), rows, strict=True)}
        return found


def served(version):
    """What a version has, by table and id."""
    found = []
    for number, table in enumerate(version.manifest.tables):
        ids = version.tables.ids(number)
        out = np.zeros((len(ids), table["dim"]), np.float32)
        version.tables.look_up(number, ids, 0.0, out)
        found.append({k: r.tobytes() for k, r in zip(ids.tolist(), out, strict=True)})
    return found


def program_at(directory, content="x"):
    """Write a program into an export; of each one it is the same."""
    return write_program(directory, lambda folder: (folder / "file").write_text(content))


with tempfile.TemporaryDirectory() as scratch:
    PROGRAM = program_at(Path(scratch))


def publish(publisher, job, program=PROGRAM):
    return publisher.publish(job.task, program, job.client.export)
