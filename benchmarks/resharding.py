"""How long steps wait while the model moves: 2 -> 3 -> 1 ps replicas, against the usual gap.

    python benchmarks/resharding.py [--rows=10_000_000] [--short]

A table of dim 16 trained by Adagrad, on ps replicas in processes of their own; one worker pulls and
pushes minibatches of 4,096 keys without a pause; the moves are led from another process, as a
master does, with its checkpoint. What is compared is the longest time between the ends of two
steps: within each move, and within as long a time before it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from replica import child, declare_table
from report import Row, write_results

from elasticdl._core import PsClient
from elasticdl.master.actions import PrepareMove, Seated, TellMoved
from elasticdl.master.moving import Mover

TOKEN, DIM, BATCH = "a token of this benchmark", 16, 4_096
SERVER = """
import json, sys
from elasticdl._core import PsServer, Store
token, replica, count, awaits = json.loads(sys.argv[1])
store = Store(replica, count)
server = PsServer(store, "127.0.0.1", 0, token.encode(), awaits_move=awaits)
del store
print(server.address, flush=True)
sys.stdin.read()
"""
STARTS = [(0, 2, False), (1, 2, False), (2, 3, True)]
FILL = 100_000  # rows of a push that makes them


def connect(address: str) -> PsClient:
    """Reach one replica, as a master does."""
    return PsClient.connect([address], TOKEN.encode(), -1, 60.0, whole_job=False)


def lead(layout: int, now: list[str], after: list[str], folder: str) -> None:
    """Lead a move, in a process of its own."""
    import logging

    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

    def write(parts) -> None:  # type: ignore[no-untyped-def]
        where = Path(folder) / str(layout)
        where.mkdir()
        parts(where)

    def seated(addresses: list[str]) -> tuple[Seated, ...]:
        return tuple(Seated(index, "", address) for index, address in enumerate(addresses))

    mover = Mover(connect)
    mover.prepare(PrepareMove(layout, 0, seated(now), seated(after)), write, lambda *_: None)
    whom = seated(max(now, after, key=len))
    assert mover.tell(TellMoved(layout, len(after), whom, tuple(after)))


class Worker(threading.Thread):
    """Pulls and pushes; notes when each step ended."""

    def __init__(self, client: PsClient, rows: int) -> None:
        super().__init__(daemon=True)
        self._client, self._rows = client, rows
        self.ends: list[float] = []
        self.is_over = False

    def run(self) -> None:
        """Train until `is_over`."""
        rng, nothing, index = np.random.default_rng(0), np.zeros(0, np.float32), 0
        self._client.begin_task(1, 1)
        while not self.is_over:
            ids = rng.integers(0, self._rows, BATCH)
            pulled = self._client.pull([(0, ids)], training=True)
            gradients = [np.ones_like(rows) for rows in pulled.rows]
            self._client.push(pulled, gradients, nothing, nothing, 0.01, 1, 1, index, BATCH)
            index += 1
            self.ends.append(time.monotonic())

    def longest(self, began: float, ended: float) -> float:
        """Return the longest time between two ends, in seconds, of those within a time."""
        ends = np.array(self.ends)
        ends = ends[(ends >= began) & (ends <= ended)]
        return float(np.diff(ends).max())


def fill(client: PsClient, rows: int) -> None:
    """Make all rows."""
    nothing = np.zeros(0, np.float32)
    client.begin_task(0, 1)
    for index, first in enumerate(range(0, rows, FILL)):
        ids = np.arange(first, min(first + FILL, rows))
        pulled = client.pull([(0, ids)], training=True)
        gradients = [np.ones_like(made) for made in pulled.rows]
        client.push(pulled, gradients, nothing, nothing, 0.01, 0, 1, index, len(ids))


def measure(rows: int, folder: Path) -> list[Row]:
    """Move twice under load; return the longest gaps."""
    found = []
    with ExitStack() as stack:
        starts = [json.dumps([TOKEN, *start]) for start in STARTS]
        addresses = [stack.enter_context(child(SERVER, start))[0] for start in starts]
        client = PsClient.connect(addresses[:2], TOKEN.encode(), 0, 600.0)
        declare_table(client, DIM)
        fill(client, rows)
        worker = Worker(client, rows)
        worker.start()
        orders = [("2 to 3", addresses[:2], addresses), ("3 to 1", addresses, addresses[:1])]
        for layout, (what, now, after) in enumerate(orders, 1):
            began = time.monotonic()
            process = multiprocessing.get_context("spawn").Process(
                target=lead, args=(layout, now, after, str(folder))
            )
            process.start()
            process.join()
            assert process.exitcode == 0, what
            ended = time.monotonic()
            lasted = ended - began
            time.sleep(lasted)
            moving = worker.longest(began, ended)
            usual = worker.longest(ended + 0.5, ended + lasted)
            print(f"{what}: {lasted:.1f} s, longest gap {moving:.3f} s, usual {usual:.3f} s")
            found.append(gap_row(f"longest gap, {what} replicas, {rows:,} rows", moving, usual))
        worker.is_over = True
        worker.join()
        (audit,) = client.audit()
        assert dict(audit[:, :2].tolist())[1] == len(worker.ends)
    return found


def gap_row(what: str, moving: float, usual: float) -> Row:
    """Return a line of the report."""
    both = {"ours": moving, "peer": usual}
    runs = {"ours": [moving], "peer": [usual]}
    return Row(what, moving, usual, "s", usual / moving, both, both, runs)


def main() -> None:
    """Measure and write `benchmarks/results/resharding.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--short", action="store_true", help="fewer rows, not kept")
    args = parser.parse_args()
    rows = min(args.rows, 200_000) if args.short else args.rows
    with tempfile.TemporaryDirectory() as folder:
        found = measure(rows, Path(folder))
    write_results("resharding", found, {}, keep=not args.short)


if __name__ == "__main__":
    main()
