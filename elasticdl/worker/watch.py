"""Watches a worker that may hang in the user's code."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from elasticdl.rpc.base import MasterClient
from elasticdl.runtime.background import Background
from elasticdl.runtime.proc import cpu_seconds
from elasticdl.runtime.process import TIMED_OUT_EXIT_CODE
from elasticdl.worker.spans import Work
from elasticdl.worker.watchdog import Overdue, SlowWork, Watchdog, position

log = logging.getLogger(__name__)

_STDERR = 2  # a model file may have replaced `sys.stderr` by what is no file
_TELL_SECONDS = 10.0  # so long may the master take to hear it


class Watch(Background):
    """A thread that looks every few seconds; used as a context.

    Work that takes too long ends the process. The stacks of all threads go to its log, the master
    hears where it hangs, and the exit code tells the reason.

    If the user's code holds Python's lock, this thread cannot run. No heartbeat is sent then
    either, so the master takes the worker as lost. A timer that needs no lock writes the stacks to
    the log.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        under_way: Callable[[], Sequence[Work]],
        master: MasterClient,
        worker_id: int,
        interval_seconds: float,
        silence_seconds: float,
        is_ending: bool = True,
    ) -> None:
        """Watch the work that runs.

        Args:
            watchdog: Decides.
            under_way: Returns the work that runs now.
            master: Is told.
            worker_id: The worker.
            interval_seconds: The time between two looks.
            silence_seconds: The time without a heartbeat after which the master gives a worker up.
            is_ending: Whether work that takes too long ends the process; else it is only reported.
        """
        super().__init__("watch")
        self._watchdog = watchdog
        self._under_way = under_way
        self._master = master
        self._worker_id = worker_id
        self._interval_seconds = interval_seconds
        self._stacks_after_seconds = 0.7 * silence_seconds
        self._is_ending = is_ending
        self._told: Work | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        has_failed = False
        faulthandler.dump_traceback_later(self._stacks_after_seconds, file=_STDERR)
        while not self._stop.wait(self._interval_seconds):
            # The timer starts again with each look, so it only fires if this thread cannot run.
            faulthandler.dump_traceback_later(self._stacks_after_seconds, file=_STDERR)
            try:
                self.look()
            except Exception:
                if not has_failed:
                    log.exception("a look for code that does not return failed, the next is tried")
                has_failed = True

    def look(self) -> None:
        """Look once; end the process if something takes too long."""
        found = self._watchdog.look(time.perf_counter(), cpu_seconds(), self._under_way())
        match found:
            case SlowWork(work, seconds, left_seconds):
                log.warning(
                    "%.0f s in %s; the worker is ended if that takes %.0f s more",
                    seconds,
                    position(found).of(work.place.lease.task),
                    left_seconds,
                )
                self._tell(found)
            case Overdue() if self._is_ending:
                self._end(found)
            case Overdue(work, seconds) if self._told != work:
                self._told = work
                faulthandler.dump_traceback(file=_STDERR, all_threads=True)
                log.error(
                    "no end of %s after %.0f s; the stacks of all threads are above, and nothing "
                    "else ends it: press Ctrl-C twice, or wait",
                    position(found).of(work.place.lease.task),
                    seconds,
                )

    def _end(self, found: Overdue) -> None:
        faulthandler.dump_traceback(file=_STDERR, all_threads=True)
        self._tell(found).join(_TELL_SECONDS)
        log.error(
            "no end of %s after %.0f s, so this worker ends; the stacks of its threads are above",
            position(found).of(found.work.place.lease.task),
            found.seconds,
        )
        # The process ends without any cleaning up: the thread that hangs would never let it end.
        os._exit(TIMED_OUT_EXIT_CODE)

    def _tell(self, found: SlowWork | Overdue) -> threading.Thread:
        """Tell the master, in a thread: the master may not answer."""
        words = (self._worker_id, position(found))
        thread = threading.Thread(target=self._master.announce, args=words, daemon=True)
        thread.start()
        return thread
