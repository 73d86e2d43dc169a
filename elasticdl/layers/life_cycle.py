"""Rules for the rows of a table, for models of all backends: which ids get one, and until when."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from numbers import Integral

from elasticdl.errors import ModelError
from elasticdl.layers.row_statistics import RowStatistics

_MAX_COUNT = 1 << 27
_MAX_SKETCH_COUNT = 255
_MIN_SKETCH_BYTES = 65_536 * 4
_MAX_SKETCH_BYTES = _MIN_SKETCH_BYTES << 16


@dataclass(frozen=True, slots=True)
class CountAdmission:
    """Gives an id a row in the `count`-th minibatch with the id; from then on the id is trained.

    Until then the id reads as the centre of the table's initializer, as in an evaluation, and its
    gradients are dropped.

    Args:
        count: The number of minibatches, at least 2.
        sketch_bytes: Count in a sketch of this size (over all ps replicas), instead of 21 to 27
            bytes for each waiting id. The sketch never counts too few, but too many for some ids:
            after n occurrences, more than `10.9 n / sketch_bytes` too many for at most 1 id in 54.
            It never forgets, so an id whose row has expired is admitted again at once. With a
            sketch `count` is at most 255, and `sketch_bytes` at least 262,144.
    """

    count: int
    sketch_bytes: int | None = None

    def __post_init__(self) -> None:
        most = _MAX_COUNT if self.sketch_bytes is None else _MAX_SKETCH_COUNT
        _check_whole(self, "count", 2, most)
        if self.sketch_bytes is not None:
            _check_whole(self, "sketch_bytes", _MIN_SKETCH_BYTES, _MAX_SKETCH_BYTES)


@dataclass(frozen=True, slots=True)
class ProbabilityAdmission:
    """Gives an id without a row one with this probability, in each minibatch with the id.

    The rule takes no memory. An id is admitted after 1 / probability minibatches on average. The
    draw is a function of the job's seed, the table, the id and the minibatch.
    """

    probability: float

    def __post_init__(self) -> None:
        if not (_is_number(self.probability) and 0 < self.probability < 1):
            raise ModelError(
                "ProbabilityAdmission: probability must be a number above 0 and below 1, not "
                f"{self.probability!r}"
            )


@dataclass(frozen=True, slots=True)
class StatisticAdmission:
    """Gives an id a row in the minibatch in which a statistic of the id reaches `at_least`.

    The statistic is one of the layer's `statistics`, which ids without a row have too. So a decayed
    count admits an id that occurs often *now*, while `CountAdmission` counts without decay.

    Args:
        name: One of the names of the layer's `RowStatistics`.
        at_least: The limit, above 0.
    """

    name: str
    at_least: float

    def __post_init__(self) -> None:
        if not (_is_number(self.at_least) and self.at_least > 0):
            raise ModelError(
                f"StatisticAdmission: at_least must be a number above 0, not {self.at_least!r}"
            )


@dataclass(frozen=True, slots=True)
class Expiry:
    """Removes a row if one of these conditions holds when the job looks for such rows.

    The job looks before each checkpoint, at the end of each epoch and before an export. An id whose
    row was removed reads as if it had never been trained.

    Args:
        steps: The row was in none of the last `steps` updates of the model.
        days: The row was in none of the updates of so many days (of event time in a job on a
            stream).
        min_norm: The L2 norm of the row's weights is below this, and the row's first update was
            `grace_steps` updates of the model ago: a new row may begin near zero.
        grace_steps: See `min_norm`; 0: none. With a `min_norm` it takes 8 bytes a row.
        statistic: The name of one of the layer's `statistics`, whose value is below `below`. The
            id's statistics are removed too, with or without a row.
        below: See `statistic`.
    """

    steps: int | None = None
    days: float | None = None
    min_norm: float | None = None
    grace_steps: int = 1000
    statistic: str | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        terms = (self.steps, self.days, self.min_norm, self.statistic)
        if all(term is None for term in terms):
            raise ModelError("Expiry: say at least one of steps, days and min_norm, or a statistic")
        if (self.statistic is None) != (self.below is None):
            raise ModelError(
                "Expiry: statistic and below belong together, as in Expiry(statistic='show', "
                f"below=0.5); found {self.statistic!r} and {self.below!r}"
            )
        if self.steps is not None:
            _check_whole(self, "steps", 1, 1 << 36)
        _check_whole(self, "grace_steps", 0, 1 << 36)
        numbers = (("days", self.days), ("min_norm", self.min_norm), ("below", self.below))
        for name, value in numbers:
            if value is not None and not (_is_number(value) and value > 0):
                raise ModelError(f"Expiry: {name} must be a number above 0, not {value!r}")


Admission = CountAdmission | ProbabilityAdmission | StatisticAdmission
_ADMISSIONS = (CountAdmission, ProbabilityAdmission, StatisticAdmission)


def admission_of(value: object, whose: str) -> Admission | None:
    """Return an admission from an admission, or from a result of `config_of`.

    Raises:
        ModelError: The value is neither.
    """
    if value is None or isinstance(value, _ADMISSIONS):
        return value
    if isinstance(value, dict):
        for kind in _ADMISSIONS:
            # The three rules have no field name in common, so the fields tell the rule.
            if set(value) == set(kind.__dataclass_fields__):
                return kind(**value)
    raise ModelError(
        f"{whose}: admission must be CountAdmission(...), ProbabilityAdmission(...) or "
        f"StatisticAdmission(...), not {value!r}"
    )


def expiry_of(value: object, whose: str) -> Expiry | None:
    """Return an expiry from an expiry, or from a result of `config_of`.

    Raises:
        ModelError: The value is neither.
    """
    if value is None or isinstance(value, Expiry):
        return value
    fields = set(Expiry.__dataclass_fields__)
    # Older models were saved without the fields of a statistic.
    if isinstance(value, dict) and set(value) in (fields, fields - {"statistic", "below"}):
        return Expiry(**value)
    raise ModelError(f"{whose}: expiry must be Expiry(...), not {value!r}")


def config_of(value: Admission | Expiry | RowStatistics | None) -> dict[str, object] | None:
    """Return a rule as a dictionary for JSON."""
    return None if value is None else asdict(value)


def _check_whole(rule: CountAdmission | Expiry, name: str, least: int, most: int) -> None:
    """Check a field, and make an `int` of a whole number of NumPy, which JSON does not know."""
    value = getattr(rule, name)
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not (is_whole and least <= value <= most):
        raise ModelError(
            f"{type(rule).__name__}: {name} must be a whole number from {least} to {most}, not "
            f"{value!r}"
        )
    object.__setattr__(rule, name, int(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
