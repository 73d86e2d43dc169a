"""Answers of the holders of parameters to an action, and their meaning for the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticdl.job import Finished, Role, Seat, Wait
from elasticdl.master.membership import Member
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.moves.messages import MoveAnswer
from elasticdl.master.parameters.hand_overs import HandOver
from elasticdl.master.parameters.proof import Proof, Replicas
from elasticdl.master.parameters.schedule import WholeCheckpoint


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The checkpoint that `WriteCheckpoint` asked for is whole."""

    version: int


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """It could not be written, perhaps because a part of the holder could not be reached."""

    version: int
    message: str
    was_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The step that `DoWork` asked for is done."""

    version: int
    result: object


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """It could not be done."""

    version: int
    message: str
    was_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Audited:
    """The answer to `AskAudit`: the minibatches of every task that have been applied."""

    replicas: Replicas
    """Empty if there is a proof."""
    proof: Proof | None = None
    """Made of them already, beside the event loop."""
    tally: Mapping[str, int] = field(default_factory=dict)  # of `elasticdl.job.COUNTERS`


@dataclass(frozen=True, slots=True)
class AuditFailed:
    """The holder could not be asked, so nothing is proved."""

    message: str
    was_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The answer to `AskWatermarks`: the tasks that the parameters of a returned process have."""

    index: int
    session: str
    applied: Applied
    role: Role = Role.PS


@dataclass(frozen=True, slots=True)
class WatermarksFailed:
    """The process could not be asked what its parameters have."""

    index: int
    session: str
    message: str
    role: Role = Role.PS


Answer = (
    CheckpointWritten
    | CheckpointFailed
    | WorkDone
    | WorkFailed
    | Audited
    | AuditFailed
    | Watermarks
    | WatermarksFailed
    | MoveAnswer
)


@dataclass(frozen=True, slots=True)
class Consequences:
    """The consequences of an answer for the job. By default there are none to act on."""

    is_phase_over: bool = False
    failure: str = ""  # the job fails, for this reason
    lost: Member | None = None  # is to be given up: it could not be reached,
    words: str = ""  # as this says


RestorePoint = WholeCheckpoint | HandOver
"""The point from which a process that is to hold parameters can begin."""


@dataclass(frozen=True, slots=True)
class BeginWith:
    """A worker that came to the rendezvous is to begin with this; None: the start of the job."""

    point: RestorePoint | None


RendezvousAnswer = Seat | BeginWith | Wait | Finished
"""The answer to a worker that came to the rendezvous."""
