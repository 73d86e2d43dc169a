"""Every second of a process has one label; together they are its wall time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elasticdl.job import Label
from elasticdl.proc import seconds_since_start


class LabelClock:
    """Counts the time of one process under one label at a time.

    It begins with the process, so what came before this object was made is "starting". By
    construction nothing is counted twice and nothing is left out. For any number of threads.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        seconds_before: float | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin to count.

        Args:
            clock: Seconds since any moment.
            seconds_before: How old the process is; None: as the system says.
            wall_clock: Seconds since 1970.
        """
        before = seconds_since_start() if seconds_before is None else seconds_before
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock() - before
        self.began = wall_clock() - before
        """When the process began, in seconds since 1970."""
        self.label = Label.STARTING
        self._seconds: dict[Label, float] = {}

    def enter(self, label: Label) -> None:
        """From now on count under this label."""
        if label is self.label:
            return
        with self._lock:
            now = self._clock()
            self._seconds[self.label] = self._seconds.get(self.label, 0.0) + now - self._since
            self._since, self.label = now, label

    def seconds(self) -> dict[Label, float]:
        """Return the seconds under each label up to now."""
        with self._lock:
            found = dict(self._seconds)
            found[self.label] = found.get(self.label, 0.0) + self._clock() - self._since
            return found

    def move(self, label: Label, seconds: float, to: Label) -> None:
        """Count so many of a label's past seconds under another one, as far as there are any."""
        with self._lock:
            now = self._clock()
            self._seconds[self.label] = self._seconds.get(self.label, 0.0) + now - self._since
            self._since = now
            moved = min(seconds, self._seconds.get(label, 0.0))
            self._seconds[label] = self._seconds.get(label, 0.0) - moved
            self._seconds[to] = self._seconds.get(to, 0.0) + moved
