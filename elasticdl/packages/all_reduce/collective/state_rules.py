"""Combines the changes of the state by the minibatches of several workers into one update.

Each minibatch makes `momentum * old + change` of a state variable. In an update

- changes of sums and counts (momentum 1) are **added up**: a count is that of all records;
- of values that are replaced (momentum 0) **the last one** stays, in the order of tasks;
- changes of moving averages are **averaged**, weighted by records: as if one minibatch had all.

`Treatment` in `crates/edl-store/src/treatment.rs` has the same rules for rounds of ps replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
_Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class StateRules:
    """The numbers of the flat state that are not averaged.

    added, replaced: Their places, ascending.
    """

    added: _Numbers
    replaced: _Numbers

    @classmethod
    def of(cls, changing: Sequence[tuple[range, float]]) -> StateRules:
        """Return the rules for the variables that training changes: their places and momentum."""
        return cls(
            _places([places for places, momentum in changing if momentum == 1.0]),
            _places([places for places, momentum in changing if momentum == 0.0]),
        )

    @property
    def has_exact(self) -> bool:
        """Return whether any number is not averaged."""
        return bool(self.added.size or self.replaced.size)

    def exact(self, change: Float32 | None, is_last: bool) -> Float32:
        """Return what one minibatch brings to the sums over all; None: it brings nothing.

        Args:
            change: The whole change of the state.
            is_last: Whether it is the last minibatch of these.
        """
        values = np.zeros(self.added.size + self.replaced.size, np.float32)
        if change is not None:
            values[: self.added.size] = change[self.added]
            if is_last:
                values[self.added.size :] = change[self.replaced]
        return values

    def put(self, exact: Float32, change: Float32) -> None:
        """Write these sums into a change whose other numbers are averages."""
        change[self.added] = exact[: self.added.size]
        change[self.replaced] = exact[self.added.size :]

    def add(self, total: Float32, change: Float32, num_records: np.float32) -> None:
        """Add a later change to sums over records; `num_records` is its weight."""
        # The sums are saved first: the next line treats all numbers as averages.
        exact = self.exact(change, is_last=True)
        exact[: self.added.size] += total[self.added]
        total += change * num_records
        self.put(exact, total)

    def join(self, total: Float32, later: Float32) -> None:
        """Add later sums over records to others."""
        exact = self.exact(later, is_last=True)
        exact[: self.added.size] += total[self.added]
        total += later
        self.put(exact, total)

    def divide(self, total: Float32, num_records: np.float32) -> None:
        """Make one change of sums over records."""
        exact = self.exact(total, is_last=True)
        total /= num_records
        self.put(exact, total)


def _places(parts: Sequence[range]) -> _Numbers:
    found = [np.arange(part.start, part.stop, dtype=np.intp) for part in parts]
    return np.concatenate([np.zeros(0, np.intp), *found])


NO_RULES = StateRules.of([])
