"""The seam between the master and whatever runs processes: this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from elasticdl.job import Role


class ExitReason(StrEnum):
    """Why a process ended."""

    FINISHED = "finished"  # exit code 0
    FAILED = "failed"  # any other exit code of its own
    KILLED = "killed"  # by a signal, or preempted
    OUT_OF_MEMORY = "out of memory"
    NODE_LOST = "node lost"
    UNKNOWN = "unknown"  # it ended while no master watched


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start: its command line, and the file that takes its stdout and stderr."""

    role: Role
    index: int
    command: tuple[str, ...]
    log_path: Path


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """A started process. `ref` lets a restarted master find it again; for its launcher only."""

    role: Role
    index: int
    ref: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A process ended. `code` is its exit code, or minus the signal; None if nobody knows."""

    handle: ProcessHandle
    reason: ExitReason
    code: int | None


class Launcher(Protocol):
    """Starts and watches processes.

    `on_exit` (given when the launcher is made: `Callable[[Exited], None]`) is called exactly once
    for each process started or adopted, from a thread of the launcher.
    """

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Start a process.

        Raises:
            LaunchError: It cannot be started; says why.
        """
        ...

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch a process that an earlier master started; if it is gone, `on_exit` says so."""
        ...

    def stop(self, handle: ProcessHandle, grace_seconds: float) -> None:
        """Ask a process to end, and end it after the grace period; returns at once."""
        ...

    def close(self, grace_seconds: float) -> None:
        """Stop every process that still runs and wait until all are gone."""
        ...


OnExit = Callable[[Exited], None]
