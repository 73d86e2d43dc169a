"""A disk that may hang, such as one behind a network: the caller gives up after a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from elasticdl.errors import CheckpointError
from elasticdl.runtime.ending import DaemonThread

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
"""The folders and small files of a checkpoint are made in less time, on any disk that works."""


class Disk:
    """Works on files in threads of its own, one piece at a time, with a time limit for each piece.

    A thread that hangs is left behind. It ends with the process, or when the disk answers.
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Set how long a piece of work may be silent."""
        self._patience_seconds = patience_seconds
        self._last: _Piece[Any] | None = None
        self._is_closed = threading.Event()

    def do(self, what: str, work: Callable[[], T]) -> T:
        """Return the result of `work`.

        Args:
            what: The file or folder, for errors.
            work: Works on files; its time within `elsewhere` has no limit.

        Raises:
            CheckpointError: The disk does not answer, or an earlier piece of work still hangs.
        """
        # The disk still hangs, and a new thread for each checkpoint would pile up.
        if self._last is not None and self._last.thread.is_alive():
            raise CheckpointError(
                f"{what}: nothing is tried, since the disk has not answered the last request for "
                f"{time.monotonic() - self._last.began:.0f} s; does its server run?"
            )
        piece = _Piece(work, self._patience_seconds, self._is_closed)
        self._last = piece
        piece.start()
        if not piece.wait():
            raise CheckpointError(
                f"{what}: the disk has not answered for {self._patience_seconds:g} s; does its "
                "server run? Training goes on without this checkpoint"
            )
        return piece.outcome()

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Do not count the time within the block: the work waits for another process.

        Raises:
            CheckpointError: The caller has given up this piece of work.
        """
        piece = self._last
        assert piece is not None, "within a piece of work"
        piece.pause()
        try:
            yield
        finally:
            piece.go_on()

    def close(self) -> None:
        """Stop waiting: the process is about to end."""
        self._is_closed.set()
        if self._last is not None:
            self._last.wake()


class _Piece(Generic[T]):
    """One piece of work, in its thread."""

    def __init__(
        self, work: Callable[[], T], patience_seconds: float, is_closed: threading.Event
    ) -> None:
        self._work = work
        self._patience_seconds = patience_seconds
        self._is_closed = is_closed
        self._changed = threading.Condition()
        self._is_done = False
        self._is_given_up = False
        self._deadline: float | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None
        self.began = time.monotonic()
        self.thread = DaemonThread(self._run, "disk")

    def start(self) -> None:
        self.go_on()
        self.thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # handed to whoever waits
            self._error = error
        with self._changed:
            self._is_done = True
            self._changed.notify_all()

    def wait(self) -> bool:
        """Return whether the work ended before it was silent for too long."""
        with self._changed:
            while not self._is_done:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                # The work cannot be stopped, only left behind. It learns at its next pause that no
                # one waits.
                if self._is_closed.is_set() or (left is not None and left <= 0.0):
                    self._is_given_up = True
                    return False
                self._changed.wait(left)
        return True

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]

    def pause(self) -> None:
        with self._changed:
            if self._is_given_up:
                raise CheckpointError("the disk answered after nobody waited any more")
            self._deadline = None
            self._changed.notify_all()

    def go_on(self) -> None:
        with self._changed:
            self._deadline = time.monotonic() + self._patience_seconds
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
