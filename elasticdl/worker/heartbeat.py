"""Tells the master that this worker is alive, from before its framework is even imported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict

from elasticdl.background import Background
from elasticdl.errors import ElasticdlError
from elasticdl.job import MasterClient, Progress, Role
from elasticdl.observe.events import EventLog
from elasticdl.worker.route import Route

log = logging.getLogger(__name__)


class Heartbeat(Background):
    """A thread that reports every few seconds; used as a context.

    The master answers with where the ps replicas are, when that has changed; the route is told.
    With an event log, what is reported is also written there: the seconds of each stage tell
    afterwards where the time of a worker went.
    """

    def __init__(
        self,
        master: MasterClient,
        worker_id: int,
        interval_seconds: float,
        events: EventLog | None = None,
        route: Route | None = None,
    ) -> None:
        self._master = master
        self._worker_id = worker_id
        self._interval_seconds = interval_seconds
        self._events = events
        self._route = route or Route()
        super().__init__("heartbeat")
        self._last_problem = ""  # said once, not with each beat
        self.progress: Callable[[], Progress] = Progress
        """Replaced once there is a worker whose progress can be told."""

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self.beat()

    def beat(self) -> None:
        """Report once. Whatever goes wrong, the worker is alive, and the next beat says so."""
        try:
            progress = self.progress()
            if self._events is not None:
                self._events.write("progress", **asdict(progress))
            news = self._master.heartbeat(Role.WORKER, self._worker_id, progress, self._route.known)
            if news is not None:
                self._route.follow(news)
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
