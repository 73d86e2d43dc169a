"""Make up clicks of users who like some kinds of items, as CSV files.

PYTHONPATH=model_zoo python -m clicks.make_data --output=demo/clicks
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

NUM_USERS, NUM_ITEMS, NUM_TASTES = 500, 200, 4
HEADER = "user,item,clicked"


def make_clicks(num_records: int, seed: int) -> list[str]:
    """Return lines `user,item,clicked`; the tastes behind them are the same for every seed."""
    tastes = np.random.default_rng(0)
    users = tastes.normal(size=(NUM_USERS, NUM_TASTES))
    items = tastes.normal(size=(NUM_ITEMS, NUM_TASTES))
    random = np.random.default_rng([1, seed])
    user, item = (random.integers(n, size=num_records) for n in (NUM_USERS, NUM_ITEMS))
    chance = 1 / (1 + np.exp(-2 * np.sum(users[user] * items[item], axis=1)))
    clicked = (random.random(num_records) < chance).astype(int)
    return [f"{u},{i},{c}" for u, i, c in zip(user, item, clicked, strict=True)]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo/clicks"))
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, num_records) in enumerate({"train": 100_000, "test": 20_000}.items()):
        lines = [HEADER, *make_clicks(num_records, seed)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    print(f"wrote train.csv and test.csv to {folder}")


if __name__ == "__main__":
    main()
