"""Whatever the root of a job starts, and whatever that starts in turn, ends with it.

Two means, each enough for most cases: the lifeline (`elasticdl.runtime.process`), which works even
if the root is killed; and the kernel's *subreaper* mark, by which orphans (the workers of a master
that was killed) become children of the root, which can wait for them and count them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from elasticdl.runtime.process import LIFELINE_VARIABLE

_PR_SET_CHILD_SUBREAPER = 36
_log = logging.getLogger(__name__)


def spawn(
    command: Sequence[str],
    log: Path,
    lifeline: int | None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with its output added to `log`.

    `variables` are those of its environment that differ from ours.

    A session of its own keeps the terminal's Ctrl-C from it (the command line decides what that
    means for the job) and makes its process group that of everything it starts.

    Raises:
        OSError: The program or the log cannot be opened.
    """
    environment = dict(os.environ) | dict(variables or {})
    environment.pop(LIFELINE_VARIABLE, None)
    if lifeline is not None:
        environment[LIFELINE_VARIABLE] = str(lifeline)
    with _opened(log) as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            pass_fds=() if lifeline is None else (lifeline,),
            start_new_session=True,
        )


def _opened(log: Path) -> BinaryIO:
    """Open a log; where its disk has no room for it, what is printed is lost."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _log.warning("%s: no log is written: %s", log, error)
        return open(os.devnull, "wb")


def become_subreaper() -> None:
    """Have orphaned descendants become children of this process.

    Raises:
        OSError: The kernel does not know how.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "prctl")


def reap() -> tuple[dict[int, int], bool]:
    """Reap every child that has ended.

    Returns:
        pid -> exit code (minus the signal) of those, and whether any child is left.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = os.waitstatus_to_exitcode(status)


def end_all(
    wait: Callable[[float], object], patience_seconds: float, give_up_seconds: float
) -> bool:
    """Wait until every child is gone, and kill those that still live after a while.

    Args:
        wait: Returns when a child may have ended, or after the seconds that it is given.
        patience_seconds: How long children may take to end by themselves.
        give_up_seconds: When to stop waiting for children that even SIGKILL does not end.

    Returns:
        Whether none is left.
    """
    started = time.monotonic()
    while True:
        _, any_left = reap()
        if not any_left:
            return True
        waited = time.monotonic() - started
        if waited >= give_up_seconds:
            return False
        if waited >= patience_seconds:
            for pid in children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            wait(0.1)  # the children of those we killed are ours now; look again
        else:
            wait(patience_seconds - waited)


def children() -> Iterator[int]:
    """Yield the pids of the children of this process."""
    me = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # A process may go away while it is being looked at.
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[1] == me and fields[0] != "Z":
                    yield int(entry.name)
