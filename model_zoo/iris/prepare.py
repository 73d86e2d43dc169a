"""Write Fisher's iris as a table of SQLite, or a CSV file: every fifth flower is for testing.

    PYTHONPATH=model_zoo python -m iris.prepare --output=iris.db
    PYTHONPATH=model_zoo python -m iris.prepare --output=iris-csv

The 150 flowers come with scikit-learn.
"""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris

COLUMNS = ("id", "sepal_length", "sepal_width", "petal_length", "petal_width", "kind")
Row = tuple[int, float, float, float, float, int]


def rows() -> dict[str, list[Row]]:
    """Return the flowers of `train` and `test`, in random order (seeded)."""
    measures, kinds = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(kinds))
    flowers = [(int(k), *map(float, measures[k]), int(kinds[k])) for k in order]
    return {
        "train": [flower for place, flower in enumerate(flowers) if place % 5],
        "test": flowers[::5],
    }


def write_sqlite(path: Path) -> None:
    """Write the tables `train` and `test` of a new database."""
    with sqlite3.connect(path) as database:
        for table, flowers in rows().items():
            kinds = ["INTEGER PRIMARY KEY", *["REAL"] * 4, "INTEGER"]
            fields = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, kinds, strict=True))
            database.execute(f"CREATE TABLE {table} ({fields})")
            database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?)", flowers)
    database.close()


def write_csv(folder: Path) -> None:
    """Write `train.csv` and `test.csv` with a header."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, flowers in rows().items():
        lines = [",".join(COLUMNS), *(",".join(map(str, flower)) for flower in flowers)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="a file .db, or a folder")
    output = parser.parse_args().output
    if output.suffix == ".db":
        write_sqlite(output)
    else:
        write_csv(output)


if __name__ == "__main__":
    main()
