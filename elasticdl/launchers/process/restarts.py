"""Decides when the root of a local job starts its master again.

A master that was killed has a successor, and so has a master that failed by a passing problem (no
file descriptors, a full disk, a defect in one place). A master that has decided to end has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.runtime import process

MOST_AT_ONCE = 20
"""The restarts that a job may use at once."""

REFILL_SECONDS = 180.0
"""A restart comes back after this time: a job of weeks may lose its master now and then."""

_FREE_RESTARTS = 5  # before a master that ends again and again is given time
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 10.0

_DECIDED = frozenset({0, 1, process.STOPPED_EXIT_CODE})
"""Exit codes of a master that has said why it ends; a successor would end too."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """The remaining restarts of a job at a time (seconds of any clock that does not jump).

    They work as tokens in a bucket: each restart takes one, and they come back with time.
    """

    left: float = MOST_AT_ONCE
    at: float = 0.0

    def take(self, now: float) -> tuple[Restarts, float] | None:
        """Take one restart; return the rest and the seconds to wait first; None if none is left."""
        left = min(MOST_AT_ONCE, self.left + max(0.0, now - self.at) / REFILL_SECONDS)
        if left < 1.0:
            return None
        extra = int(MOST_AT_ONCE - left) - _FREE_RESTARTS
        pause = 0.0 if extra < 0 else _FIRST_PAUSE_SECONDS * 2.0**extra
        return Restarts(left - 1.0, now), min(pause, _LONGEST_PAUSE_SECONDS)


def is_decided(code: int) -> bool:
    """Return whether a master with this exit code (minus a signal) has decided to end."""
    return code in _DECIDED
