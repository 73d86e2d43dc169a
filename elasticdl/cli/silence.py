"""Decides what a viewer says about a master that does not answer; the caller gives the time."""

from __future__ import annotations

import time
from dataclasses import dataclass

FIRST_SECONDS = 10.0
"""The first message comes after this time; a running master sends a picture each second."""

_LONGEST_SECONDS = 120.0  # between two words


@dataclass(slots=True)
class Silence:
    """How long the master of a job has been silent, and what was said about it.

    heard: The time of the master's last answer, or of the command's begin; seconds of any clock.
    """

    heard: float
    first_seconds: float = FIRST_SECONDS
    reason: str = ""
    _has_answered: bool = False
    _told_seconds: float = 0.0  # how long it had been silent when that was last said

    def answered(self, now: float) -> str:
        """Take in that the master has answered; return the message about it."""
        seconds, was_told = now - self.heard, self._told_seconds > 0.0 and self._has_answered
        self.heard, self.reason, self._told_seconds = now, "", 0.0
        self._has_answered = True
        return f"the master answers again, after {seconds:.0f} s" if was_told else ""

    def look(self, now: float, clock: float) -> str:
        """Return the message that is due at a time.

        Args:
            now: The time.
            clock: The same time, in seconds since 1970.
        """
        seconds = now - self.heard
        # The pauses between messages double, so that a long silence does not fill the log.
        pause = min(max(self._told_seconds, self.first_seconds), _LONGEST_SECONDS)
        if seconds < self._told_seconds + pause:
            return ""
        self._told_seconds = seconds
        since = time.strftime("%H:%M:%S", time.localtime(clock - seconds))
        why = f" ({self.reason})" if self.reason else ""
        if not self._has_answered:
            return f"the master has not answered yet, for {seconds:.0f} s{why}; still trying"
        return (
            f"the master has not answered since {since}, for {seconds:.0f} s{why}; still trying, "
            "the job itself goes on"
        )
