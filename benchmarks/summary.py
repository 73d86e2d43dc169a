"""The ten lines of `docs/benchmarks.md`, of which `python -m benchmarks.readme` writes the table.

Among them are comparisons that we lose.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"

# What is compared, the file of its results, and the row in it.
TEN = (
    (
        "a DeepFM of Criteo's shape, 2 workers and 4 ps replicas, beside TensorFlow's "
        "`ParameterServerStrategy`",
        "store_job_512_sgd",
        "elasticdl 2 + 4 against ParameterServerStrategy",
    ),
    (
        "the same, 1 worker and 1 ps replica, beside Keras `fit` with parallel calls",
        "store_job_512_sgd",
        "elasticdl 1 + 1 against Keras fit parallel",
    ),
    (
        "the same, beside what the cores compute with everything in memory",
        "store_job_512_sgd",
        "elasticdl 2 + 4 against compute alone",
    ),
    (
        "flights, 1 worker and 1 ps replica, beside Keras `fit` from minibatches held in memory",
        "flights",
        "1 + 1 against Keras fit from memory",
    ),
    (
        "flights in PyTorch, one process, beside a plain loop",
        "torch_models",
        "PyTorch: flights, one process, against a loop with dense gradients",
    ),
    (
        "digits, a dense model, one process, beside Keras `fit`",
        "threads",
        "digits, auto, against Keras fit",
    ),
    (
        "a worker of three is killed: to the next step of the others, beside `torchrun`",
        "allreduce_recovery",
        "kill -9: to the next step of the others; of torchrun: of all",
    ),
    (
        "all-reduce of 100 MB between 4 ranks over TCP, beside gloo",
        "allreduce",
        "4 ranks, 100 MB: TCP (gloo)",
    ),
    (
        "reading record files, beside TensorFlow's TFRecord",
        "recordio",
        "read RecordIO, against TFRecord as tensors",
    ),
    (
        "the master's leases with a journal in SQLite, beside two bare INSERTs",
        "ledger",
        "lease + report, journal in SQLite, against two bare INSERTs",
    ),
)


def summary(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the ten lines as Markdown.

    Raises:
        KeyError: There is no such row.
    """
    from benchmarks.readme import figure, times  # which imports this module

    lines = ["| what, beside what | ours | theirs | ratio |", "|---|---|---|---|"]
    for words, name, what in TEN:
        rows = {row["what"]: row for row in documents[name]["rows"]}
        row = rows[what]
        ours, theirs = (figure(row["best"][side]) for side in ("ours", "peer"))
        lines.append(f"| {words} | {ours} | {theirs} {row['unit']} | **{times(row['ratio'])}** |")
    return "\n".join(lines)
