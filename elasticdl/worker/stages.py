"""Where a worker's time goes, what it is at, and which of its threads goes first."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType

from elasticdl.job import Lease

_FIRST_CALLS = 3


# Not frozen, though nobody changes them: three of each are made for each minibatch, and to make a
# frozen one takes four times as long.
@dataclass(slots=True)
class Place:
    """A minibatch of a lease. `num_records`: how many it has, as far as that is known before."""

    lease: Lease
    minibatch: int = -1  # -1: the lease as a whole
    num_records: int = 0


@dataclass(slots=True)
class Work:
    """A stage that runs the user's code or the framework, and has not returned yet.

    since: when it began, or when what it waited for had come.
    is_first: one of its first calls, or the first for its number of records: it may compile.
    longest: seconds of its longest call before, the first ones left out.
    """

    stage: str
    place: Place
    since: float
    is_first: bool
    longest: float


Recorder = Callable[[str, float, float, Place | None], None]
"""Takes a stage, when it began and ended by the clock, and the minibatch, where that is known."""


class StageClock:
    """Seconds spent in each stage, for the job's status, and what is under way.

    Written by all threads; a stage belongs to one.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._under_way: dict[str, Work] = {}
        self._num_calls: defaultdict[str, int] = defaultdict(int)
        self._longest: defaultdict[str, float] = defaultdict(float)
        self._sizes: set[tuple[str, int]] = set()
        self._num_waits: defaultdict[str, int] = defaultdict(int)
        self._resumed: dict[str, float] = {}
        self._lock = threading.Lock()  # of what `waiting` changes
        self.recorder: Recorder | None = None
        """Told of each stage when it has returned; None: nobody wants to know."""

    @contextlib.contextmanager
    def measure(self, stage: str, place: Place | None = None) -> Iterator[None]:
        """Add the time of the block to a stage; `place` is for the recorder."""
        started = self._clock()
        yield
        ended = self._clock()
        self._seconds[stage] += ended - started
        if (recorder := self.recorder) is not None:
            recorder(stage, started, ended, place)

    def work(self, stage: str, place: Place) -> contextlib.AbstractContextManager[None]:
        """Measure a stage, and have `under_way` tell of it until it returns."""
        return _UnderWay(self, stage, place)

    def begin(self, stage: str, place: Place) -> Work:
        """Begin a stage, for `work`."""
        size = (stage, place.num_records)
        is_first = self._num_calls[stage] < _FIRST_CALLS or size not in self._sizes
        work = Work(stage, place, self._clock(), is_first, self._longest[stage])
        self._under_way[stage] = work
        return work

    def end(self, work: Work, has_returned: bool) -> None:
        """End a stage, for `work`."""
        stage = work.stage
        del self._under_way[stage]
        if not has_returned:
            return
        ended = self._clock()
        seconds = ended - work.since
        self._seconds[stage] += seconds
        if (recorder := self.recorder) is not None:
            recorder(stage, work.since, ended, work.place)
        if work.is_first:
            self._num_calls[stage] += 1
            self._sizes.add((stage, work.place.num_records))
        elif seconds > self._longest[stage]:
            self._longest[stage] = seconds

    @contextlib.contextmanager
    def waiting(self, *stages: str) -> Iterator[None]:
        """Have stages not count as under way while what they wait for is not theirs to hasten.

        For any thread: a framework may call back from threads of its own.
        """
        with self._lock:
            for stage in stages:
                self._num_waits[stage] += 1
        try:
            yield
        finally:
            with self._lock:
                for stage in stages:
                    self._num_waits[stage] -= 1
                    self._resumed[stage] = self._clock()

    def under_way(self) -> list[Work]:
        """Return the stages that run the user's code or the framework now, and do not wait."""
        with self._lock:
            return [
                replace(work, since=max(work.since, self._resumed.get(work.stage, work.since)))
                for work in list(self._under_way.values())
                if not self._num_waits[work.stage]
            ]

    def seconds(self) -> dict[str, float]:
        """Return a copy."""
        return dict(self._seconds)

    def spent(self, *stages: str) -> float:
        """Return the seconds of some stages together."""
        return sum(self._seconds.get(stage, 0.0) for stage in stages)


class _UnderWay:
    """A stage from its beginning to its end; a class, because each minibatch has several."""

    __slots__ = ("_clock", "_place", "_stage", "_work")

    def __init__(self, clock: StageClock, stage: str, place: Place) -> None:
        self._clock, self._stage, self._place = clock, stage, place

    def __enter__(self) -> None:
        self._work = self._clock.begin(self._stage, self._place)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clock.end(self._work, error is None)


def run_after_others() -> None:
    """Have this thread run after those that compute, when there are more than processors.

    For the stages beside the one that computes: what they have ready, and what they have still to
    send, can wait. They wake thousands of times a second, and a thread that wakes at an equal
    priority takes the processor from the one that computes, whether another is idle or not.
    """
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a system on which threads have no priority of their own
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 10)
