"""Statistics of ids, kept beside the rows of a table: said once, for models of all backends."""

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

    With each minibatch that is trained, `a` is the sum over the occurrences of the id in it, and n
    is how many periods have passed since the id occurred the last time. They are counted exactly as
    rows are updated: once for each minibatch, whatever is killed and comes again.

    Which period a minibatch is of follows from its place in the order of the job alone, and not
    from a clock or the number of updates so far. So it does not matter which worker trains it,
    when, and how often.

    Args:
        names: What is summed. "show" is 1 for each occurrence. Any other name is a value that
            `feed` gives for each record: of that key of the labels, if these are a dict, or of the
            features. "click" is the label, where there is but one and nothing of that name.
        decay: What a period leaves of a sum, above 0 and at most 1. 1: sums only grow.
        decay_steps: Minibatches of a period, counted over the whole job; every task is taken to
            have `--num_minibatches_per_task`.
        as_features: The layer returns them behind the row, in the order of `names`, as they were
            when the row was pulled, decayed to the newest period. They have no gradient.
    """

    names: Sequence[str] = (SHOW, CLICK)
    decay: float = 1.0
    decay_steps: int = 1000
    as_features: bool = False

    def __post_init__(self) -> None:
        """Check what was said."""
        if isinstance(self.names, str) or not all(isinstance(n, str) and n for n in self.names):
            raise ModelError(
                "RowStatistics: names must be strings in a tuple or list, such as "
                f"('show', 'click'), not {self.names!r}"
            )
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
        """Floats of an id in the table of them: the sums, and the period they are decayed to."""
        return len(self.names) + 1

    @property
    def num_features(self) -> int:
        """How many more numbers the layer returns for an id."""
        return len(self.names) if self.as_features else 0

    def column(self, name: str, whose: str) -> int:
        """Return which of the sums has a name.

        Raises:
            ModelError: None has.
        """
        if name in self.names:
            return list(self.names).index(name)
        raise ModelError(
            f"{whose} goes by the statistic {name!r}; statistics= has {', '.join(self.names)}"
        )


def statistics_of(value: object, whose: str) -> RowStatistics | None:
    """Return statistics given as such, or as `config_of` has written them.

    Raises:
        ModelError: They are neither.
    """
    if value is None or isinstance(value, RowStatistics):
        return value
    if isinstance(value, dict) and set(value) == set(RowStatistics.__dataclass_fields__):
        return RowStatistics(**value)
    raise ModelError(f"{whose}: statistics must be RowStatistics(...), not {value!r}")


def table_name(name: str) -> str:
    """Return the name of the table that has the statistics of another."""
    return f"{name}_statistics"


def value_of(
    name: str, labels: object, features: object, is_array: type[Value] | tuple[type[Value], ...]
) -> Value:
    """Return what `feed` gives for each record under the name of a statistic other than "show".

    Raises:
        ModelError: It gives nothing of the name.
    """
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
