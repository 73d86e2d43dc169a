"""A ps replica in a separate process, for benchmarks of calls to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from elasticdl._core import PsClient

SERVER = """
import sys
from elasticdl._core import PsServer, Store
store = Store(*map(int, sys.argv[2:]))
server = PsServer(store, "127.0.0.1", 0, sys.argv[1].encode())
print(server.address, flush=True)
sys.stdin.read()
"""
"""Serves an empty store by the token that it is given, and prints where.

Of several replicas, each is also given its number and how many there are.
"""


@contextmanager
def child(program: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """Run a Python program; give the line that it prints and its pid, and end it."""
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.kill()
        process.communicate()


def declare_table(client: PsClient, dim: int) -> None:
    """Declare a model that is one table, trained by Adagrad."""
    optimizer = {"kind": "adagrad", "params": {}}
    initializer = {"kind": "uniform", "params": {"low": -0.05, "high": 0.05}}
    table = {"name": "table", "dim": dim, "initializer": initializer, "optimizer": optimizer}
    model = {"tables": [table], "dense": [], "state": [], "optimizer": optimizer, "seed": 1}
    nothing = np.zeros(0, np.float32)
    client.declare(json.dumps(model), nothing, nothing)
