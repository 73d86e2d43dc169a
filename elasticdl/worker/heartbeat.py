"""Tells the master that this worker is alive, from before its framework is even imported."""

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
"""Returns of each table its name, the ids counted, and some keys with their counts."""

_SECONDS_BETWEEN_KEYS = 5.0


class Heartbeat(Background):
    """A thread that reports now and then; used as a context.

    The master answers how long to wait until the next report, and where the ps replicas are, when
    that has changed; the route is told. With an event log, what is reported is also written there:
    the seconds under each label, and of each stage, tell afterwards where the time of a worker
    went.
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
            master: To whom.
            worker_id: Who this is.
            interval_seconds: Until the master says otherwise.
            events: Where to write it as well.
            route: Told where the ps replicas are.
            labels: What the worker did with its time.
            traffic: Counts its bytes on the tensor plane.
            take_hot_keys: Returns by table what was looked up most since it was asked before.
            role: What it is; a worker or a model server, which has no progress of its own.
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
        """Replaced once there is a worker whose progress can be told."""
        self.waits_for: Callable[[], str] = str
        """Tells what the sources of the worker wait for; replaced once they are open."""
        self.follow: Callable[[HeartbeatAnswer], None] = lambda answer: None
        """Told what the master answers; replaced once there is a worker who wants to know."""

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
        self._write(self.progress(), usage.measure(self._labels, self._traffic))

    def _write(self, progress: Progress, used: Usage) -> None:
        if self._events is not None:
            if self._role is Role.WORKER:
                self._events.write(WorkerProgress(**asdict(progress)))
            self._events.write(usage.kind_of(used))

    def _hot_keys(self) -> tuple[HotKeys, ...]:
        """Return what is new of the hottest keys, if it is time to tell it."""
        if time.monotonic() < self._tells_keys_at:
            return ()
        self._tells_keys_at = time.monotonic() + _SECONDS_BETWEEN_KEYS
        taken = self._take_hot_keys()
        return tuple(HotKeys(table, num_ids, tuple(keys)) for table, num_ids, keys in taken)

    def beat(self) -> None:
        """Report once. Whatever goes wrong, the worker is alive, and the next beat says so."""
        try:
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
        except Exception as error:
            if self._stop.is_set():
                return  # the connection was closed meanwhile
            if str(error) != self._last_problem:
                self._last_problem = str(error)
                known = isinstance(error, ElasticdlError)
                log.error(
                    "a heartbeat failed, the next one is tried: %s",
                    error,
                    exc_info=None if known else error,
                )
