"""A ps replica with many connections: its threads, its memory, and how long calls take.

    python benchmarks/connections.py [--clients=1000] [--short]

One replica serves a table of 100,000 rows of 16, by TCP, as over a network. All clients are in one
other process, each with its own `PsClient`, in eight threads that take turns over them, so that
each connection is used now and then, as that of one of many workers. Each client in turn pulls 512
ids and pushes their gradients. The same calls are made by eight clients alone: the other side.

Counted are the replica's threads and resident memory, and the median and 99th percentile of a call.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from report import Row, Side, compare, write_results

from elasticdl._core import PsClient

ROWS, DIM, IDS = 100_000, 16, 512
THREADS = 8
CALLS = 20_000
_SERVER = """
import sys
from elasticdl._core import PsServer, Store
server = PsServer(Store(), "127.0.0.1", 0, sys.argv[1].encode())
print(server.address, flush=True)
sys.stdin.read()
"""


def main() -> None:
    """Measure and write `benchmarks/results/connections.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--short", action="store_true", help="a tenth of the calls, not kept")
    args = parser.parse_args()
    calls = CALLS // 10 if args.short else CALLS
    few, many = (measure(number, calls) for number in (THREADS, args.clients))
    what = f"{args.clients:,} clients against {THREADS}"
    rows: list[Row] = []
    for name, unit in (("threads", ""), ("memory", "MB"), ("median", "ms"), ("p99", "ms")):
        sides = (Side((found[name],), higher_is_better=False) for found in (many, few))
        rows.append(compare(f"{what}: {name}", unit, *sides))
    write_results("connections", rows, {"calls": calls}, keep=not args.short)


def measure(num_clients: int, calls: int) -> dict[str, float]:
    """Return what a replica with so many clients takes, and how long their calls do."""
    token = secrets.token_hex(16).encode()
    with replica(token) as (address, process):
        clients = [
            PsClient.connect([address], token, number, 60.0, unix_sockets=False)
            for number in range(num_clients)
        ]
        declare(clients[0])
        each = calls // THREADS
        with ThreadPoolExecutor(THREADS) as pool:
            parts = [(clients[at::THREADS], at, each) for at in range(THREADS)]
            seconds = np.concatenate(list(pool.map(lambda part: work(*part), parts)))
        status = Path(f"/proc/{process.pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        return {
            "threads": float(lines["Threads"]),
            "memory": float(lines["VmRSS"].split()[0]) / 1e3,
            "median": float(np.median(seconds)) * 1e3,
            "p99": float(np.quantile(seconds, 0.99)) * 1e3,
        }


@contextmanager
def replica(token: bytes) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve an empty store in a process; give its address."""
    command = [sys.executable, "-c", _SERVER, token.decode()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def declare(client: PsClient) -> None:
    """Declare a table and make its rows."""
    optimizer = {"kind": "adagrad", "params": {}}
    initializer = {"kind": "uniform", "params": {"low": -0.05, "high": 0.05}}
    table = {"name": "table", "dim": DIM, "initializer": initializer, "optimizer": optimizer}
    model = {"tables": [table], "dense": [], "state": [], "optimizer": optimizer, "seed": 1}
    nothing = np.zeros(0, np.float32)
    client.declare(json.dumps(model), nothing, nothing)
    for ids in np.array_split(np.arange(ROWS), 10):
        client.pull([(0, ids)], training=True)


def work(clients: list[PsClient], task: int, calls: int) -> list[float]:
    """Pull and push by one client after the other; return the seconds of each call."""
    random = np.random.default_rng(task)
    gradient, nothing = np.full((IDS, DIM), 0.01, np.float32), np.zeros(0, np.float32)
    clients[0].begin_task(task, 1)
    seconds: list[float] = []

    def timed(call: Callable[[], object]) -> object:
        began = time.perf_counter()
        answer = call()
        seconds.append(time.perf_counter() - began)
        return answer

    for index in range(calls // 2):
        client = clients[index % len(clients)]
        ids = random.choice(ROWS, IDS, replace=False)
        pulled = timed(lambda c=client, i=ids: c.pull([(0, i)], training=True))
        timed(
            lambda c=client, p=pulled, n=index: c.push(
                p, [gradient], nothing, nothing, 0.01, task, 1, n, IDS
            )
        )
    return seconds


if __name__ == "__main__":
    main()
