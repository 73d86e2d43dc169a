"""Which ids of a table get a row, and which rows go: said once, for models of all backends."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from elasticdl.errors import ModelError
from elasticdl.layers.row_statistics import RowStatistics

_MAX_COUNT = 1 << 27
_MAX_SKETCH_COUNT = 255
_MIN_SKETCH_BYTES = 65_536 * 4
_MAX_SKETCH_BYTES = _MIN_SKETCH_BYTES << 16


@dataclass(frozen=True, slots=True)
class CountAdmission:
    """An id gets a row with the `count`-th minibatch that has it, and is trained from there on.

    Until then it reads as the centre of the table's initializer, as it does in an evaluation, and
    its gradients are dropped.

    Args:
        count: Minibatches, at least 2.
        sketch_bytes: Count in a sketch of so many bytes (over all ps replicas) instead of 16 to 24
            bytes for each id that waits. It never counts too few, and too many for some: after n
            occurrences more than `10.9 n / sketch_bytes` too many for at most 1 id in 54. It
            never forgets, so an id whose row has expired is admitted again at once. `count` is
            at most 255 then, `sketch_bytes` at least 262,144.
    """

    count: int
    sketch_bytes: int | None = None

    def __post_init__(self) -> None:
        most = _MAX_COUNT if self.sketch_bytes is None else _MAX_SKETCH_COUNT
        _check_whole("CountAdmission: count", self.count, 2, most)
        if self.sketch_bytes is not None:
            _check_whole(
                "CountAdmission: sketch_bytes",
                self.sketch_bytes,
                _MIN_SKETCH_BYTES,
                _MAX_SKETCH_BYTES,
            )


@dataclass(frozen=True, slots=True)
class ProbabilityAdmission:
    """Each minibatch that has an id without a row gives it one with this probability.

    Takes no memory: an id is admitted after 1 / probability minibatches on average. The draw is a
    function of the job's seed, the table, the id and the minibatch.
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
    """An id gets a row with the minibatch by which a statistic of it reaches `at_least`.

    The statistic is one of the layer's `statistics`, which are kept of ids without a row too. So a
    decayed count admits an id that occurs often *now*, where `CountAdmission` adds up for ever.

    Args:
        name: One of the names of the layer's `RowStatistics`.
        at_least: Above 0.
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
    """A row goes as soon as one of these holds when the job looks for such rows.

    It looks before each checkpoint, at the end of each epoch and before an export. A row that has
    gone reads as if its id had never been trained.

    Args:
        steps: It was in none of the last `steps` updates of the model.
        days: It was in none of the updates of so many days; of event time, in a job on a stream.
        min_norm: The L2 norm of its weights is below this, and its first update was
            `grace_steps` updates of the model ago: a new row may begin near zero.
        grace_steps: See `min_norm`; 0: none. Takes 8 bytes a row where there is a `min_norm`.
        statistic: The name of one of the layer's `statistics`: it is below `below`. The statistics
            of the id go too, with a row or without.
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
            _check_whole("Expiry: steps", self.steps, 1, 1 << 36)
        _check_whole("Expiry: grace_steps", self.grace_steps, 0, 1 << 36)
        numbers = (("days", self.days), ("min_norm", self.min_norm), ("below", self.below))
        for name, value in numbers:
            if value is not None and not (_is_number(value) and value > 0):
                raise ModelError(f"Expiry: {name} must be a number above 0, not {value!r}")


Admission = CountAdmission | ProbabilityAdmission | StatisticAdmission
_ADMISSIONS = (CountAdmission, ProbabilityAdmission, StatisticAdmission)


def admission_of(value: object, whose: str) -> Admission | None:
    """Return an admission given as such, or as `config_of` has written it.

    Raises:
        ModelError: It is neither.
    """
    if value is None or isinstance(value, _ADMISSIONS):
        return value
    if isinstance(value, dict):
        for kind in _ADMISSIONS:
            if set(value) == set(kind.__dataclass_fields__):
                return kind(**value)
    raise ModelError(
        f"{whose}: admission must be CountAdmission(...), ProbabilityAdmission(...) or "
        f"StatisticAdmission(...), not {value!r}"
    )


def expiry_of(value: object, whose: str) -> Expiry | None:
    """Return an expiry given as such, or as `config_of` has written it.

    Raises:
        ModelError: It is neither.
    """
    if value is None or isinstance(value, Expiry):
        return value
    fields = set(Expiry.__dataclass_fields__)
    # What was saved before rows could go by a statistic does not say that they do not.
    if isinstance(value, dict) and set(value) in (fields, fields - {"statistic", "below"}):
        return Expiry(**value)
    raise ModelError(f"{whose}: expiry must be Expiry(...), not {value!r}")


def config_of(value: Admission | Expiry | RowStatistics | None) -> dict[str, object] | None:
    """Return what JSON can hold."""
    return None if value is None else asdict(value)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    if not is_whole:
        raise ModelError(f"{name} must be a whole number from {least} to {most}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
