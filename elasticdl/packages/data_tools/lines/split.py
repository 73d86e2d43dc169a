"""Chooses the rows for validation by the seed and the row's number alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from elasticdl.errors import ConfigError

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Split:
    """Chooses a fraction of the rows, each with the same probability and by itself."""

    fraction: Fraction
    seed: int = 0

    def is_validation(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each row, by its number, whether it is for validation."""
        limit = min(_MASK, int(self.fraction * 2**64))
        return _mixed(rows.astype(np.uint64), self.seed) < np.uint64(limit)


def _mixed(rows: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 (Steele et al., OOPSLA 2014) of `rows`, by `seed`."""
    start = np.uint64((seed * _GOLDEN + 0x5851F42D4C957F2D) & _MASK)
    with np.errstate(over="ignore"):
        z = rows * np.uint64(_GOLDEN) + start
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def parse_fraction(text: str) -> Fraction:
    """Return a part of the rows, written as 1/20 or 0.05.

    Raises:
        ConfigError: The part is not between 0 and 1.
    """
    if re.fullmatch(r"\d+/\d+|\d*\.\d+", text.strip()) and not text.strip().endswith("/0"):
        fraction = Fraction(text.strip())
        if 0 < fraction < 1:
            return fraction
    raise ConfigError(f"--validation={text}: expected a part of the rows, such as 1/20 or 0.05")
