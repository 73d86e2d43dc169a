"""Summarises a column whose values are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.packages.data_tools.statistics import Column, Distinct, Number, Vocabulary

NUM_QUANTILES = 101


@dataclass(frozen=True, slots=True)
class SummaryLimits:
    """Limits how much the statistics of a column contain.

    num_buckets: The number of buckets between the boundaries.
    distinct_limit: A column with more distinct values is estimated.
    vocabulary_limit: The largest number of values of a vocabulary.
    vocabulary_threshold: Values that occur less often are left out of the vocabulary.
    """

    num_buckets: int = 10
    distinct_limit: int = 10_000_000
    vocabulary_limit: int = 100_000
    vocabulary_threshold: int = 1


def number_statistics(
    common: dict[str, Any], numbers: NDArray[Any], counts: NDArray[np.int64], limits: SummaryLimits
) -> Column:
    """Return the statistics of a column of numbers whose values are all counted.

    Args:
        common: The column's kind, and its numbers of records and values.
        numbers: Distinct values, ascending.
        counts: How often each occurs.
        limits: Limits what is returned.
    """
    num_values = int(counts.sum())
    is_finite = np.isfinite(numbers)
    numbers, counts = numbers[is_finite] + 0, counts[is_finite]  # -0.0 and 0.0 are one value
    total = int(counts.sum())
    common = {**common, "infinite": num_values - total, "distinct": Distinct(count=len(numbers))}
    if common["kind"] == "int64":
        common["vocabulary"] = _vocabulary(numbers, counts, limits)
    if total == 0:
        return Column(**common)
    mean = float(np.dot(numbers, counts / total))
    return Column(
        **common,
        min=numbers[0].item(),
        max=numbers[-1].item(),
        mean=mean,
        stddev=math.sqrt(float(np.dot((numbers - mean) ** 2, counts / total))),
        quantiles=quantiles(numbers, counts, np.linspace(0, 1, NUM_QUANTILES)),
        boundaries=boundaries(numbers, counts, limits.num_buckets),
    )


def vocabulary_of(
    values: Sequence[Any], counts: Sequence[int], limits: SummaryLimits, is_all: bool
) -> Vocabulary | None:
    """Return a vocabulary; None if its values are not text in UTF-8.

    Args:
        values: The values, most frequent first; one more than the limit, if there are so many.
        counts: How often each occurs.
        limits: Say which values are left out.
        is_all: Whether there are no other values.
    """
    kept = values[: limits.vocabulary_limit]
    try:
        kept = [v.decode() if isinstance(v, bytes | bytearray) else v for v in kept]
    except UnicodeDecodeError:
        return None
    return Vocabulary(
        values=kept,
        counts=list(counts[: limits.vocabulary_limit]),
        threshold=limits.vocabulary_threshold,
        is_complete=is_all and len(values) <= limits.vocabulary_limit,
    )


def _vocabulary(
    values: NDArray[np.int64], counts: NDArray[np.int64], limits: SummaryLimits
) -> Vocabulary | None:
    chosen = np.flatnonzero(counts >= limits.vocabulary_threshold)
    order = chosen[np.lexsort((values[chosen], -counts[chosen]))]
    most = order[: limits.vocabulary_limit + 1]
    return vocabulary_of(values[most].tolist(), counts[most].tolist(), limits, is_all=True)


def quantiles(
    values: NDArray[Any], counts: NDArray[np.int64], levels: NDArray[np.float64]
) -> list[Number]:
    """Return for each level the least value such that this part of the values is not above it.

    Args:
        values: Different values, ascending.
        counts: How often each occurs.
        levels: From 0 to 1.
    """
    ends = np.cumsum(counts)
    # A level may be just above a rank by rounding; the small number takes it back to that rank.
    ranks = np.maximum(1, np.ceil(levels * ends[-1] - 1e-9))
    found: list[Number] = values[np.searchsorted(ends, ranks)].tolist()
    return found


def boundaries(values: NDArray[Any], counts: NDArray[np.int64], num_buckets: int) -> list[Number]:
    """Return the boundaries of buckets with about equally many values; the first bucket has none.

    A value belongs to the last bucket whose boundary is not above it, as in
    `keras.layers.Discretization`.
    """
    levels = np.arange(1, num_buckets) / num_buckets
    ends = np.cumsum(counts)
    begins = np.searchsorted(ends, levels * ends[-1], side="left") + 1
    begins = begins[begins < len(values)]
    return sorted(set(values[begins].tolist()))
