"""The rules of the rows of a table, as the store takes them: when they come, when they go.

A layer or a table says `Admission`, `Expiry` and `RowStatistics`. Here these are numbers, which the
ps replicas, the workers and checkpoints agree on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from elasticdl.errors import ModelError
from elasticdl.layers.life_cycle import (
    Admission,
    CountAdmission,
    Expiry,
    ProbabilityAdmission,
    StatisticAdmission,
)
from elasticdl.layers.row_statistics import RowStatistics


@dataclass(frozen=True, slots=True)
class AdmissionSpec:
    """Describes the rule by which the store decides when an id gets a row.

    kind and params: "count" (count), "sketch" (count, bytes), "probability" (probability),
    "statistic" (table, column, limit).
    """

    kind: str
    params: dict[str, float]

    @classmethod
    def of(
        cls, admission: Admission | None, kept: KeptStatistics | None = None
    ) -> AdmissionSpec | None:
        """Return what a layer or table says; None admits every id with its first use.

        Raises:
            ModelError: It goes by a statistic that is not kept.
        """
        match admission:
            case None:
                return None
            case CountAdmission(count, None):
                return cls("count", {"count": float(count)})
            case CountAdmission(count, sketch_bytes):
                return cls("sketch", {"count": float(count), "bytes": float(sketch_bytes or 0)})
            case ProbabilityAdmission(probability):
                return cls("probability", {"probability": float(probability)})
            case StatisticAdmission(name, at_least):
                found = _kept(kept, name, at_least, "StatisticAdmission")
                return cls("statistic", {k: float(v) for k, v in asdict(found).items()})


@dataclass(frozen=True, slots=True)
class StatisticSpec:
    """A statistic of an id: the table that has it, which of its floats it is, and a limit."""

    table: int
    column: int
    limit: float


@dataclass(frozen=True, slots=True)
class KeptStatistics:
    """The statistics of a table's ids, and the number of the table that has them."""

    table: int
    said: RowStatistics


def _kept(kept: KeptStatistics | None, name: str, limit: float, whose: str) -> StatisticSpec:
    if kept is None:
        raise ModelError(
            f"{whose} goes by the statistic {name!r}; say statistics=RowStatistics(...) beside it"
        )
    return StatisticSpec(kept.table, kept.said.column(name, whose), float(limit))


@dataclass(frozen=True, slots=True)
class ExpirySpec:
    """Describes the rule by which the store decides when a row is removed; see `Expiry`."""

    steps: int | None = None
    days: float | None = None
    min_norm: float | None = None
    grace_steps: int = 0
    statistic: StatisticSpec | None = None

    @classmethod
    def of(cls, expiry: Expiry | None, kept: KeptStatistics | None) -> ExpirySpec | None:
        """Return what a layer or table says; None lets no row go.

        Raises:
            ModelError: It goes by a statistic that is not kept.
        """
        if expiry is None:
            return None
        statistic = None
        if expiry.statistic is not None and expiry.below is not None:
            statistic = _kept(kept, expiry.statistic, expiry.below, "Expiry")
        return cls(expiry.steps, expiry.days, expiry.min_norm, expiry.grace_steps, statistic)


@dataclass(frozen=True, slots=True)
class StatisticsSpec:
    """Holds what the store and its clients must know of statistics; see `RowStatistics`."""

    decay: float
    steps: int

    def period(self, step: int) -> int:
        """Return the period of the minibatch at a place in the order of the job."""
        return step // self.steps
