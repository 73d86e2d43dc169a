"""Tells the master that this worker is alive, from before its framework is even imported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from elasticdl.job import MasterClient, Progress, Role


class Heartbeat:
    """A thread that reports every few seconds; used as a context."""

    def __init__(self, master: MasterClient, worker_id: int, interval_seconds: float) -> None:
        self._master = master
        self._worker_id = worker_id
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.progress: Callable[[], Progress] = Progress
        """Replaced once there is a worker whose progress can be told."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not joined: a call to a master that is away would hold the process.
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self._master.heartbeat(Role.WORKER, self._worker_id, self.progress())
