"""A table that is four times as large as its memory, beside all of it in memory, and RocksDB.

    pip install --target /tmp/rocksdict rocksdict
    PYTHONPATH=/tmp/rocksdict python benchmarks/ps_disk.py [--runs=3] [--rows=1000000] [--short]

The table has rows of 64 numbers with Adagrad, 512 bytes. All rows are there before the first run. A
step is a minibatch of 512 records with 26 ids each, by a zipf law of exponent 1.05 over all rows:
their rows are pulled and updated in the store of one process, by one thread.

- In memory: `Store()`.
- On disk: `Store(disk=(folder, a quarter of the bytes that the first one takes))`.
- RocksDB: unique ids by one `multi_get`, the update in NumPy, one write batch. Its block cache and
  two write buffers have the same quarter; ten bits of a Bloom filter a key, no compression (floats
  have none to give) and no log before the write, since a replica is restored from checkpoints.

Once alone, and once with a tower of two layers (1664 x 64 x 1) forward and backward between pull
and push, which is what a worker does meanwhile. The files are read through the system's page cache
on all sides. Without `rocksdict` that side is left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import cycle
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from report import compare, interleave, write_results

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
)

DIM, RECORDS, FIELDS, HIDDEN = 64, 512, 26, 64
EXPONENT, LEARNING_RATE, EPSILON = 1.05, 0.01, 1e-7
POOL = 200  # minibatches that are drawn
NOTHING = np.zeros(0, np.float32)
Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Step = Callable[[Ids, Callable[[Floats], Floats]], None]


def main() -> None:
    """Measure and write `benchmarks/results/ps_disk.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    parser.add_argument("--short", action="store_true", help="one short run of each, not kept")
    args = parser.parse_args()
    if args.short:
        args.runs, args.rows, args.seconds = 1, 100_000, 2.0
    batches = drawn(args.rows)
    with tempfile.TemporaryDirectory(prefix="ps-disk-", ignore_cleanup_errors=True) as folder:
        memory = Store()
        steps: dict[str, Step] = {"in memory": of_store(memory, args.rows)}
        taken = json.loads(memory.stats())["tables"][0]["bytes"]
        disk = Store(disk=(os.path.join(folder, "rows"), taken // 4))
        steps["on disk"] = of_store(disk, args.rows)
        if (rocksdb := of_rocksdb(os.path.join(folder, "rocksdb"), args.rows, taken // 4)) is None:
            print("without RocksDB: rocksdict is not installed")
        else:
            steps["RocksDB"] = rocksdb
        rows = []
        for words, compute in {"alone": same, "with a tower": Tower()}.items():
            pools = {name: cycle(batches) for name in steps}
            sides = {
                name: partial(rate, step, pools[name], compute, args.seconds)
                for name, step in steps.items()
            }
            for side in sides.values():
                side()  # what is used often has come to memory
            measured = interleave(sides, args.runs)
            ours = measured["on disk"]
            rows.append(compare(f"steps {words}: memory", "records/s", ours, measured["in memory"]))
            if "RocksDB" in measured:
                rows.append(
                    compare(f"steps {words}: RocksDB", "records/s", ours, measured["RocksDB"])
                )
        stats = json.loads(disk.stats())["tables"][0]
    notes = {
        "rows": args.rows,
        "bytes_of_table": taken,
        "memory_limit": taken // 4,
        "of_the_store_on_disk": stats,
        "rows_read_of_keys_pulled": round(stats["disk_reads"] / stats["pulled"], 3),
        "targets": {"against memory": 0.5, "against RocksDB": 3.0},
    }
    print(json.dumps(notes, indent=1))
    write_results("ps_disk", rows, notes, keep=not args.short)


def drawn(num_rows: int) -> list[Ids]:
    """Draw minibatches of ids."""
    draw = np.random.default_rng(0)
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -EXPONENT
    ends = np.cumsum(weights / weights.sum())
    names = draw.permutation(num_rows)
    return [
        names[np.minimum(np.searchsorted(ends, draw.random((RECORDS, FIELDS))), num_rows - 1)]
        for _ in range(POOL)
    ]


def rate(
    step: Step, batches: Iterator[Ids], compute: Callable[[Floats], Floats], seconds: float
) -> float:
    """Return how many records are trained a second."""
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        step(next(batches), compute)
        count += RECORDS
    return count / passed


def same(rows: Floats) -> Floats:
    """Return a gradient without computing one."""
    return rows


class Tower:
    """Two layers, forward and backward."""

    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        self._first = draw.normal(size=(FIELDS * DIM, HIDDEN)).astype(np.float32) / 40
        self._last = draw.normal(size=(HIDDEN, 1)).astype(np.float32) / 8

    def __call__(self, rows: Floats) -> Floats:
        """Return the gradient of rows (records * fields, dim)."""
        inputs = rows.reshape(RECORDS, FIELDS * DIM)
        hidden = np.maximum(inputs @ self._first, 0)
        error = (1 / (1 + np.exp(-(hidden @ self._last))) - 0.5) / RECORDS
        of_hidden = (error @ self._last.T) * (hidden > 0)
        self._last -= LEARNING_RATE * (hidden.T @ error)
        self._first -= LEARNING_RATE * (inputs.T @ of_hidden)
        return (of_hidden @ self._first.T).reshape(-1, DIM)


def of_store(store: Store, num_rows: int) -> Step:
    """Return what trains on a store, which has all rows then."""
    spec = OptimizerSpec("adagrad")
    initializer = Initializer("uniform", {"low": -0.05, "high": 0.05})
    table = TableDescription("t", DIM, initializer, spec)
    client = PsClient.in_process(store)
    model = ModelDescription((table,), (), (), spec, seed=1)
    client.declare(json.dumps(asdict(model)), NOTHING, NOTHING)
    for start in range(0, num_rows, 10_000):
        ids = np.arange(start, min(start + 10_000, num_rows))
        client.pull([(0, ids)], training=True)
    index = 0

    def step(ids: Ids, compute: Callable[[Floats], Floats]) -> None:
        nonlocal index
        pulled = client.pull([(0, ids.ravel())], training=True)
        gradient = compute(pulled.rows[0])
        client.push(pulled, [gradient], NOTHING, NOTHING, LEARNING_RATE, 0, 1, index, RECORDS)
        index += 1

    return step


def of_rocksdb(folder: str, num_rows: int, memory: int) -> Step | None:
    """Return what trains on RocksDB, which has all rows then; None if it is not installed."""
    try:
        rocks: Any = importlib.import_module("rocksdict")
    except ImportError:
        return None
    options = rocks.Options(raw_mode=True)
    blocks = rocks.BlockBasedOptions()
    buffer = min(memory // 8, 64 << 20)
    blocks.set_block_cache(rocks.Cache(memory - 2 * buffer))
    blocks.set_bloom_filter(10, False)
    blocks.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(buffer)
    options.set_max_write_buffer_number(2)
    options.set_compression_type(rocks.DBCompressionType.none())
    options.create_if_missing(True)
    database = rocks.Rdict(folder, options)
    unlogged = rocks.WriteOptions()
    unlogged.disable_wal = True

    def write(ids: Ids, rows: Floats) -> None:
        batch = rocks.WriteBatch(raw_mode=True)
        keys, values = ids.astype(">i8").tobytes(), rows.tobytes()
        width = rows.shape[1] * 4
        for at in range(len(ids)):
            batch.put(keys[8 * at : 8 * at + 8], values[width * at : width * (at + 1)])
        database.write(batch, unlogged)

    draw = np.random.default_rng(0)
    for start in range(0, num_rows, 10_000):
        ids = np.arange(start, min(start + 10_000, num_rows))
        rows = np.full((len(ids), 2 * DIM), 0.1, np.float32)
        rows[:, :DIM] = draw.uniform(-0.05, 0.05, (len(ids), DIM))
        write(ids, rows)
    database.flush()

    def step(ids: Ids, compute: Callable[[Floats], Floats]) -> None:
        order = np.argsort(ids, axis=None)
        unique, starts, places = np.unique(
            ids.ravel()[order], return_index=True, return_inverse=True
        )
        keys = unique.astype(">i8").tobytes()
        found = database.get([keys[at : at + 8] for at in range(0, len(keys), 8)])
        rows = np.frombuffer(b"".join(found), np.float32).reshape(-1, 2 * DIM).copy()
        of_ids = np.empty((len(order), DIM), np.float32)
        of_ids[order] = rows[places, :DIM]
        summed = np.add.reduceat(compute(of_ids)[order], starts)
        rows[:, DIM:] += summed * summed
        rows[:, :DIM] -= LEARNING_RATE * summed / np.sqrt(rows[:, DIM:] + EPSILON)
        write(unique, rows)

    return step


if __name__ == "__main__":
    main()
