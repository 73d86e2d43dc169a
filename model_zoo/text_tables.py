"""Reads and writes tables of text, and makes up tables with a signal to learn."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

Kind = Sequence[str] | tuple[float, float]


def make_columns(
    kinds: Mapping[str, Kind], num_records: int, seed: int, share_positive: float = 0.25
) -> tuple[dict[str, list[str]], NDArray[np.bool_]]:
    """Draw a table of words and a label for each record.

    Every second column has an effect on the label. Each word of a category adds its own number to
    the log odds. A number adds its distance from the middle of its range.

    Args:
        kinds: For each column the words of a category, or (lowest, highest) of whole numbers.
        num_records: The number of records.
        seed: Two equal calls give equal tables.
        share_positive: The approximate share of positive records.

    Returns:
        The columns as words, and the label.
    """
    rng = np.random.default_rng(seed)
    effects = np.random.default_rng(0)  # the same for training and validation
    columns: dict[str, list[str]] = {}
    score = np.zeros(num_records)
    for number, (name, kind) in enumerate(kinds.items()):
        if isinstance(kind, tuple):
            low, high = kind
            values = rng.integers(int(low), int(high) + 1, num_records)
            columns[name] = [str(value) for value in values]
            effect = (values - (low + high) / 2) / (high - low) * effects.choice([-2.0, 2.0])
        else:
            places = rng.integers(len(kind), size=num_records)
            columns[name] = [kind[place] for place in places]
            effect = effects.normal(size=len(kind))[places]
        score += effect * (number % 2 == 0)
    score += np.log(share_positive / (1 - share_positive)) - score.mean()
    return columns, rng.random(num_records) < 1 / (1 + np.exp(-score))


def open_text(path: Path) -> IO[str]:
    """Open a text file, which may be compressed (`.gz`)."""
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()


def write_csv(path: str, columns: Mapping[str, Sequence[str]]) -> None:
    """Write a table with a header; its words have no commas, quotes or line feeds."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(",".join(columns) + "\n")
        for row in zip(*columns.values(), strict=True):
            file.write(",".join(row) + "\n")
