"""Ends a worker whose model file does not return; decides without a clock or a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticdl.job import Position
from elasticdl.worker.spans import Place, Work

LEAST_LIMIT_SECONDS = 300.0
LONGEST_CALLS = 20.0  # the limit, in calls as long as the longest before
COMPILE_SECONDS = 3600.0
_NAMED_AFTER_SECONDS = 30.0
_STALL_SECONDS = 10.0  # between two looks: this process, or its machine, was stopped meanwhile
_BUSY_SHARE = 0.05  # of one processor: what a process takes that waits is well below


@dataclass(frozen=True, slots=True)
class SlowWork:
    """Work that takes long. `left_seconds`: the time until its worker is ended."""

    work: Work
    seconds: float
    left_seconds: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """Work that has taken too long."""

    work: Work
    seconds: float


class Watchdog:
    """Finds work that takes too long among the work that runs.

    A call may take `limit_seconds`. By default this is `LEAST_LIMIT_SECONDS`, or longer if calls of
    its stage have taken long. First calls may compile, so they have `COMPILE_SECONDS`. If the
    process computes nothing, first calls have the usual limit, from the time when it stopped
    computing. Time in which the process itself was stopped does not count.
    """

    def __init__(self, limit_seconds: float | None = None) -> None:
        self._limit_seconds = limit_seconds
        self._looked: tuple[float, float] | None = None
        self._idle_since = 0.0
        self._awake_since = 0.0
        self._named: tuple[str, Place] | None = None

    def look(
        self, now: float, cpu_seconds: float, works: Sequence[Work]
    ) -> SlowWork | Overdue | None:
        """Return the work that takes too long, if any.

        Args:
            now: The time, on the clock of `Work.since`.
            cpu_seconds: The processor time of this process and of its children, such as a compiler.
            works: The work that runs.
        """
        self._note_processor(now, cpu_seconds)
        for work in works:
            seconds = self._counted(work, now)
            limit = self._limit_of(work)
            is_compiled_for_ever = work.is_first and now - work.since > max(COMPILE_SECONDS, limit)
            if seconds > limit or is_compiled_for_ever:
                return Overdue(work, now - work.since)
            named = (work.stage, work.place)
            if seconds > max(3 * work.longest, min(limit / 4, _NAMED_AFTER_SECONDS)) and (
                self._named != named
            ):
                self._named = named
                return SlowWork(work, now - work.since, limit - seconds)
        return None

    def _note_processor(self, now: float, cpu_seconds: float) -> None:
        if self._looked is None:
            self._idle_since = now
        else:
            then, cpu_then = self._looked
            # Two looks are so far apart that the process or its machine was stopped. Time before
            # that does not count.
            if now - then > _STALL_SECONDS:
                self._awake_since = now
            if cpu_seconds - cpu_then > _BUSY_SHARE * (now - then):
                self._idle_since = now
        self._looked = (now, cpu_seconds)

    def _counted(self, work: Work, now: float) -> float:
        since = max(work.since, self._awake_since)
        # A first call may compile for long, which shows as processor time. It is measured from when
        # the process stopped computing.
        return now - (max(since, self._idle_since) if work.is_first else since)

    def _limit_of(self, work: Work) -> float:
        if self._limit_seconds is not None:
            return self._limit_seconds
        return max(LEAST_LIMIT_SECONDS, LONGEST_CALLS * work.longest)


def position(found: SlowWork | Overdue) -> Position:
    """Return the position of work that takes too long, or nearly too long."""
    work, lease = found.work, found.work.place.lease
    return Position(
        lease.task.id,
        lease.number,
        work.place.minibatch,
        work.stage,
        found.seconds,
        isinstance(found, Overdue),
    )
