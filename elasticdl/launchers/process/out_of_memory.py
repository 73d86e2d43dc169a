"""Tells the kernel's out-of-memory kills from any other SIGKILL.

The kernel counts its kills for a control group: this process and the processes that it starts (a
container, a service, a session with a limit). If this count cannot be read, the count of the
machine is used. The kernel does not name the victim. So a `kill -9` from outside counts as an
out-of-memory kill if another process in the group, or on the machine, was killed for want of memory
before, and no exit was explained by that kill. Two kills cannot be recognised: one by another
program that looks after memory (earlyoom, systemd-oomd), and one in a control group of its own.
"""

from __future__ import annotations

from pathlib import Path


class OutOfMemoryKills:
    """Counts the out-of-memory kills; each kill explains one exit."""

    def __init__(self, path: Path | None = None) -> None:
        """Count from now on, in a file with a line `oom_kill NUMBER`; by default this process's."""
        self._path = path or counter_file()
        self._explained = self._count()

    def take_one(self) -> bool:
        """Return whether there was a kill that explains no exit yet."""
        if self._count() <= self._explained:
            return False
        self._explained += 1
        return True

    def _count(self) -> int:
        return _kills(self._path) or 0


def counter_file(proc: Path = Path("/proc"), control_groups: Path = Path("/sys/fs/cgroup")) -> Path:
    """Return the file whose count of kills covers the fewest processes beside this one's."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    candidates = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":  # version 2
            candidates.append(control_groups / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            of_memory = control_groups / "memory"
            candidates.append(of_memory / group.lstrip("/") / "memory.oom_control")
            candidates.append(of_memory / "memory.oom_control")  # a container sees its own only
    return next((path for path in candidates if _kills(path) is not None), proc / "vmstat")


def _kills(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    counts = [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return counts[0] if counts else None
