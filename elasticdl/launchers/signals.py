"""Makes signals readable, so that a command waits in one place."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

_WAKE = 0
"""The byte that `wake` sends; no signal has this number."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_for_others(number: signal.Signals) -> bool:
    """Return whether a signal must be left alone: `nohup` makes a command ignore SIGHUP."""
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let handlers of the signals that ask to stop be called at the end of the block.

    A handler raises. If that were while `Popen` starts a process, nobody would know the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers are called in the main thread
        return
    came: list[tuple[int, FrameType | None]] = []
    found = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    before = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number in before:
            signal.signal(number, lambda *words: came.append(words))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for word, frame in came[:1]:
            before[signal.Signals(word)](word, frame)


class Signals:
    """Receives the signals that ask to stop, and SIGCHLD, while its context is open.

    The main thread uses it; any thread may call `wake`.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, signal._HANDLER] = {}
        self._wakeup_fd_before = -1

    def __enter__(self) -> Self:
        self._wakeup_fd_before = signal.set_wakeup_fd(
            self._writer.fileno(), warn_on_full_buffer=False
        )
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            if not is_for_others(number):
                self._before[number] = signal.signal(number, _note_only)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd_before)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout_seconds: float | None) -> list[signal.Signals]:
        """Return the signals that came; wait for a signal, for `wake`, or for the timeout."""
        select.select([self._reader], [], [], timeout_seconds)
        try:
            received = self._reader.recv(4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in received if number != _WAKE]

    def wake(self) -> None:
        """End `wait`, now or the next time. After the context has ended, this does nothing."""
        # A full buffer wakes just as well.
        with contextlib.suppress(OSError):
            self._writer.send(bytes([_WAKE]))


def _note_only(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written the number to the wakeup descriptor."""
