"""Estimates when a job will be done; there is no estimate until the job's pace is steady."""

from __future__ import annotations

from collections import deque

_LEAST_SECONDS = 6.0  # of progress: the first steps compile
_WINDOW_SECONDS = 60.0
_STEADY = 1.6  # the two halves of what was seen differ by no more than this factor


class Pace:
    """Follows the pace of a job; it gives no estimate while the pace still changes."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, seconds: float, done: int) -> None:
        """Take in how many records are done at a time."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # a loss: some are to be done again
        if done > 0 and not (self._seen and seconds <= self._seen[-1][0]):
            self._seen.append((seconds, done))
        while len(self._seen) > 2 and self._seen[1][0] < seconds - _WINDOW_SECONDS:
            self._seen.popleft()

    def seconds_left(self, total: int) -> float | None:
        """Return the seconds until all records are done; None if the pace is unknown."""
        if len(self._seen) < 3:
            return None
        (began, first), (now, done) = self._seen[0], self._seen[-1]
        if now - began < _LEAST_SECONDS or done >= total:
            return None
        # The pace is steady if both halves of the window have nearly the same pace.
        middle = min(self._seen, key=lambda seen: abs(seen[0] - (began + now) / 2))
        if middle in (self._seen[0], self._seen[-1]):
            return None
        before = (middle[1] - first) / (middle[0] - began)
        after = (done - middle[1]) / (now - middle[0])
        if min(before, after) <= 0 or max(before, after) > _STEADY * min(before, after):
            return None
        return (total - done) * (now - began) / (done - first)
