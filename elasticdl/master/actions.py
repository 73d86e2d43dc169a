"""Actions: the core asks for them, and each result comes back as an event or an `Answer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elasticdl.job import Role
from elasticdl.launchers.base import ProcessHandle
from elasticdl.master.moves.messages import MoveAction
from elasticdl.master.parameters.proof import Proof, Replicas
from elasticdl.master.parameters.works import WorkStep
from elasticdl.observe.kind import Kind


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
    """Write a checkpoint; then `CheckpointWritten` or `CheckpointFailed`.

    A private one lies in the job's own folder, to restore a ps replica from.
    """

    version: int
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class DoWork:
    """Do a step of a work with all parameters; then `WorkDone` or `WorkFailed`."""

    version: int  # of the model
    step: WorkStep


@dataclass(frozen=True, slots=True)
class ExpireRows:
    """Have the replicas remove rows that have come to their end; nobody waits for it."""


@dataclass(frozen=True, slots=True)
class DeleteCheckpoints:
    """Delete all checkpoints of one kind that are older than these; nobody waits for it."""

    kept: tuple[int, ...]  # versions
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class DeleteHandOvers:
    """Delete the hand-overs of a role that nobody needs; nobody waits for it.

    The interpreter lists the folders first, and then asks which hand-overs are needed. A process
    that is asked to end in the meantime makes another folder.
    """

    role: Role = Role.PS


@dataclass(frozen=True, slots=True)
class AskAudit:
    """Ask the replicas what they have applied; then `Audited` or `AuditFailed`.

    prove: Makes the proof from the answers. It looks at each task of the job, so it is not for the
        event loop; nothing that it reads changes while the answer is of worth.
    first: Replicas are to forget the tasks before it.
    """

    prove: Callable[[Replicas], Proof]
    first: int = 0


@dataclass(frozen=True, slots=True)
class AskWatermarks:
    """Ask a process that has restored parameters what they have applied.

    Then `Watermarks` or `WatermarksFailed`. role: A ps replica, or a worker with a copy.
    """

    index: int
    session: str
    address: str
    role: Role = Role.PS


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the log and the event log."""

    kind: Kind
    text: str
    is_warning: bool = False


Action = (
    StartProcess
    | AdoptProcess
    | StopProcess
    | WriteCheckpoint
    | DoWork
    | ExpireRows
    | DeleteCheckpoints
    | DeleteHandOvers
    | AskAudit
    | AskWatermarks
    | MoveAction
    | Note
)
