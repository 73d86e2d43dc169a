"""Ends a worker that was asked to end: it hands over its work, and nothing is repeated.

The master is told first, so that it starts another worker. Computed minibatches are handed in, and
so is the one that is being computed if it is done soon. Then each lease is given back. The worker
that gets the task next continues at the same minibatch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from elasticdl.errors import ElasticdlError, UnavailableError
from elasticdl.job import Role
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime.ending import DaemonThread, end_now
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from elasticdl.worker.loop import Worker

log = logging.getLogger(__name__)

# A cluster kills a process some time after it has asked it to end, usually after 30 s.
_MINIBATCH_SECONDS = 15.0  # for the one that is being computed
_LONGEST_SECONDS = 25.0  # for all
_TELL_SECONDS = 3.0  # for the master to answer; it may be gone as well
_EXIT_SECONDS = 2.0  # for the main thread to end the process in order


class WorkerDeparture:
    """Ends a worker process in order. `begin` runs in a thread of its own."""

    def __init__(
        self, master: GrpcMasterClient, worker_id: int, farewell: Callable[[], None]
    ) -> None:
        """Wait to be asked.

        Args:
            master: Is told first.
            worker_id: The worker.
            farewell: Called last, when all is handed over. The process needs a while to end after
                it.
        """
        self._master = master
        self._worker_id = worker_id
        self._farewell = farewell
        self._has_begun = False
        self._is_over = threading.Event()
        self.worker: Worker | None = None
        """Set once there is one."""

    def begin(self) -> None:
        """Hand over and end the process, within a limited time even if somebody does not answer."""
        self._has_begun = True
        hand_over = DaemonThread(self._hand_over, "hand-over")
        hand_over.start()
        hand_over.join(_LONGEST_SECONDS)
        self._is_over.set()
        # The main thread gets a moment to end in order, with `finish`. If it hangs in the user's
        # code, the process ends without it.
        threading.Event().wait(_EXIT_SECONDS)
        end_now(STOPPED_EXIT_CODE)

    def finish(self) -> None:
        """End the process after the hand-over, if it was asked to end. For the main thread."""
        if self._has_begun:
            self._is_over.wait()
            raise SystemExit(STOPPED_EXIT_CODE)

    def _hand_over(self) -> None:
        try:
            if self._is_awaited() and self.worker is not None:
                # The order matters: no new work is taken up before leases are given back, and the
                # world is left last, since settling the leases needs its next round.
                self.worker.leave()
                self.worker.give_back(_MINIBATCH_SECONDS)
                self._farewell()
        except ElasticdlError as error:
            log.warning("what this worker holds could not all be handed over: %s", error)

    def _is_awaited(self) -> bool:
        try:
            return self._master.leave(Role.WORKER, self._worker_id, _TELL_SECONDS)
        except UnavailableError as error:
            log.warning("%s; it is reported again at the end", error)
            return True
