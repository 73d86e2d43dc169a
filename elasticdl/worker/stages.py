"""Where a worker's time goes, and which of its threads goes first."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator


class StageClock:
    """Seconds spent in each stage, for the job's status. Written by all threads."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage; a stage belongs to one thread."""
        started = time.perf_counter()
        yield
        self._seconds[stage] += time.perf_counter() - started

    def seconds(self) -> dict[str, float]:
        """Return a copy."""
        return dict(self._seconds)


def run_after_others() -> None:
    """Have this thread run after those that compute, when there are more than processors.

    For the stages beside the one that computes: what they have ready, and what they have still to
    send, can wait. They wake thousands of times a second, and a thread that wakes at an equal
    priority takes the processor from the one that computes, whether another is idle or not.
    """
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a system on which threads have no priority of their own
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 10)
