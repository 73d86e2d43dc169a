"""Statistics of ids, which are kept beside the rows of a table, for models of all backends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from elasticdl.errors import ModelError

SHOW = "show"
CLICK = "click"
_MOST = 16
_MOST_STEPS = 1 << 36
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """Decayed sums of what occurs with each id, beside its row: `S = a + decay^n S`.

    Each trained minibatch changes the sums of its ids. `a` is the sum over the occurrences of the
    id in the minibatch, and n is the number of periods since the id's last occurrence. Like an
    update of a row, each minibatch is counted exactly once, even if processes are killed.

    The period of a minibatch follows from its place in the order of the job alone, and not from a
    clock or the number of updates so far. So it does not matter which worker trains the minibatch,
    when, or how often.

    Args:
        names: The names of the sums. "show" is 1 for each occurrence. Any other name is a value
            that `feed` gives for each record, as a key of the labels (if they are a dict) or of the
            features. "click" is the label, if there is only one label and no value of that name.
        decay: The factor of a sum for each period, above 0 and at most 1. 1: sums only grow.
        decay_steps: The minibatches of a period, counted over the whole job; every task counts as
            `--num_minibatches_per_task`, and a task that has grown as several.
        as_features: The layer returns the sums behind the row, in the order of `names`. They are
            the sums at the time of the pull, decayed to the newest period. They have no gradient.
    """

    names: Sequence[str] = (SHOW, CLICK)
    decay: float = 1.0
    decay_steps: int = 1000
    as_features: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        if isinstance(self.names, set | frozenset):
            raise ModelError(
                "RowStatistics: names is a set, whose names have another order, and so other "
                "columns, in each process: expected a tuple, such as ('show', 'click')"
            )
        if isinstance(self.names, str) or not all(isinstance(n, str) and n for n in self.names):
            raise ModelError(
                "RowStatistics: names must be strings in a tuple or list, such as "
                f"('show', 'click'), not {self.names!r}"
            )
        # A list would make the frozen object unhashable.
        object.__setattr__(self, "names", tuple(self.names))
        if not 0 < len(set(self.names)) == len(self.names) <= _MOST:
            raise ModelError(
                f"RowStatistics: expected 1 to {_MOST} different names, found {self.names!r}"
            )
        is_number = isinstance(self.decay, int | float) and math.isfinite(self.decay)
        if not (is_number and 0 < self.decay <= 1):
            raise ModelError(
                f"RowStatistics: decay must be a number above 0 and at most 1, not {self.decay!r}"
            )
        if not (isinstance(self.decay_steps, int) and 0 < self.decay_steps <= _MOST_STEPS):
            raise ModelError(
                f"RowStatistics: decay_steps must be a whole number from 1 to {_MOST_STEPS}, not "
                f"{self.decay_steps!r}"
            )

    @property
    def table_dim(self) -> int:
        """The floats of an id in the table of statistics: the sums, and their newest period."""
        return len(self.names) + 1

    @property
    def num_features(self) -> int:
        """The number of further floats that the layer returns for an id."""
        return len(self.names) if self.as_features else 0

    def column(self, name: str, whose: str) -> int:
        """Return the index of the sum with a name.

        Raises:
            ModelError: No sum has the name.
        """
        if name in self.names:
            return list(self.names).index(name)
        raise ModelError(
            f"{whose} goes by the statistic {name!r}; statistics= has {', '.join(self.names)}"
        )


def statistics_of(value: object, whose: str) -> RowStatistics | None:
    """Return statistics from statistics, or from a result of `config_of`.

    Raises:
        ModelError: The value is neither.
    """
    if value is None or isinstance(value, RowStatistics):
        return value
    if isinstance(value, dict) and set(value) == set(RowStatistics.__dataclass_fields__):
        return RowStatistics(**value)
    raise ModelError(f"{whose}: statistics must be RowStatistics(...), not {value!r}")


def table_name(name: str) -> str:
    """Return the name of the table with the statistics of another table."""
    return f"{name}_statistics"


def value_of(
    name: str, labels: object, features: object, is_array: type[Value] | tuple[type[Value], ...]
) -> Value:
    """Return the values of `feed` for each record under the name of a statistic, except "show".

    Raises:
        ModelError: `feed` gives nothing under the name.
    """
    # The labels win if both have the name.
    for given in (labels, features):
        found = given.get(name) if isinstance(given, Mapping) else None
        if isinstance(found, is_array):
            return found
    if name == CLICK and isinstance(labels, is_array):
        return labels
    dicts = [given for given in (labels, features) if isinstance(given, Mapping)]
    keys = ", ".join(str(key) for given in dicts for key in given)
    raise ModelError(
        f"RowStatistics counts {name!r}, and feed gives no such value for a record: expected a key "
        f"of the labels or of the features, found {keys or 'no dict'}"
    )
