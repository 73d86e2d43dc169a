"""The limit of open files and sockets of a process.

Many systems begin with 1,024 and let a process raise the limit. A master has a connection for each
process of its job, and strangers may open many more at its port.
"""

from __future__ import annotations

import contextlib
import resource

_ENOUGH = 65_536  # not more: some programs try to close each file that they might have open


def raise_limit() -> None:
    """Raise the limit of this process and its children as far as allowed, to 65,536 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # the limit then stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return the limit of this process; a large number if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else min(soft, _ENOUGH)
