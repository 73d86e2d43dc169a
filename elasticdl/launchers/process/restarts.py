"""When the root of a local job starts its master again: pure decisions.

A master that was killed, or failed by what may pass (no file descriptors, a full disk, a defect in
one place), has a successor. One that has decided to end has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.runtime import process

MOST_AT_ONCE = 20
"""Restarts that a job may use up at once."""

REFILL_SECONDS = 180.0
"""After so long there is one more of them: a job of weeks may lose its master now and then."""

_FREE_RESTARTS = 5  # before a master that ends again and again is given time
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 10.0

_DECIDED = frozenset({0, 1, process.STOPPED_EXIT_CODE})
"""Exit codes of a master that has said why it ends, and which another could not mend."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """What is left of the restarts of a job, at a time (seconds, of any clock that does not jump).

    They are as tokens in a bucket: each restart takes one, and they come back with time.
    """

    left: float = MOST_AT_ONCE
    at: float = 0.0

    def take(self, now: float) -> tuple[Restarts, float] | None:
        """Take one; return what is left, and for how long to wait before; None if none is left."""
        left = min(MOST_AT_ONCE, self.left + max(0.0, now - self.at) / REFILL_SECONDS)
        if left < 1.0:
            return None
        extra = int(MOST_AT_ONCE - left) - _FREE_RESTARTS
        pause = 0.0 if extra < 0 else _FIRST_PAUSE_SECONDS * 2.0**extra
        return Restarts(left - 1.0, now), min(pause, _LONGEST_PAUSE_SECONDS)


def is_decided(code: int) -> bool:
    """Whether a master that has ended with an exit code (minus a signal) wanted to."""
    return code in _DECIDED
