"""A ps replica with many connections: its threads, its memory, and the time of calls.

    python benchmarks/connections.py [--clients=1000] [--short]

One replica serves a table of 100,000 rows of 16 by TCP. All clients are in one other process, each
with its own `PsClient`. Eight threads take turns over the clients. So each connection is used from
time to time, as if each client were one of many workers. A client pulls 512 ids and pushes their
gradients. The other side has only eight clients with the same calls.

The results are the replica's threads and resident memory, and the median and 99th percentile of a
call.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from replica import SERVER, child, declare_table
from report import Row, Side, compare, write_results

from elasticdl._core import PsClient

ROWS, DIM, IDS = 100_000, 16, 512
THREADS = 8
CALLS = 20_000


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
    token = secrets.token_hex(16)
    with child(SERVER, token) as (address, pid):
        clients = [
            PsClient.connect([address], token.encode(), number, 60.0, unix_sockets=False)
            for number in range(num_clients)
        ]
        declare_table(clients[0], DIM)
        for ids in np.array_split(np.arange(ROWS), 10):
            clients[0].pull([(0, ids)], training=True)
        each = calls // THREADS
        with ThreadPoolExecutor(THREADS) as pool:
            parts = [(clients[at::THREADS], at, each) for at in range(THREADS)]
            seconds = np.concatenate(list(pool.map(lambda part: work(*part), parts)))
        status = Path(f"/proc/{pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        return {
            "threads": float(lines["Threads"]),
            "memory": float(lines["VmRSS"].split()[0]) / 1e3,
            "median": float(np.median(seconds)) * 1e3,
            "p99": float(np.quantile(seconds, 0.99)) * 1e3,
        }


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
