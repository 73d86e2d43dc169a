"""Ends all processes that the root of a job starts, and their children, together with the root.

There are two means, and each is enough for most cases. The lifeline (`elasticdl.runtime.process`)
works even if the root is killed. The kernel's *subreaper* mark makes orphans (such as the workers
of a master that was killed) children of the root, so the root can wait for them and count them.
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
    """Start a process in its own session, with its output added to `log`.

    `variables` are the variables of its environment that differ from this process.

    In its own session the process does not get the terminal's Ctrl-C: the command decides what
    Ctrl-C means for the job. And its process group is the group of all processes that it starts.

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
    """Open a log; if its disk is full, the output is lost."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _log.warning("%s: no log is written: %s", log, error)
        return open(os.devnull, "wb")


def become_subreaper() -> None:
    """Make the kernel give orphaned descendants to this process as children.

    Raises:
        OSError: The kernel does not have this function.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "prctl")


def reap() -> tuple[dict[int, int], bool]:
    """Reap every child that has ended.

    Returns:
        Maps pid to exit code (minus the signal), and tells whether any child is left.
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
    """Wait until every child is gone, and kill the children that still live after a while.

    Args:
        wait: Returns when a child may have ended, or after the seconds that it is given.
        patience_seconds: How long children may take to end by themselves.
        give_up_seconds: When to stop waiting for children that do not end even by SIGKILL.

    Returns:
        Whether no child is left.
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
            wait(0.1)  # their children are this process's now: look again
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
