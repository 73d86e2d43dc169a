"""Make up users with few interests, their histories, and the items that they see.

    PYTHONPATH=model_zoo python -m din.make_data --output=din --num_records=100000

An item belongs to a category. A user looks mostly at items of two categories. The chance of a click
depends on the share of that item's category in the history, and not on the category itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import text_tables

NUM_CATEGORIES, ITEMS_OF_EACH, MAX_LENGTH = 10, 20, 12


def make(num_records: int, seed: int) -> dict[str, list[str]]:
    """Return the columns; some histories are empty."""
    rng = np.random.default_rng(seed)
    names = ("item", "category", "items", "categories", "clicked")
    columns: dict[str, list[str]] = {name: [] for name in names}
    for _ in range(num_records):
        interests = rng.choice(NUM_CATEGORIES, 2, replace=False)
        past = rng.choice(interests, rng.integers(MAX_LENGTH + 1))
        shown = rng.choice(interests) if rng.random() < 0.5 else rng.integers(NUM_CATEGORIES)
        logit = 4.0 * (past == shown).mean() - 1.0 if len(past) else -1.0
        items = [category * ITEMS_OF_EACH + rng.integers(ITEMS_OF_EACH) + 1 for category in past]
        columns["item"].append(str(shown * ITEMS_OF_EACH + rng.integers(ITEMS_OF_EACH) + 1))
        columns["category"].append(str(shown + 1))
        columns["items"].append("|".join(map(str, items)))
        columns["categories"].append("|".join(str(category + 1) for category in past))
        columns["clicked"].append(str(int(rng.random() < 1 / (1 + np.exp(-logit)))))
    return columns


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
