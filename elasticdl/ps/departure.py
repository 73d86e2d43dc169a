"""How a ps replica leaves that was asked to end: it writes what it holds, and nothing is lost.

The master is told first; it says where to write. Then the replica answers nobody any more, so what
it holds stays as it is. Clients take it for one that is away, and wait for its successor. That one
begins with what was written. What is not written in time is given up: then the successor begins
with the job's last checkpoint, and what it lacks is trained again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.errors import ElasticdlError
from elasticdl.runtime.ending import end_now
from elasticdl.runtime.process import STOPPED_EXIT_CODE

log = logging.getLogger(__name__)

# What asks a process to end kills it some time later: 30 s, as a rule.
_LONGEST_SECONDS = 25.0
_TELL_SECONDS = 3.0  # for the master to answer; it may be gone as well
_EXIT_SECONDS = 2.0  # for the main thread to end the process in order


class LeavingMaster(Protocol):
    """What of the master's client a replica that leaves needs."""

    def leave_ps(self, index: int, give_up_seconds: float) -> str:
        """Say so; return the folder to write to, or ""."""
        ...

    def hand_over(self, index: int, version: int, give_up_seconds: float) -> None:
        """Say that all is written."""
        ...


class Written(Protocol):
    """What of a `Store` is written."""

    def checkpoint(self, directory: str) -> str:
        """Write files into a folder; return the manifest entry."""
        ...


class StoppableServer(Protocol):
    """What of a `PsServer` is ended."""

    @property
    def store(self) -> Written | None:
        """What is served now; None: nothing, since the model has moved, or is about to."""
        ...

    def stop(self) -> None:
        """Finish the requests in work, and answer none any more."""
        ...


class PsDeparture:
    """Ends a ps process in order. `begin` runs in a thread of its own."""

    def __init__(
        self,
        master: LeavingMaster,
        index: int,
        writes: Callable[[], None],
        longest_seconds: float = _LONGEST_SECONDS,
    ) -> None:
        """Given whom to tell when it begins to write."""
        self._master = master
        self._index = index
        self._writes = writes
        self._longest_seconds = longest_seconds
        self.is_over = threading.Event()
        """Then the main thread ends the process."""
        self.server: StoppableServer | None = None
        """Set once it serves."""

    def begin(self) -> None:
        """Hand over and end the process; in a limited time, whatever is waited for."""
        self.hand_over()
        self.is_over.set()
        threading.Event().wait(_EXIT_SECONDS)
        end_now(STOPPED_EXIT_CODE)

    def hand_over(self) -> None:
        """Hand over, in a limited time."""
        deadline = time.monotonic() + self._longest_seconds
        thread = threading.Thread(
            target=self._hand_over, args=(deadline,), name="hand-over", daemon=True
        )
        thread.start()
        thread.join(self._longest_seconds)
        if thread.is_alive():
            log.warning(
                "what this replica holds could not be written within %.0f s; its successor begins "
                "with an earlier checkpoint",
                self._longest_seconds,
            )

    def _hand_over(self, deadline: float) -> None:
        server = self.server
        if server is None or server.store is None:
            return  # nobody has been answered yet, or it holds no part of the model
        try:
            folder = self._master.leave_ps(self._index, _TELL_SECONDS)
            if not folder:
                return
            self._writes()
            server.stop()  # from here on it holds what it held
            store = server.store
            assert store is not None
            version = write_hand_over(Path(folder), store.checkpoint)
            left = max(0.0, deadline - time.monotonic())
            self._master.hand_over(self._index, version, left)
            log.info("version %d is handed over in %s", version, folder)
        except ElasticdlError as error:
            log.warning(
                "what this replica holds cannot be handed over, so its successor begins with an "
                "earlier checkpoint: %s",
                error,
            )
