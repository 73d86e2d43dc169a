"""Watches how long the master's event loop is held: meanwhile nobody is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from elasticdl.master.group_commit import LONGEST_HOLD_SECONDS

_LOOK_SECONDS = 0.02
_SECONDS_BETWEEN_COMPLAINTS = 10.0
_OWN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Holds:
    """Times for which the loop did nothing that was due, because this process was busy."""

    longest_seconds: float
    count: int


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest delays of the loop: for any reason, and because this process was busy."""

    late_seconds: float = 0.0
    held_seconds: float = 0.0


class LoopLag:
    """Wakes up many times a second and looks how late it is.

    A long event holds the loop, and so does another thread that keeps Python's lock. A machine
    that is busy with other processes makes the loop late as well. The processor time that this
    process used in the meantime tells the two cases apart.
    """

    def __init__(
        self,
        tell: Callable[[Holds], None],
        limit_seconds: float = LONGEST_HOLD_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        """Prepare to watch; `tell` hears now and then of holds above the limit."""
        self._tell = tell
        self._limit_seconds = limit_seconds
        self._clock, self._cpu_clock = clock, cpu_clock
        self._longest = Longest()  # since it was last taken
        self._holds = Holds(0.0, 0)  # since they were last told
        self._told_at = -_SECONDS_BETWEEN_COMPLAINTS

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            began, cpu_began = self._clock(), self._cpu_clock()
            await asyncio.sleep(_LOOK_SECONDS)
            late = self._clock() - began - _LOOK_SECONDS
            self.note(late, self._cpu_clock() - cpu_began)

    def note(self, late_seconds: float, cpu_seconds: float) -> None:
        """Take in one look: how late it was, and what the process computed meanwhile."""
        # If this process computed for most of the delay, it was the cause; else the machine was.
        held = late_seconds if cpu_seconds >= _OWN_SHARE * late_seconds else 0.0
        before, holds = self._longest, self._holds
        self._longest = Longest(
            max(before.late_seconds, late_seconds), max(before.held_seconds, held)
        )
        if held > self._limit_seconds:
            self._holds = Holds(max(holds.longest_seconds, held), holds.count + 1)
        now = self._clock()
        if self._holds.count and now - self._told_at >= _SECONDS_BETWEEN_COMPLAINTS:
            self._told_at = now
            holds, self._holds = self._holds, Holds(0.0, 0)
            self._tell(holds)

    def take_longest(self) -> Longest:
        """Return how late the loop was at most since the last call."""
        longest, self._longest = self._longest, Longest()
        return longest
