"""What the master's core wants done; whoever does it comes back with an event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from elasticdl.job import Role
from elasticdl.launchers.base import ProcessHandle


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a process; then `process_started` or `process_exited`."""

    role: Role
    index: int


@dataclass(frozen=True, slots=True)
class AdoptProcess:
    """Watch a process that an earlier master started; `process_exited` when it is gone."""

    handle: ProcessHandle


@dataclass(frozen=True, slots=True)
class StopProcess:
    """End a process that was given up."""

    handle: ProcessHandle


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Write a checkpoint; then `checkpoint_written` or `checkpoint_failed`.

    A private one is the job's own, to restore a ps replica from; it replaces the one before.
    """

    version: int
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class ExpireRows:
    """Have the replicas remove rows that have come to their end; nobody waits for it."""


@dataclass(frozen=True, slots=True)
class DeleteCheckpoints:
    """Delete old checkpoints; nobody waits for it."""

    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskAudit:
    """Ask the replicas what they have applied; then `audited` or `audit_failed`."""


@dataclass(frozen=True, slots=True)
class AskWatermarks:
    """Ask a ps replica that is back what it has; then `replica_back` or `replica_unreachable`."""

    index: int
    session: str
    address: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the log and the event log."""

    event: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    is_warning: bool = False


Action = (
    StartProcess
    | AdoptProcess
    | StopProcess
    | WriteCheckpoint
    | ExpireRows
    | DeleteCheckpoints
    | AskAudit
    | AskWatermarks
    | Note
)
