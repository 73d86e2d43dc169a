"""Exports tables, full and then changes only, and lets `ParquetRows.java` read them.

    python scripts/parquet_java.py CLASSES JARS

Exit code 0 only if Java reads the same rows as pyarrow: keys, names and every bit of the weights.
`scripts/parquet_java.sh` builds the Java part and calls this script.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.parquet

from elasticdl._core import PsClient, Store, keys_of_strings
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
)

NUM_ROWS, DIM = 100_000, 4


def train(client: PsClient, index: int, words: list[str]) -> None:
    """Make rows of words, and rows of their numbers."""
    keys = keys_of_strings(words)
    pulled = client.pull([(0, keys), (1, keys)], training=True)
    client.name_keys([(0, keys, words)])
    grads = np.random.default_rng(index).normal(size=(2, len(words), DIM)).astype(np.float32)
    nothing = np.zeros(0, np.float32)
    client.push(pulled, list(grads), nothing, nothing, 0.1, 1, 1, index, len(words))


def by_java(classes: str, jars: str, files: list[Path]) -> set[tuple[int, str, tuple[float, ...]]]:
    """Return the rows that Java reads."""
    command = ["java", "-cp", f"{classes}:{jars}", "-Dfile.encoding=UTF-8", "ParquetRows"]
    done = subprocess.run(
        [*command, *map(str, files)], check=True, capture_output=True, encoding="utf-8"
    )
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {
        (int(key), name, tuple(float(np.float32(w)) for w in weights.split(",")))
        for key, name, weights in rows
    }


def by_pyarrow(files: list[Path]) -> set[tuple[int, str, tuple[float, ...]]]:
    """Return the rows that pyarrow reads."""
    rows: set[tuple[int, str, tuple[float, ...]]] = set()
    for file in files:
        for row in pyarrow.parquet.read_table(file).to_pylist():
            rows.add((row["key"], row.get("name") or "", tuple(row["weights"])))
    return rows


def main() -> None:
    """Export, read and compare."""
    classes, jars = sys.argv[1:]
    rule = OptimizerSpec("sgd")
    uniform = Initializer("uniform", {"low": -0.05, "high": 0.05})
    tables = (
        TableDescription("word", DIM, uniform, rule, keep_names=True),
        TableDescription("number", DIM, uniform, rule),
    )
    model = ModelDescription(tables, dense=(), state=(), optimizer=rule, seed=3)
    client = PsClient.in_process(Store())
    nothing = np.zeros(0, np.float32)
    client.declare(json.dumps(asdict(model)), nothing, nothing)
    words = [f"größe {i}" for i in range(NUM_ROWS)]
    train(client, 0, words)
    train(client, 1, words[:100])
    with tempfile.TemporaryDirectory() as folder:
        for what, since, num_rows in (("full", None, NUM_ROWS), ("delta", 1, 100)):
            directory = Path(folder) / what
            request = {"directory": str(directory), "since_version": since}
            client.export(json.dumps(request))
            for table in tables:
                files = sorted((directory / table.name).glob("*.parquet"))
                expected, found = by_pyarrow(files), by_java(classes, jars, files)
                if found != expected or len(found) != num_rows:
                    sys.exit(
                        f"{what} export of table {table.name!r}: expected {num_rows} rows, pyarrow "
                        f"reads {len(expected)} and Java {len(found)}, {len(found & expected)} of "
                        "them equal"
                    )
                row = min(found)
                print(f"{what} export of table {table.name!r}: {len(found)} rows, such as {row}")


if __name__ == "__main__":
    main()
