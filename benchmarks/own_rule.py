"""What an update rule of one's own costs: rows updated a second by it and by the built-in rule.

    python benchmarks/own_rule.py [--runs=5] [--short]

A table of a million rows of 16 in the store of one process. Minibatches of 10,000 rows drawn from
it are pushed by one thread: Adagrad as it is built in, and the same formula as an `UpdateRule`, in
turn. The second pair is Adam. The fastest run of each counts, medians are beside them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial

import numpy as np
from report import compare, interleave, write_results

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
)
from elasticdl.optimizers import UpdateRule
from elasticdl.optimizers.update_rule import TracedValue

ROWS, DIM, SIZE, PUSHES = 1_000_000, 16, 10_000, 200
Rule = tuple[TracedValue, Mapping[str, TracedValue]]


def adagrad(
    weight: TracedValue,
    gradient: TracedValue,
    slots: Mapping[str, TracedValue],
    step: TracedValue,
    learning_rate: TracedValue,
) -> Rule:
    """Return what Keras' Adagrad does."""
    total = slots["accumulator"] + gradient * gradient
    return weight - learning_rate * gradient / np.sqrt(total + 1e-7), {"accumulator": total}


def adam(
    weight: TracedValue,
    gradient: TracedValue,
    slots: Mapping[str, TracedValue],
    step: TracedValue,
    learning_rate: TracedValue,
) -> Rule:
    """Return what Keras' Adam does."""
    alpha = learning_rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    m = slots["momentum"] + (gradient - slots["momentum"]) * (1 - 0.9)
    v = slots["velocity"] + (gradient * gradient - slots["velocity"]) * (1 - 0.999)
    return weight - m * alpha / (np.sqrt(v) + 1e-7), {"momentum": m, "velocity": v}


def main() -> None:
    """Measure and write `benchmarks/results/own_rule.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    pairs = {
        "Adagrad": (UpdateRule(adagrad, {"accumulator": 0.1}), OptimizerSpec("adagrad")),
        "Adam": (UpdateRule(adam, {"momentum": 0.0, "velocity": 0.0}), OptimizerSpec("adam")),
    }
    rows = []
    for name, (own, built_in) in pairs.items():
        sides: dict[str, Callable[[], float]] = {
            "own": partial(rate, OptimizerSpec("own", program=own.program)),
            "built in": partial(rate, built_in),
        }
        measured = interleave(sides, 1 if args.short else args.runs)
        what = f"{name}, as a rule of one's own and built in"
        rows.append(compare(what, "rows/s", measured["own"], measured["built in"]))
    write_results("own_rule", rows, {}, keep=not args.short)


def rate(spec: OptimizerSpec) -> float:
    """Return how many rows are pulled and updated a second."""
    table = TableDescription("t", DIM, Initializer("constant", {"value": 0.1}), spec)
    client = PsClient.in_process(Store())
    nothing = np.zeros(0, np.float32)
    model = ModelDescription((table,), (), (), spec, seed=1)
    client.declare(json.dumps(asdict(model)), nothing, nothing)
    draw = np.random.default_rng(0)
    for start in range(0, ROWS, 100_000):
        client.pull([(0, np.arange(start, start + 100_000))], training=True)
    ids = [draw.choice(ROWS, SIZE, replace=False) for _ in range(20)]
    gradient = draw.normal(size=(SIZE, DIM)).astype(np.float32)
    seconds = 0.0
    for number in range(PUSHES):
        pulled = client.pull([(0, ids[number % len(ids)])], training=True)
        began = time.perf_counter()
        client.push(pulled, [gradient], nothing, nothing, 0.01, 0, 1, number, SIZE)
        seconds += time.perf_counter() - began
    return PUSHES * SIZE / seconds


if __name__ == "__main__":
    main()
