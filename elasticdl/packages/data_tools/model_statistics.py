"""Returns the results of `elasticdl data analyze` to model files.

The results are numbers, boundaries and vocabularies. Their file is that of `--statistics`, or of
the environment variable `ELASTICDL_STATISTICS` in a plain Python session. If there is neither, each
function returns its default, so that a model file also works without an analysis.

    from elasticdl.preprocessing import Discretization, Normalizer, statistics

    Normalizer(statistics.get_avg("age", 40), statistics.get_stddev("age", 15))
    Discretization(statistics.get_bucket_boundaries("income", [10_000, 50_000]))
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

from elasticdl.config import STATISTICS_VARIABLE
from elasticdl.errors import ConfigError
from elasticdl.packages.data_tools.statistics import Column, Statistics, read_statistics

Number = int | float


def get_min(feature: str, default: Number) -> Number:
    """Return the smallest value of a feature."""
    return _number(feature, "min", default)


def get_max(feature: str, default: Number) -> Number:
    """Return the largest value of a feature."""
    return _number(feature, "max", default)


def get_avg(feature: str, default: Number) -> Number:
    """Return the mean of a feature."""
    return _number(feature, "mean", default)


def get_stddev(feature: str, default: Number) -> Number:
    """Return the standard deviation of a feature."""
    return _number(feature, "stddev", default)


def get_bucket_boundaries(feature: str, default: Sequence[Number]) -> list[Number]:
    """Return the ascending boundaries of buckets with about equally many values."""
    column = _column(feature)
    if column is None:
        return list(default)
    if column.kind == "text":
        raise _lacks(feature, "boundaries", column)
    return list(column.boundaries)


def get_distinct_count(feature: str, default: int) -> int:
    """Return the number of different values of a feature."""
    column = _column(feature)
    return default if column is None else column.distinct.count


def get_vocabulary(
    feature: str,
    default: Sequence[str] | Sequence[int],
    min_count: int = 1,
    max_size: int | None = None,
) -> list[str] | list[int]:
    """Return the values of a feature, the most frequent first.

    Args:
        feature: The name of the feature.
        default: The result if there is no analysis.
        min_count: Leave out values that occur more rarely.
        max_size: Return at most so many values.

    Raises:
        ConfigError: The file has no vocabulary of this feature, or lacks values that are asked for.
    """
    column = _column(feature)
    if column is None:
        return list(default)  # type: ignore[return-value]  # of one of the two kinds
    vocabulary = column.vocabulary
    if vocabulary is None:
        raise _lacks(feature, "vocabulary", column)
    if min_count < vocabulary.threshold and min_count > 1:
        raise ConfigError(
            f"the vocabulary of {feature!r} leaves out values that occur fewer than "
            f"{vocabulary.threshold} times, and the model asks for min_count={min_count}; run "
            "elasticdl data analyze with a lower threshold"
        )
    frequent = sum(count >= min_count for count in vocabulary.counts)
    values: list[str] | list[int] = vocabulary.values[:frequent][:max_size]
    return values


def _number(feature: str, what: str, default: Number) -> Number:
    column = _column(feature)
    if column is None:
        return default
    if column.kind == "text":
        raise _lacks(feature, what, column)
    found: Number | None = getattr(column, what)
    return default if found is None else found  # a column without a single value


def _column(feature: str) -> Column | None:
    path = os.environ.get(STATISTICS_VARIABLE)
    return _read(path).column(feature) if path else None


@lru_cache(maxsize=4)
def _read(path: str) -> Statistics:
    return read_statistics(path)


def _lacks(feature: str, what: str, column: Column) -> ConfigError:
    return ConfigError(
        f"the statistics of {feature!r} have no {what}, because its values are {column.kind}; "
        "in a Table a column of words is a Category"
    )
