"""What Linux says of processes, in `/proc`."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Return what the kernel has drawn when the machine was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None if there is none."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of `/proc/PID/stat` from the state on; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command's name in parentheses and may hold anything.
    return stat.rpartition(")")[2].split()
