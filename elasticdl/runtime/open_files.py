"""How many files and sockets a process may have open.

Many systems begin with 1,024, and let a process raise that by itself. A master has a connection for
each process of its job, and strangers may open more than that at its port.
"""

from __future__ import annotations

import contextlib
import resource

_ENOUGH = 65_536  # some programs that a job starts go through all that they might have open


def raise_limit() -> None:
    """Have this process, and those that it starts, open as many as it may, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return how many this process may have open; a large number where nothing says."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else min(soft, _ENOUGH)
