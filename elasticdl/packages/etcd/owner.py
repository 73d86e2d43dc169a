"""Describes the process that holds a journal, so that others on the machine see if it is gone."""

from __future__ import annotations

import os
import socket
from typing import Any

from elasticdl.runtime.proc import boot_id, stat_fields


def this_process() -> dict[str, Any]:
    """Describe this process as a JSON object."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "started": _started(pid), **_machine()}


def is_gone(owner: dict[str, Any]) -> bool:
    """Return whether a process is known to have ended: it was on this machine, and is gone.

    For a process on another machine, or in another container, nothing is known: False.
    """
    if any(owner.get(name) != value for name, value in _machine().items()):
        return False
    pid, started = owner.get("pid"), owner.get("started")
    return isinstance(pid, int) and isinstance(started, int) and _started(pid) != started


def name_of(owner: dict[str, Any]) -> str:
    """Return the name of a process for messages."""
    return f"pid {owner.get('pid')} on {owner.get('host')}"


def _machine() -> dict[str, str]:
    """Return the scope in which a pid is unique: one boot of a machine, and one container on it."""
    return {"boot": boot_id(), "pids": os.readlink("/proc/self/ns/pid")}


def _started(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None if it has ended."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])
