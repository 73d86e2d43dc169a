"""The processor time of small frames: what a minibatch costs for each ps replica that it goes to.

    python benchmarks/frames.py [--short]

The replicas are pinned to one core and the client to another. A frame is a pull or a push of 50
keys of dim 8, by TCP. The replica's processor time is measured with 8 and with 1,000 connections.
For the client's, the same 800 keys go to one replica, and to 16. The time of 800 keys in one frame
says what a key costs, so that the rest is the frame's.

For `--exchange_minibatches` it counts the keys of several minibatches together, beside those of
each one: records of Criteo's shape, as `model_zoo/criteo` makes them, 512 a minibatch.

`elasticdl simulate` takes its costs of a frame from here (`packages/simulate/published.py`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from replica import SERVER, child, declare_table
from report import Row, Side, asked_for_short, compare, write_results

from elasticdl._core import PsClient

sys.path.insert(0, str(Path(__file__).parents[1] / "model_zoo"))
from criteo.fields import SIZES
from criteo.prepare import zipf_ranks

ROWS, DIM, KEYS, MANY_KEYS = 100_000, 8, 50, 800
CONNECTIONS = (8, 1_000)
REPLICAS = 16
THREADS = 8
CALLS, RUNS = 40_000, 3
MERGED = (2, 4, 8, 16)
RECORDS = 512


def main() -> None:
    """Measure and write `benchmarks/results/frames.json`."""
    is_short = asked_for_short(__doc__)
    calls, runs = (CALLS // 10, 1) if is_short else (CALLS, RUNS)
    rows = [
        row(f"replica, a frame of {keys} keys, {num:,} connections", "us", found)
        for num in CONNECTIONS
        for keys in (KEYS, MANY_KEYS)
        for found in [[of_replica(num, keys, calls) for _ in range(runs)]]
    ]
    rows += [
        row(f"client, {MANY_KEYS} keys to {num} replica{'s' * (num > 1)}, a call", "us", found)
        for num in (1, REPLICAS)
        for found in [[of_client(num, calls // num) for _ in range(runs)]]
    ]
    rows += [
        row(f"keys of {num} minibatches together, beside each alone", "%", [100 * kept(num)])
        for num in MERGED
    ]
    write_results("frames", rows, {"calls": calls, "dim": DIM}, keep=not is_short)


def row(what: str, unit: str, found: list[float]) -> Row:
    """Make a row without a peer; the least is best."""
    print(f"  {what}: {', '.join(f'{figure:.1f}' for figure in found)} {unit}", file=sys.stderr)
    return compare(what, unit, Side(tuple(found), higher_is_better=False))


def of_replica(num_clients: int, keys: int, calls: int) -> float:
    """Return the microseconds of a replica's processor for a frame, with so many connections."""
    with replicas(1) as (addresses, pids):
        clients = [connect(addresses, number) for number in range(num_clients)]
        fill(clients[0])
        parts = [(clients[at::THREADS], at, keys, calls // 2 // THREADS) for at in range(THREADS)]
        for client in clients:  # the first calls of a connection cost more
            work([client], THREADS, keys, 1)
        before = processor_seconds(pids[0])
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda part: work(*part), parts))
        num_frames = 2 * THREADS * (calls // 2 // THREADS)
        return 1e6 * (processor_seconds(pids[0]) - before) / num_frames


def of_client(num_replicas: int, calls: int) -> float:
    """Return the microseconds of a client's processor for a call to so many replicas."""
    with replicas(num_replicas) as (addresses, _):
        client = connect(addresses, 0)
        fill(client)
        before = time.process_time()
        work([client], 0, MANY_KEYS, calls // 2)
        return 1e6 * (time.process_time() - before) / (2 * (calls // 2))


@contextlib.contextmanager
def replicas(count: int):  # type: ignore[no-untyped-def]
    """Run replicas on one core, with this process on another; give their addresses and pids."""
    cores = sorted(os.sched_getaffinity(0))
    token = TOKEN.decode()
    with contextlib.ExitStack() as ends:
        os.sched_setaffinity(0, cores[:1])  # a child keeps its parent's
        try:
            found = [
                ends.enter_context(child(SERVER, token, str(number), str(count)))
                for number in range(count)
            ]
        finally:
            os.sched_setaffinity(0, cores)
        os.sched_setaffinity(0, cores[-1:])
        try:
            yield [address for address, _ in found], [pid for _, pid in found]
        finally:
            os.sched_setaffinity(0, cores)


def connect(addresses: list[str], number: int) -> PsClient:
    """Connect a worker to replicas by TCP."""
    return PsClient.connect(addresses, TOKEN, number, 60.0, unix_sockets=False)


def fill(client: PsClient) -> None:
    """Declare a table, and create its rows."""
    declare_table(client, DIM)
    for ids in np.array_split(np.arange(ROWS), 10):
        client.pull([(0, ids)], training=True)


def work(clients: list[PsClient], task: int, keys: int, count: int) -> None:
    """Pull and push so often, by one client after the other."""
    random = np.random.default_rng(task)
    batches = [random.choice(ROWS, keys, replace=False) for _ in range(64)]
    gradient, nothing = np.full((keys, DIM), 0.01, np.float32), np.zeros(0, np.float32)
    clients[0].begin_task(task, 1)
    for index in range(count):
        client = clients[index % len(clients)]
        pulled = client.pull([(0, batches[index % len(batches)])], training=True)
        client.push(pulled, [gradient], nothing, nothing, 0.01, task, 1, index, keys)


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, as the scheduler counts it."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def kept(num: int) -> float:
    """Return the keys of so many minibatches together, beside the sum of the keys of each."""
    random = np.random.default_rng(0)
    together = apart = 0
    for size in SIZES:
        ranks: NDArray[np.int64] = zipf_ranks(random, size, 8 * num * RECORDS).reshape(8, num, -1)
        together += sum(len(np.unique(group)) for group in ranks)
        apart += sum(len(np.unique(batch)) for group in ranks for batch in group)
    return together / apart


TOKEN = secrets.token_hex(16).encode()


if __name__ == "__main__":
    main()
