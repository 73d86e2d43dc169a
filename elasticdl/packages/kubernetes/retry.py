"""Repeats calls that the API server could not answer, with growing pauses."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from elasticdl.packages.kubernetes.client import ApiError

T = TypeVar("T")

_FIRST_SECONDS = 0.2
_LONGEST_SECONDS = 10.0


class Backoff:
    """Pauses that grow, each with a random length, so that clients do not all come at once."""

    def __init__(self, closed: threading.Event) -> None:
        self._closed = closed
        self._seconds = _FIRST_SECONDS

    def reset(self) -> None:
        """Begin with a short pause again."""
        self._seconds = _FIRST_SECONDS

    def pause(self, at_least: float = 0.0) -> None:
        """Wait; `closed` ends the waiting."""
        self._closed.wait(max(at_least, self._seconds * random.uniform(0.5, 1.0)))
        self._seconds = min(2 * self._seconds, _LONGEST_SECONDS)


@contextlib.contextmanager
def given_up_after(seconds: float) -> Iterator[threading.Event]:
    """Yield an event that ends `persistently` so many seconds after the block was entered."""
    given_up = threading.Event()
    timer = threading.Timer(seconds, given_up.set)
    timer.daemon = True
    timer.start()
    try:
        yield given_up
    finally:
        timer.cancel()


def persistently(
    call: Callable[[], T], closed: threading.Event, failed: Callable[[ApiError], None]
) -> T:
    """Call a function until it succeeds, fails for good, or is closed.

    Args:
        call: The function.
        closed: The event that ends the attempts.
        failed: The receiver of each failure that may pass.

    Raises:
        ApiError: The last failure.
    """
    backoff = Backoff(closed)
    while True:
        try:
            return call()
        except ApiError as error:
            if not error.is_transient or closed.is_set():
                raise
            failed(error)
            backoff.pause(error.retry_after)
