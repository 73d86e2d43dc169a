"""Tells the master that this worker is alive, even before its framework is imported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from types import TracebackType

from elasticdl.errors import ElasticdlError
from elasticdl.job import HeartbeatAnswer, HotKeys, Progress, Role, Usage
from elasticdl.observe import usage
from elasticdl.observe.events import EventLog
from elasticdl.observe.kinds import WorkerProgress
from elasticdl.observe.labels import LabelClock
from elasticdl.rpc.base import MasterClient
from elasticdl.runtime.background import Background
from elasticdl.worker.route import Route

log = logging.getLogger(__name__)

TakeHotKeys = Callable[[], Sequence[tuple[str, int, Sequence[tuple[int, int]]]]]
"""Returns for each table its name, the number of ids counted, and some keys with their counts."""

_SECONDS_BETWEEN_KEYS = 5.0


class Heartbeat(Background):
    """Reports to the master at intervals, from a thread of its own; used as a context.

    The master answers how long to wait until the next report. If the ps replicas have moved, it
    also tells their addresses, and the route learns them. With an event log each report is also
    written there: the seconds under each label and in each stage show afterwards how a worker spent
    its time.
    """

    def __init__(
        self,
        master: MasterClient,
        worker_id: int,
        interval_seconds: float,
        events: EventLog | None = None,
        route: Route | None = None,
        labels: LabelClock | None = None,
        traffic: usage.Traffic = usage.no_traffic,
        take_hot_keys: TakeHotKeys = list,
        role: Role = Role.WORKER,
    ) -> None:
        """Prepare to report.

        Args:
            master: Receives the reports.
            worker_id: The number of this process.
            interval_seconds: The interval until the master gives another one.
            events: The log to which reports are also written.
            route: Is told where the ps replicas are.
            labels: Counts the time of the worker by what it does.
            traffic: Counts its bytes on the tensor plane.
            take_hot_keys: Returns by table the keys that were looked up most since the last call.
            role: The role of the process: a worker, or a model server, which has no progress of its
                own.
        """
        self._master = master
        self._worker_id = worker_id
        self._interval_seconds = interval_seconds
        self._events = events
        self._route = route or Route()
        self._labels = labels or LabelClock()
        self._traffic = traffic
        self._take_hot_keys = take_hot_keys
        self._role = role
        self._tells_keys_at = 0.0
        super().__init__("heartbeat")
        self._last_problem = ""  # said once, not with each beat
        self.progress: Callable[[], Progress] = Progress
        """Replaced when there is a worker that has progress."""
        self.tell_first: Callable[[], None] = lambda: None
        """Called before each report; replaced when there is a worker that has something to tell."""
        self.waits_for: Callable[[], str] = str
        """Tells for what the sources of the worker wait; replaced when they are open."""
        self.follow: Callable[[HeartbeatAnswer], None] = lambda answer: None
        """Receives the master's answer; replaced when there is a worker that reads it."""

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self.beat()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        # The last report is only written to the event log: the master learns the end by other
        # calls.
        self._write(self.progress(), usage.measure(self._labels, self._traffic))

    def _write(self, progress: Progress, used: Usage) -> None:
        if self._events is not None:
            if self._role is Role.WORKER:
                self._events.write(WorkerProgress(**asdict(progress)))
            self._events.write(usage.kind_of(used))

    def _hot_keys(self) -> tuple[HotKeys, ...]:
        """Return the hottest keys since the last report, if it is time to report them."""
        if time.monotonic() < self._tells_keys_at:
            return ()
        self._tells_keys_at = time.monotonic() + _SECONDS_BETWEEN_KEYS
        taken = self._take_hot_keys()
        return tuple(HotKeys(table, num_ids, tuple(keys)) for table, num_ids, keys in taken)

    def beat(self) -> None:
        """Report once. After an error the worker is still alive, and the next beat says so."""
        try:
            self.tell_first()
            progress = replace(self.progress(), waits_for=self.waits_for())
            used = usage.measure(self._labels, self._traffic, self._hot_keys())
            self._write(progress, used)
            answer = self._master.heartbeat(
                self._role,
                self._worker_id,
                progress if self._role is Role.WORKER else None,
                self._route.known,
                used,
                self._interval_seconds,
            )
            self._interval_seconds = answer.interval_seconds or self._interval_seconds
            self.follow(answer)
            if answer.route is not None:
                self._route.follow(answer.route)
            self._last_problem = ""
        except Exception as error:
            if self._stop.is_set():
                return  # the connection was closed meanwhile
            # A master that is away for minutes would fill the log with one line for each beat.
            if str(error) != self._last_problem:
                self._last_problem = str(error)
                known = isinstance(error, ElasticdlError)
                log.error(
                    "a heartbeat failed, the next one is tried: %s",
                    error,
                    exc_info=None if known else error,
                )
