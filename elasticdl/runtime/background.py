"""A thread that works during a block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from elasticdl.runtime.ending import wait_at_end_for


class Background(ABC):
    """A context manager with a thread. The thread is asked to end at the end of the block.

    The block does not join the thread, which may wait for a master that does not answer.
    """

    def __init__(self, name: str) -> None:
        """Prepare a thread of that name."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        wait_at_end_for(self._thread)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stop` is set."""
