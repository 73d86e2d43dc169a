"""Makes requests in threads; repeats those that the API server could not answer, with pauses."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.client import ApiError

T = TypeVar("T")

_CREATORS = 8  # threads that ask for pods of one role
_SIGNERS = 4  # threads that make Secrets
_OTHERS = 4  # threads for all else

_FIRST_SECONDS = 0.2
_LONGEST_SECONDS = 10.0

log = logging.getLogger(__name__)


class RequestThreads:
    """The threads that make requests.

    A role that waits for room must delay neither other roles nor the ending of pods.
    """

    def __init__(self) -> None:
        """Start no thread before there is work for it."""
        self.creators = {
            role: ThreadPoolExecutor(_CREATORS, thread_name_prefix=f"create-{role}")
            for role in names.REPLICAS
        }
        self.signers = ThreadPoolExecutor(_SIGNERS, thread_name_prefix="certificates")
        self._others = ThreadPoolExecutor(_OTHERS, thread_name_prefix="kubernetes")

    def submit(self, work: Callable[[], None], pool: ThreadPoolExecutor | None = None) -> None:
        """Do work in a thread of a pool; `None`: of the pool for all else."""
        try:
            (pool or self._others).submit(_guarded, work)
        except RuntimeError:  # it was shut down
            log.debug("nothing is asked of Kubernetes any more")

    def close(self) -> None:
        """Begin no more work; do not wait for what was begun."""
        for pool in (self._others, self.signers, *self.creators.values()):
            pool.shutdown(wait=False, cancel_futures=True)


def _guarded(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        log.exception("a request to Kubernetes failed")


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
