"""A thread that works beside others for as long as a block lasts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from elasticdl.runtime.ending import wait_at_end_for


class Background(ABC):
    """A thread of its own; used as a context. At the end of the block it is asked to end.

    It is not joined: it may be in a call to a master that is away, which would hold the process.
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
