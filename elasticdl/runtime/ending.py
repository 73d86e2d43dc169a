"""Ends a process, after a short wait for its threads."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import NoReturn

_SECONDS_FOR_THREADS = 1.0
_ending: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # keeps no ended thread


def wait_at_end_for(thread: threading.Thread) -> None:
    """Let `end` wait a moment for a daemon thread that ends soon."""
    _ending.add(thread)


class DaemonThread(threading.Thread):
    """A daemon thread that ends when its work is done or given up. `end` waits a moment for it.

    The process does not wait longer, because the thread may be in a user's `feed` or in a call to
    a master that does not answer.
    """

    def __init__(self, target: Callable[..., object], name: str, args: tuple[object, ...] = ()):
        """Prepare a thread of that name, which calls `target(*args)`."""
        super().__init__(target=target, name=name, args=args, daemon=True)
        wait_at_end_for(self)


def run(main: Callable[[], None]) -> NoReturn:
    """Run the main function of a process, then end the process; see `end`."""
    code = 0
    try:
        main()
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            raise  # Python prints the message
        code = error.code or 0
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    end(code)


def end(code: int) -> NoReturn:
    """End this process with an exit code.

    Python ends a daemon thread when the thread next takes the interpreter's lock. If this happens
    inside C++ or Rust code that lets no exception through, the whole process aborts ("terminate
    called without an active exception"). Most code of PyTorch is such code. So our threads get a
    moment to end. If a thread does not end, the functions of `atexit` run, and the process ends
    without the interpreter's own shutdown.
    """
    deadline = time.monotonic() + _SECONDS_FOR_THREADS
    left = [thread for thread in threading.enumerate() if thread in _ending]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    if not any(thread.is_alive() for thread in left):
        sys.exit(code)
    atexit._run_exitfuncs()  # `os._exit` would leave them out
    end_now(code)


def end_now(code: int) -> NoReturn:
    """End this process even if its threads wait, for example for a disk that does not answer.

    Python's own shutdown would join the threads of executors without a time limit.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
