"""How a process ends, and the threads that it waits for then."""

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
_ending: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def wait_at_end_for(thread: threading.Thread) -> None:
    """Have `end` wait a moment for a daemon thread, which ends by itself or was asked to."""
    _ending.add(thread)


class Beside(threading.Thread):
    """A thread that ends by itself when its work is done or given up; `end` waits for it a moment.

    It does not hold the process: it may be in a user's `feed`, or in a call to a master that is
    away.
    """

    def __init__(self, target: Callable[..., object], name: str, args: tuple[object, ...] = ()):
        """Prepare a thread of that name, which calls `target(*args)`."""
        super().__init__(target=target, name=name, args=args, daemon=True)
        wait_at_end_for(self)


def run(main: Callable[[], None]) -> NoReturn:
    """Run what a process is for, and end the process as Python does; see `end`."""
    code = 0
    try:
        main()
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            raise  # a message, which Python prints
        code = error.code or 0
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    end(code)


def end(code: int) -> NoReturn:
    """End this process with an exit code as Python does.

    Python ends a daemon thread where it next takes the interpreter's lock. Where this is within a
    function of C++ or Rust that lets no exception through, as most of PyTorch's, the whole process
    aborts ("terminate called without an active exception"). So threads of ours have a moment to
    end. If one does not, what was registered with `atexit` is done, and the process ends without
    the interpreter's own end.
    """
    deadline = time.monotonic() + _SECONDS_FOR_THREADS
    left = [thread for thread in threading.enumerate() if thread in _ending]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    if not any(thread.is_alive() for thread in left):
        sys.exit(code)
    atexit._run_exitfuncs()
    end_now(code)


def end_now(code: int) -> NoReturn:
    """End this process whatever its threads wait for, such as a disk that does not answer.

    Python's own end joins threads of executors, for as long as it takes.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
