"""Finds the processes that hold a lock on a file of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from elasticdl.runtime.secret_files import user_name

_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a lock."""

    pid: int
    user: str

    def __str__(self) -> str:
        """Return the process and its user in words."""
        return f"process {self.pid} of {self.user}"


def lock_holders(path: Path) -> list[Holder]:
    """Return the processes of this machine that have a lock on a file, as far as known."""
    try:
        found = path.stat()
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return []
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    # A line is like "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"; "->" marks a waiting lock.
    words = (line.split() for line in lines)
    pids = {int(w[4]) for w in words if len(w) > 5 and w[1] != "->" and w[5] == name}
    return [Holder(pid, _user_of(pid)) for pid in sorted(pids) if pid > 0]


def _user_of(pid: int) -> str:
    try:
        return user_name(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return "an unknown user"
