"""Make up clicks that depend on combinations of user, site and item.

PYTHONPATH=model_zoo python -m lr.make_data --output=lr --num_records=100000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import text_tables

NUM_USERS, NUM_ITEMS, NUM_SITES = 60, 40, 10


def make(num_records: int, seed: int) -> dict[str, list[str]]:
    """Return the columns. A user, item or site alone does not predict the label."""
    tastes = np.random.default_rng(0).normal(size=(NUM_USERS, NUM_ITEMS)) * 2
    rng = np.random.default_rng(seed)
    user = rng.integers(NUM_USERS, size=num_records)
    item = rng.integers(NUM_ITEMS, size=num_records)
    clicked = rng.random(num_records) < 1 / (1 + np.exp(-tastes[user, item]))
    return {
        "user": [f"user-{k}" for k in user],
        "item": [f"item-{k}" for k in item],
        "site": [f"site-{k}" for k in rng.integers(NUM_SITES, size=num_records)],
        "hour": [str(k) for k in rng.integers(24, size=num_records)],
        "clicked": [str(int(k)) for k in clicked],
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--num_records", type=int, default=100_000)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    text_tables.write_csv(str(args.output / "train.csv"), make(args.num_records, seed=1))
    text_tables.write_csv(str(args.output / "test.csv"), make(args.num_records // 10, seed=2))


if __name__ == "__main__":
    main()
