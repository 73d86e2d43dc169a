"""Finds out why a process of this machine has ended, and its last words."""

from __future__ import annotations

import signal
from pathlib import Path

from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.launchers.process.logs import last_words, of_a_build
from elasticdl.launchers.process.out_of_memory import OutOfMemoryKills

_KILLED_CODE = 128 + signal.SIGKILL
# It was asked to end, and did so at once, or in order (`process.start`).
_ASKED_CODES = {-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM}


def exited(
    handle: ProcessHandle, code: int | None, was_asked: bool, ooms: OutOfMemoryKills, log: Path
) -> Exited:
    """Return the event for the end of a process.

    Args:
        handle: The process.
        code: The exit code, or minus the signal; None if unknown.
        was_asked: The process was asked to end.
        ooms: Counts the out-of-memory kills where the process ran.
        log: The file with the process's output.
    """
    reason = _reason(code, was_asked, ooms)
    words = ""
    if reason is ExitReason.KILLED and code != -signal.SIGKILL:  # it crashed
        words = of_a_build(log)
    elif reason not in (ExitReason.FINISHED, ExitReason.KILLED, ExitReason.PREEMPTED):
        words = last_words(log)
    return Exited(handle, reason, code, words)


def _reason(code: int | None, was_asked: bool, ooms: OutOfMemoryKills) -> ExitReason:
    if code is None:
        return ExitReason.UNKNOWN
    if code == 0:
        return ExitReason.FINISHED
    if code == -signal.SIGKILL and not was_asked and ooms.take_one():
        return ExitReason.OUT_OF_MEMORY
    if code in _ASKED_CODES:
        return ExitReason.PREEMPTED
    return ExitReason.KILLED if code < 0 or code == _KILLED_CODE else ExitReason.FAILED
