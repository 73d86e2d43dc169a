"""The one interface through which the job speaks to whoever holds its parameters.

A **holder** decides, as the rest of the job's state machine does: events come in with the time,
facts go to the journal, actions come out. What an action asks of the outside comes back as an
`Answer`. The ledger of tasks knows no holder, and the core knows only this interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from elasticdl.errors import ElasticdlError
from elasticdl.job import Attendance, Finished, PsRoute, Recovery, Seat, Strategy, Wait
from elasticdl.master.lacks import Applied
from elasticdl.master.membership import Member
from elasticdl.master.parameters.hand_overs import HandedOver
from elasticdl.master.parameters.proof import Proof, Replicas
from elasticdl.master.parameters.schedule import CheckpointSchedule, WholeCheckpoint


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
class ExportWritten:
    """The version that `WriteExport` asked for is whole."""

    version: int  # of the model
    number: int  # of the version
    is_base: bool
    num_rows: int
    num_gone: int
    num_bytes: int
    is_current: bool  # it is what is to be served


@dataclass(frozen=True, slots=True)
class ExportFailed:
    """It could not be written; what it would have had comes with the next one.

    is_early: The workers have not written the model's program so far.
    """

    version: int
    message: str
    was_unreachable: bool = False
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Audited:
    """What `AskAudit` asked for: what has been applied of every task."""

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
    """What `AskWatermarks` asked for: what a ps replica that is back has applied."""

    index: int
    session: str
    applied: Applied


@dataclass(frozen=True, slots=True)
class WatermarksFailed:
    """The ps replica could not be asked what it has applied."""

    index: int
    session: str
    message: str


Answer = (
    CheckpointWritten
    | CheckpointFailed
    | ExportWritten
    | ExportFailed
    | Audited
    | AuditFailed
    | Watermarks
    | WatermarksFailed
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an answer means for the job. The default: nothing beyond what the holder has noted."""

    is_phase_over: bool = False
    failure: str = ""  # the job fails, for this reason
    lost: Member | None = None  # is to be given up: it could not be reached,
    words: str = ""  # as this says


RestorePoint = WholeCheckpoint | HandedOver
"""What a process of the holder's can begin with."""


@dataclass(frozen=True, slots=True)
class BeginWith:
    """A worker that came to the rendezvous is to begin with this; None: the start of the job."""

    point: RestorePoint | None


Seating = Seat | BeginWith | Wait | Finished
"""What a worker that came to the rendezvous is told."""


class NoWorlds:
    """A holder whose workers do not reduce among themselves."""

    find_dense: Callable[[], PsRoute] | None = None

    def attend(self, member: Member, said: Attendance, now: float) -> Seating:
        """Refuse."""
        raise ElasticdlError(
            f"{member.name} came to a rendezvous, expected in jobs with "
            f"--distribution_strategy={Strategy.ALLREDUCE} alone"
        )

    def seating(self, member: Member, said: Attendance) -> Seating:
        """Nobody waits for one."""
        return Finished()

    def ended_world(self, member: Member) -> int:
        """There is none."""
        return 0


class Holder(Protocol):
    """Whoever holds the parameters."""

    schedule: CheckpointSchedule

    # --- members ---------------------------------------------------------------------------------

    @property
    def num_processes(self) -> int:
        """How many processes, beside the workers, the job starts to hold its parameters."""
        ...

    def admit(self, index: int, session: str) -> None:
        """A process of the holder's own is about to register.

        Raises:
            ElasticdlError: There is no such place, or another process has it.
        """
        ...

    def registered(self, member: Member, now: float) -> None:
        """A process has registered, of whatever role."""
        ...

    def lost(self, member: Member, now: float) -> None:
        """A process is lost, of whatever role."""
        ...

    def handed_over(self, member: Member, version: int, now: float) -> None:
        """A process that was asked to end has written all that it holds."""
        ...

    def attend(self, member: Member, said: Attendance, now: float) -> Seating:
        """A worker comes to the rendezvous of those who hold parameters and reduce gradients.

        Raises:
            ElasticdlError: There is none in this job.
        """
        ...

    def restore_point(self, index: int, num_unsound: int, problem: str) -> RestorePoint | None:
        """Return the checkpoint of this job that a process of the holder's is to begin with.

        Any of this job's own will do: it brings its own watermarks, and what they lack is trained
        again. None means the start of the job, from which everything is trained again.

        Args:
            index: Which process.
            num_unsound: How many it has tried in vain, newest first.
            problem: What was wrong with the last of these.
        """
        ...

    def resumed(self, now: float) -> None:
        """Another master goes on with the job: what the one before had asked is lost."""
        ...

    # --- questions -------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether all parameters are there: only then may a lease go out."""
        ...

    @property
    def generation(self) -> int:
        """Counts the losses that were made good. Leases carry it, and workers compare it."""
        ...

    @property
    def route(self) -> PsRoute:
        """Where workers find the parameters."""
        ...

    @property
    def find_dense(self) -> Callable[[], PsRoute] | None:
        """Finds whoever serves what those at `route` do not hold; None: they hold all."""
        ...

    @property
    def can_lose_updates(self) -> bool:
        """Whether updates can be lost while the job lives, so that workers stay to its end."""
        ...

    @property
    def recoveries(self) -> Sequence[Recovery]:
        """The losses that were made good."""
        ...

    def wants_hand_over(self, member: Member) -> bool:
        """Whether a process that is asked to end is to write the parameters that it holds."""
        ...

    def is_ready(self, member: Member) -> bool:
        """Whether a process holds parameters that workers may use."""
        ...

    def seating(self, member: Member, said: Attendance) -> Seating:
        """Return what a worker that came to the rendezvous is told now; `Wait`: nothing yet."""
        ...

    def ended_world(self, member: Member) -> int:
        """Return the world that a worker is to leave at its next step; 0 if it may stay."""
        ...

    # --- what is due -----------------------------------------------------------------------------

    def ask_what_is_due(self, now: float) -> None:
        """Have done what is due in the job's phase: a checkpoint, the proof, rows that expire."""
        ...

    def answered(self, answer: Answer, now: float) -> Verdict:
        """What was asked for has been done, or could not be."""
        ...

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        ...

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        ...
