"""Where a worker's time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class StageClock:
    """Seconds spent in each stage, for the job's status. Written by all threads."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage; a stage belongs to one thread."""
        started = time.perf_counter()
        yield
        self._seconds[stage] += time.perf_counter() - started

    def seconds(self) -> dict[str, float]:
        """Return a copy."""
        return dict(self._seconds)
