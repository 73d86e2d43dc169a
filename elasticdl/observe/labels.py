"""Gives every second of a process one label; the labels together make up its wall time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elasticdl.job import Label
from elasticdl.runtime.proc import seconds_since_start

_MOST_ENTERED = 10_000  # that nobody has asked for


class LabelClock:
    """Counts the time of one process under one label at a time.

    It begins with the process, so the time before this object was made is "starting". No time is
    counted twice or left out. For any number of threads.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        seconds_before: float | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin to count.

        Args:
            clock: Returns seconds since any moment.
            seconds_before: The age of the process; None: the system's value.
            wall_clock: Returns seconds since 1970.
        """
        before = seconds_since_start() if seconds_before is None else seconds_before
        self._clock = clock
        self._since = clock() - before
        self.began = wall_clock() - before
        """The time when the process began, in seconds since 1970."""
        self.label = Label.STARTING
        """The label of the present time."""
        self._counted = Label.STARTING  # up to `_since`; what came after is in `_entered`
        self._entered: list[tuple[float, Label]] = []
        self._seconds: dict[Label, float] = {}
        self._lock = threading.Lock()  # of whoever adds up; entering takes none

    def enter(self, label: Label) -> None:
        """Count under this label from now on. It is cheap: a worker calls it for each minibatch."""
        if label is not self.label:
            self.label = label
            self._entered.append((self._clock(), label))
            # No one may ask for the seconds for a long time, and the list must not grow without
            # bound.
            if len(self._entered) > _MOST_ENTERED:
                self.seconds()

    def seconds(self) -> dict[Label, float]:
        """Return the seconds under each label up to now."""
        with self._lock:
            self._add_up()
            return dict(self._seconds)

    def move(self, label: Label, seconds: float, to: Label) -> None:
        """Move some of a label's past seconds to another label; at most those that it has."""
        with self._lock:
            self._add_up()
            moved = min(seconds, self._seconds.get(label, 0.0))
            self._seconds[label] = self._seconds.get(label, 0.0) - moved
            self._seconds[to] = self._seconds.get(to, 0.0) + moved

    def _add_up(self) -> None:
        count = len(self._entered)
        for when, label in self._entered[:count]:
            self._count(when)
            self._counted = label
        del self._entered[:count]
        self._count(self._clock())

    def _count(self, until: float) -> None:
        # Two threads may enter at the same moment, and be in the list in the other order.
        until = max(until, self._since)
        before = self._seconds.get(self._counted, 0.0)
        self._seconds[self._counted] = before + until - self._since
        self._since = until
