"""Measures the time of a worker: one span for each stage of a minibatch.

A span is entered at one place of the loop. Several parts use it:

- the seconds of each stage, for the job's status;
- the stages that run now, for the watch that ends a worker that hangs;
- the label of each second (`worker/activity.py`);
- the position of a suspect task, which the master hears before the stage begins;
- a profile, while one is recorded.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from elasticdl.job import Label, Lease, Position
from elasticdl.worker.activity import Activity, Thread

_FIRST_CALLS = 3

_WATCHED = frozenset(
    ("feed", "ids", "compute", "evaluate", "predict", "metrics", "write", "callbacks")
)
"""Stages that run the user's code or the framework: a call may never return."""

_AT: dict[str, tuple[Thread, Label | None]] = {
    "lease": (Thread.FEED, Label.IDLE),
    "no task": (Thread.FEED, Label.IDLE),
    "feed": (Thread.FEED, Label.WAIT_FOR_DATA),
    "ids": (Thread.PREPARE, Label.WAIT_FOR_DATA),
    "staleness wait": (Thread.PREPARE, Label.WAIT_FOR_PARAMETERS),
    "compute wait": (Thread.COMPUTE, None),
}
"""The label of a thread from the beginning of a stage, for stages that set it themselves."""


# Not frozen, although nobody changes them: two are made for each minibatch, and making a frozen one
# takes four times as long.
@dataclass(slots=True)
class Place:
    """A minibatch of a lease. `num_records`: its number of records, if it is known before."""

    lease: Lease
    minibatch: int = -1  # -1: the lease as a whole
    num_records: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """A stage that runs the user's code or the framework, and has not returned yet.

    since: The time when it began, or when its last wait ended.
    is_first: Whether it is one of the first calls, or the first for its number of records: it may
        compile.
    longest: The seconds of its longest call before, without the first ones.
    """

    stage: str
    place: Place
    since: float
    is_first: bool
    longest: float


class Spans:
    """Seconds spent in each stage, for the job's status, and what is under way.

    Written by all threads. A stage that is watched belongs to one; the others may overlap.
    """

    def __init__(
        self,
        activity: Activity,
        announce: Callable[[Position], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Count nothing yet.

        Args:
            activity: Is told what the threads do.
            announce: Tells the master the position in a lease that the master suspects.
            clock: Returns seconds since any moment.
        """
        self.activity = activity
        self.announce = announce
        self.clock = clock
        self.span = partial(Span, self)
        """Makes a stage, as a context; with a place, the stage of a minibatch."""
        self.recorder: Callable[[Span], None] | None = None
        """Called with each span that has ended; None: nothing is recorded."""
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._under_way: dict[str, Span] = {}
        self._num_calls: defaultdict[str, int] = defaultdict(int)
        self._longest: defaultdict[str, float] = defaultdict(float)
        self._sizes: set[tuple[str, int]] = set()
        self._num_waits: defaultdict[str, int] = defaultdict(int)
        self._resumed: dict[str, float] = {}
        self._lock = threading.Lock()  # of what `waiting` changes

    @contextlib.contextmanager
    def waiting(self, *stages: str) -> Iterator[None]:
        """Do not count stages as running within the block: they wait for others.

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
                    self._resumed[stage] = self.clock()

    def under_way(self) -> list[Work]:
        """Return the stages that run the user's code or the framework now, and do not wait."""
        with self._lock:
            return [
                span.as_work(self._resumed.get(span.stage, span.began))
                for span in list(self._under_way.values())
                if not self._num_waits[span.stage]
            ]

    def seconds(self) -> dict[str, float]:
        """Return a copy of the seconds by stage."""
        return dict(self._seconds)

    def spent(self, *stages: str) -> float:
        """Return the seconds of some stages together."""
        total = 0.0
        for stage in stages:
            total += self._seconds.get(stage, 0.0)
        return total


class Span:
    """A stage from its beginning to its end; each minibatch has about seven."""

    __slots__ = ("_is_first", "_longest", "_spans", "began", "ended", "place", "stage")

    def __init__(self, spans: Spans, stage: str, place: Place | None = None) -> None:
        self._spans, self.stage, self.place = spans, stage, place
        self.began = self.ended = 0.0

    @property
    def seconds(self) -> float:
        """The seconds that it took; 0 while it has not ended."""
        return self.ended - self.began if self.ended else 0.0

    def __enter__(self) -> Span:
        spans, stage, place = self._spans, self.stage, self.place
        # The announcement comes first: if the stage kills the process, the master knows where.
        if place is not None and place.lease.is_suspect:
            lease = place.lease
            spans.announce(Position(lease.task.id, lease.number, place.minibatch, stage))
        if (at := _AT.get(stage)) is not None:
            spans.activity.at(*at)
        self.began = spans.clock()
        if stage in _WATCHED:
            assert place is not None, "code of the user runs for a lease"
            self._is_first = (
                spans._num_calls[stage] < _FIRST_CALLS
                or (stage, place.num_records) not in spans._sizes
            )
            self._longest = spans._longest[stage]
            spans._under_way[stage] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        spans, stage = self._spans, self.stage
        if stage in _WATCHED:
            del spans._under_way[stage]
        # A stage that failed says nothing about the usual time.
        if error is not None:
            return
        self.ended = spans.clock()
        seconds = self.ended - self.began
        spans._seconds[stage] += seconds
        if spans.recorder is not None:
            spans.recorder(self)
        if stage in _WATCHED and self.place is not None:
            if self._is_first:
                spans._num_calls[stage] += 1
                spans._sizes.add((stage, self.place.num_records))
            elif seconds > self._longest:
                spans._longest[stage] = seconds

    def as_work(self, resumed: float) -> Work:
        """Return the running work for the watch; `resumed`: the time when its last wait ended."""
        assert self.place is not None
        since = max(self.began, resumed)
        return Work(self.stage, self.place, since, self._is_first, self._longest)


def run_after_others() -> None:
    """Give this thread a lower priority than the threads that compute.

    The stages beside compute can wait: their results are needed later. They wake thousands of times
    a second. A thread that wakes at an equal priority takes the processor from the computing
    thread, even if another processor is idle.
    """
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a system on which threads have no priority of their own
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 10)
