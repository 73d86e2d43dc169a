"""The calls of a worker that end leases and ask for tasks, both in one where that can be."""

from __future__ import annotations

import contextlib
import threading

from elasticdl.errors import ElasticdlError
from elasticdl.job import Finished, Lease, TaskReport, Wait
from elasticdl.rpc.base import MasterClient
from elasticdl.worker.parameters import PendingPull
from elasticdl.worker.protocol import LeaseProtocol
from elasticdl.worker.running import Running


class Telling:
    """Tells the master how leases have ended, and asks it for tasks.

    `LeaseProtocol` decides which reports are kept for the next request. If none comes for long,
    the heartbeat tells them. Any number of threads may use it.
    """

    def __init__(
        self,
        master: MasterClient,
        worker_id: int,
        protocol: LeaseProtocol[PendingPull],
        lock: contextlib.AbstractContextManager[object],
    ) -> None:
        """Put it together; `lock` guards the protocol."""
        self._master, self._worker_id = master, worker_id
        self._protocol, self._lock = protocol, lock
        self._held: dict[tuple[int, int], Running] = {}
        # Held while kept reports are told. So whoever finds nothing kept knows that all are told.
        self._telling = threading.Lock()

    def ask(self, is_patient: bool) -> Lease | Wait | Finished:
        """Ask for a task, and tell the reports that were kept."""
        with contextlib.ExitStack() as telling:
            telling.enter_context(self._telling)
            with self._lock:
                kept = self._protocol.asks()
            if not kept:
                telling.close()  # a call that tells nothing holds up nobody, however long it lasts
            answer = self._master.lease(self._worker_id, is_patient, kept)
            with self._lock:
                self._protocol.answered(answer)
        return answer

    def begins(self, running: Running) -> None:
        """Note a lease that is worked on."""
        self._held[running.lease.task.id, running.lease.number] = running

    def forget(self, running: Running) -> None:
        """Note that a lease has ended, or that somebody else has its task."""
        self._held.pop((running.lease.task.id, running.lease.number), None)

    def held(self) -> list[Running]:
        """Return the leases that have not ended."""
        return list(self._held.values())

    def tell(self, running: Running, report: TaskReport) -> None:
        """End a lease: at once, or with the next request.

        The master hears of the ends in their order: what was kept is told before what fails.
        """
        with self._lock:
            is_kept = self._protocol.keeps(running, report)
        if not is_kept:
            self.tell_kept()
            self._master.report(self._worker_id, report)
        self.forget(running)

    def tell_kept(self) -> None:
        """Tell now what was kept for the next request."""
        with self._telling:
            with self._lock:
                kept = self._protocol.take_kept()
            for report in kept:
                self._master.report(self._worker_id, report)

    def tell_kept_at_last(self) -> None:
        """Tell what was kept before the worker ends with an error, if that can be."""
        with contextlib.suppress(ElasticdlError):
            self.tell_kept()
