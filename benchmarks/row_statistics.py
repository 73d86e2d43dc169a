"""What statistics beside rows cost: ids pulled and pushed a second with them and without.

    python benchmarks/row_statistics.py [--runs=5] [--short]

A table of a million rows of 16, updated by Adagrad in the store of one process, where nothing but
the store and its client takes time: the step of a model does not count. Minibatches of 512 records
with 26 ids each, zipf 1.05, are pulled and pushed by one thread, whose processor time is measured;
then the same with two statistics of each id. The fastest run of each counts, medians are beside
them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np
from report import compare, interleave, write_results

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import (
    Initializer,
    KeptStatistics,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
)
from elasticdl.layers.row_statistics import RowStatistics

ROWS, DIM, IDS, STEPS = 1_000_000, 16, 512 * 26, 300


def main() -> None:
    """Measure and write `benchmarks/results/row_statistics.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    sides: dict[str, Callable[[], float]] = {
        "with": partial(rate, RowStatistics(decay=0.98, decay_steps=100)),
        "without": partial(rate, None),
    }
    measured = interleave(sides, 1 if args.short else args.runs)
    what = "pull and push of 16 floats, with two statistics of each id and without"
    rows = [compare(what, "ids/s", measured["with"], measured["without"])]
    write_results("row_statistics", rows, {}, keep=not args.short)


def rate(kept: RowStatistics | None) -> float:
    """Return how many ids are pulled and pushed in a second of the processor."""
    adagrad = OptimizerSpec("adagrad")
    tables = [TableDescription("t", DIM, Initializer("constant", {"value": 0.1}), adagrad)]
    if kept is not None:
        beside = KeptStatistics(1, kept)
        tables.append(TableDescription.of_statistics("t_statistics", beside, None))
    client = PsClient.in_process(Store())
    nothing = np.zeros(0, np.float32)
    model = ModelDescription(tuple(tables), (), (), adagrad, seed=1)
    client.declare(json.dumps(asdict(model)), nothing, nothing)
    draw = np.random.default_rng(0)
    batches = [draw.zipf(1.05, IDS).astype(np.int64) % ROWS for _ in range(50)]
    gradients = [draw.normal(size=(IDS, DIM)).astype(np.float32)]
    if kept is not None:
        gradients.append(np.ones((IDS, kept.table_dim), np.float32))
    seconds = 0.0
    for number in range(STEPS + len(batches)):
        if kept is not None:
            gradients[1][:, -1] = number // kept.decay_steps
        ids = batches[number % len(batches)]
        began = time.process_time()
        sites = [(table, ids) for table in range(len(tables))]
        pulled = client.pull(sites, training=True)
        client.push(pulled, gradients, nothing, nothing, 0.01, 0, 1, number, 512)
        if number >= len(batches):  # until then rows are created
            seconds += time.process_time() - began
    return STEPS * IDS / seconds


if __name__ == "__main__":
    main()
