"""Small pulls at a ps replica that answers large ones meanwhile, with small pulls alone.

    python benchmarks/small_calls.py [--short]

One replica serves a table of 1,000,000 rows of 16 in a process of its own. A client pulls 64 ids
some hundred times a second: alone, and while another process pulls 100,000 ids again and again.
The 99th percentile of a small pull beside large ones is to be at most 3 times that of one alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import numpy as np
from replica import SERVER, child, declare_table
from report import Side, asked_for_short, compare, interleave, write_results

from elasticdl._core import PsClient

ROWS, DIM, FEW, MANY = 1_000_000, 16, 64, 100_000
PAUSE_SECONDS = 0.001
CALLS = 4_000
QUANTILES = {"median": 0.5, "p99": 0.99}

LARGE = f"""
import sys
import numpy as np
from elasticdl._core import PsClient
address, token = sys.argv[1].split()
client = PsClient.connect([address], token.encode(), 2, 60.0)
random = np.random.default_rng(2)
ids = [random.choice({ROWS}, {MANY}, replace=False) for _ in range(8)]
print("ready", flush=True)
while True:
    for each in ids:
        client.pull([(0, each)], training=True)
"""
"""Pulls many ids again and again."""


def main() -> None:
    """Measure and write `results/small_calls.json`."""
    is_short = asked_for_short(__doc__)
    calls, runs = (CALLS // 8, 1) if is_short else (CALLS, 5)
    token = secrets.token_hex(16)
    with child(SERVER, token) as (address, _):
        client = PsClient.connect([address], token.encode(), 1, 60.0)
        declare_table(client, DIM)
        for ids in np.array_split(np.arange(ROWS), 100):
            client.pull([(0, ids)], training=True)
        found: dict[str, list[dict[str, float]]] = {"alone": [], "beside": []}

        def alone() -> float:
            found["alone"].append(quantiles(client, calls))
            return found["alone"][-1]["p99"]

        def beside() -> float:
            with child(LARGE, f"{address} {token}"):
                found["beside"].append(quantiles(client, calls))
            return found["beside"][-1]["p99"]

        interleave({"alone": alone, "beside": beside}, runs, higher_is_better=False)
    rows = [
        compare(
            f"{FEW} ids beside pulls of {MANY:,} against {FEW} ids alone: {name}",
            "ms",
            *(side_of(found[side], name) for side in ("beside", "alone")),
        )
        for name in QUANTILES
    ]
    write_results("small_calls", rows, {"calls": calls}, keep=not is_short)


def side_of(runs: Sequence[dict[str, float]], name: str) -> Side:
    """Return one quantile of all runs."""
    return Side(tuple(run[name] for run in runs), higher_is_better=False)


def quantiles(client: PsClient, calls: int) -> dict[str, float]:
    """Return how long small pulls take, in milliseconds."""
    random, seconds = np.random.default_rng(1), []
    for _ in range(calls):
        ids = random.choice(ROWS, FEW, replace=True)
        time.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        client.pull([(0, ids)], training=True)
        seconds.append(time.perf_counter() - began)
    return {name: float(np.quantile(seconds, at)) * 1e3 for name, at in QUANTILES.items()}


if __name__ == "__main__":
    main()
