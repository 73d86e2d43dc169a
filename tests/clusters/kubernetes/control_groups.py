"""Limits of memory and CPU, held by the kernel's control groups (version 1 or 2)."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 100_000


@dataclass(frozen=True)
class ControlGroup:
    """The control group of one container. `name` is its path below the root of each controller."""

    name: str

    @property
    def _is_unified(self) -> bool:
        return (_ROOT / "cgroup.controllers").exists()

    @property
    def _memory(self) -> Path:
        return (_ROOT if self._is_unified else _ROOT / "memory") / self.name

    @property
    def _cpu(self) -> Path:
        return (_ROOT if self._is_unified else _ROOT / "cpu") / self.name

    @property
    def members(self) -> list[str]:
        """The files that a process writes its id to, to join."""
        return [str(folder / "cgroup.procs") for folder in {self._memory, self._cpu}]

    def make(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Make the group, with its limits; None is none."""
        for folder in {self._memory, self._cpu}:
            folder.mkdir(parents=True, exist_ok=True)
        if self._is_unified:
            group = _ROOT
            for part in Path(self.name).parts:
                (group / "cgroup.subtree_control").write_text("+memory +cpu")
                group /= part
        if memory_bytes is not None:
            limit = "memory.max" if self._is_unified else "memory.limit_in_bytes"
            (self._memory / limit).write_text(str(memory_bytes))
        if cpus is not None:
            quota = max(1000, int(cpus * _PERIOD_MICROSECONDS))
            if self._is_unified:
                (self._cpu / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
            else:
                (self._cpu / "cpu.cfs_quota_us").write_text(str(quota))

    def weigh(self, cpus: float) -> None:
        """Have the group, with all below it, count as so many processes where CPUs are short."""
        self._cpu.mkdir(parents=True, exist_ok=True)
        if self._is_unified:
            (self._cpu / "cpu.weight").write_text(str(round(min(10_000, 100 * cpus))))
        else:
            (self._cpu / "cpu.shares").write_text(str(round(1024 * cpus)))

    def out_of_memory_kills(self) -> int:
        """Return how many processes of the group the kernel killed for want of memory."""
        file = "memory.events" if self._is_unified else "memory.oom_control"
        for line in (self._memory / file).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0

    def make_everywhere(self) -> None:
        """Make the group for every controller, without limits, for a program that makes its own."""
        for folder in self._everywhere():
            folder.mkdir(parents=True, exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                # A group of version 1 takes no process before these are said.
                for group in (folder.parent, folder):
                    if (group / setting).exists() and not (group / setting).read_text().strip():
                        (group / setting).write_text((group.parent / setting).read_text())

    def kill(self) -> None:
        """Kill everything that runs in the group and in those below it."""
        for file in self._memory.rglob("cgroup.procs"):
            for process in file.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)

    def remove(self) -> None:
        """Remove the group and those below it.

        Raises:
            OSError: Something runs in it.
        """
        for folder in self._everywhere():
            if folder.exists():
                below = [path for path in folder.rglob("*") if path.is_dir()]
                for path in sorted(below, key=lambda path: -len(path.parts)):
                    path.rmdir()
                folder.rmdir()

    def _everywhere(self) -> list[Path]:
        if self._is_unified:
            return [_ROOT / self.name]
        return [
            folder / self.name for folder in _ROOT.iterdir() if (folder / "cgroup.procs").exists()
        ]


def missing() -> str:
    """Return why control groups cannot be used here, or an empty string."""
    probe = ControlGroup(f"elasticdl-probe-{os.getpid()}")  # several processes of tests ask at once
    try:
        probe.make(2**30, 1.0)
        probe.remove()
    except OSError as error:
        return f"control groups for memory and cpu cannot be made: {error}"
    return ""
