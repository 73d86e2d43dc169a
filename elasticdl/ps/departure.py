"""Lets a ps replica leave that was asked to end: the replica writes its store, so nothing is lost.

The replica tells the master first, and the master names a folder. Then the replica answers no
request any more, so its store stays as it is. Clients treat the replica as away, and wait for its
successor. The successor begins with the written store. If the store is not written in time, the
successor begins with the job's last checkpoint, and the missing updates are trained again.
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

# Whoever asks a process to end usually kills it 30 s later.
_LONGEST_SECONDS = 25.0
_TELL_SECONDS = 3.0  # for the master to answer; it may be gone as well
_EXIT_SECONDS = 2.0  # for the main thread to end the process in order


class LeavingMaster(Protocol):
    """The calls to the master that a leaving replica needs."""

    def leave_ps(self, index: int, give_up_seconds: float) -> str:
        """Tell the master that the replica leaves; return the folder for its store, or ""."""
        ...

    def hand_over(self, index: int, version: int, give_up_seconds: float) -> None:
        """Tell the master that the whole store is written."""
        ...


class Written(Protocol):
    """The part of a `Store` that a leaving replica needs."""

    def checkpoint(self, directory: str) -> str:
        """Write files into a folder; return the manifest entry."""
        ...


class StoppableServer(Protocol):
    """The part of a `PsServer` that a leaving replica needs."""

    @property
    def store(self) -> Written | None:
        """The served store; None if there is none, because the model has moved or will move."""
        ...

    def stop(self) -> None:
        """Finish the requests in work, and answer no more requests."""
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
        """Keep the master's client, and the function that is called before the store is written."""
        self._master = master
        self._index = index
        self._writes = writes
        self._longest_seconds = longest_seconds
        self.is_over = threading.Event()
        """Once this is set, the main thread ends the process."""
        self.server: StoppableServer | None = None
        """Set once the replica serves."""

    def begin(self) -> None:
        """Hand over, and end the process in a limited time."""
        self.hand_over()
        self.is_over.set()
        # The main thread ends the process in order; if it hangs, the process is ended here.
        threading.Event().wait(_EXIT_SECONDS)
        end_now(STOPPED_EXIT_CODE)

    def hand_over(self) -> None:
        """Hand over in a limited time."""
        deadline = time.monotonic() + self._longest_seconds
        # The hand-over runs in a thread, so that a disk or a master that hangs cannot hold the
        # process.
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
