"""A world of workers as the holder of the parameters: each has all of them, and all have the same.

The master speaks to rank 0 of the world when it wants a checkpoint or the proof: that worker serves
its parameters as a ps replica does. Who is in the world is agreed on by `Rendezvous`.

When all holders are lost at once, a worker begins with the newest checkpoint, and the ledger is
told what that lacks, so that both go back together. The **generation** counts how often that was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.job import Attendance, Finished, JointGeneration, PsRoute, Recovery, Role, Wait
from elasticdl.master.actions import Action, AskWatermarks, DeleteHandOvers, Note
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Member, Membership
from elasticdl.master.parameters.hand_overs import HandedOver, HandOvers
from elasticdl.master.parameters.holder import (
    Answer,
    BeginWith,
    RestorePoint,
    Seating,
    Verdict,
    Watermarks,
    WatermarksFailed,
)
from elasticdl.master.parameters.rendezvous import Rendezvous
from elasticdl.master.parameters.requests import Parts, Requests
from elasticdl.observe.kinds import CheckpointUnsound, PsHandedOver, WorldClosed, WorldRestored


@dataclass(frozen=True, slots=True)
class _Restoring:
    """The restorer has parameters, and is asked what was applied to them."""

    session: str
    store: str


class WorkerWorlds:
    """`Holder` of a job whose workers hold the parameters, and reduce their gradients."""

    num_processes = 0
    find_dense: Callable[[], PsRoute] | None = None
    can_lose_updates = True
    lost_tasks: Mapping[int, Set[int]] = {}

    def __init__(
        self,
        config: JobConfig,
        journal: Journal,
        members: Membership,
        ledger: Ledger,
        history: JobHistory,
        make_requests: Callable[[Parts], Requests],
        act: Callable[[Action], None],
    ) -> None:
        self._is_recovery_kept = config.checkpoint.recovery_seconds > 0
        self._journal = journal
        self._members = members
        self._ledger = ledger
        self._history = history
        self._act = act
        self._rendezvous = Rendezvous(journal)
        self._hand_overs = HandOvers(journal, "world ")
        self._requests = make_requests(self)
        self._requests.when_written(self._drop_hand_overs)
        self.schedule = self._requests.schedule
        self.num_restored = 0
        self.recoveries: list[Recovery] = []
        self._lost_at: float | None = None  # when the last holder was lost
        self._restored_version = 0
        self._is_from_hand_over = False
        self._asked: _Restoring | None = None  # not journalled: it is asked again
        journal.handle("world restored", self._apply_restored)
        journal.handle("world restores", self._apply_restores)
        journal.handle("world lost", self._apply_lost)

    # --- members ---------------------------------------------------------------------------------

    def admit(self, index: int, session: str) -> None:
        """Refuse: workers hold the parameters."""
        raise ElasticdlError(f"this job has 0 ps replicas, none is number {index}")

    def registered(self, member: Member, now: float) -> None:
        """See `Holder`: a worker comes to the rendezvous once it is ready."""

    def lost(self, member: Member, now: float) -> None:
        """See `Holder`."""
        if member.role is not Role.WORKER:
            return
        had_holders = bool(self._rendezvous.holders)
        self._rendezvous.lost(member.session)
        if self._asked is not None and self._asked.session == member.session:
            self._asked = None
        if had_holders and not self._rendezvous.holders:
            self._journal.record("world lost", now)
        self._advance(now)

    def wants_hand_over(self, member: Member) -> bool:
        """Whether a worker that is asked to end is the last that has the parameters."""
        if not self._is_recovery_kept or member.session not in self._rendezvous.holders:
            return False
        return not self._rendezvous.holders & self._here().keys() - {member.session}

    def handed_over(self, member: Member, version: int, now: float) -> None:
        """See `Holder`."""
        self._hand_overs.note(HandedOver(member.index, member.session, version, now, True))
        text = f"{member.name} has handed over the parameters, which nobody else has"
        self._act(Note(PsHandedOver(member.name, version), text))

    def _drop_hand_overs(self, began: float) -> None:
        """A checkpoint is whole: what was handed over before it was begun is of no use."""
        if self._hand_overs.checkpoint_written(began):
            leaving = [m for m in self._members.present(Role.WORKER) if m.is_leaving]
            kept = {(last.index, last.session) for last in self._hand_overs}
            kept |= {(member.index, member.session) for member in leaving}
            self._act(DeleteHandOvers(tuple(sorted(kept)), Role.WORKER))

    def restore_point(self, index: int, num_unsound: int, problem: str) -> RestorePoint | None:
        """Refuse: workers hold the parameters."""
        raise ElasticdlError(f"this job has 0 ps replicas, none is number {index}")

    def resumed(self, now: float) -> None:
        """See `Holder`."""
        self._requests.resumed(now)

    def attend(self, member: Member, said: Attendance, now: float) -> Seating:
        """See `Holder`."""
        if not self._stays(member):
            return Finished()
        if member.session == self._rendezvous.restorer and said.version >= 0:
            self._has_restored(member, said)
        elif member.session == self._rendezvous.restorer and said.num_unsound:
            self._note_unsound(member, said)
        self._rendezvous.attend(member.index, member.session, said, now)
        self._advance(now)
        return self.seating(member, said)

    def seating(self, member: Member, said: Attendance) -> Seating:
        """See `Holder`."""
        if not self._stays(member):
            return Finished()
        seat = self._rendezvous.seat_of(member.session, said.told_world, self.num_restored)
        if seat is not None:
            return replace(seat, tasks_per_epoch=self._ledger.per_epoch)
        if member.session == self._rendezvous.restorer and said.version < 0:
            return BeginWith(self._point(said.num_unsound))
        return Wait(0.0)

    def ended_world(self, member: Member) -> int:
        """See `Holder`."""
        return self._rendezvous.ended_world(member.session, self._here())

    def _stays(self, member: Member) -> bool:
        """Whether a worker takes part: one that is to stop does until it holds no task."""
        if not member.is_alive or member.is_leaving:
            return False
        return not member.is_stopping or bool(self._ledger.held_by(member.index))

    def _here(self) -> dict[str, int]:
        workers = self._members.present(Role.WORKER)
        return {member.session: member.index for member in workers if self._stays(member)}

    def _advance(self, now: float) -> None:
        workers = self._members.present(Role.WORKER)
        num_to_come = sum(
            not (member.session or member.pending or member.is_departing) for member in workers
        )
        if self._history.has_ended or not self._rendezvous.advance(self._here(), num_to_come, now):
            return
        world = self._rendezvous.world
        names = [member.worker_id for member in world.members]
        behind = [member.worker_id for member in world.members if member.is_behind]
        text = f"world {world.id}: workers {', '.join(map(str, names))}"
        if behind:
            text += f"; {', '.join(map(str, behind))} are given the parameters"
        self._act(Note(WorldClosed(world.id, names, behind), text))

    # --- all holders are lost --------------------------------------------------------------------

    def _point(self, num_unsound: int) -> RestorePoint | None:
        """Return what to restore. What was handed over is newer than any checkpoint."""
        candidates: list[RestorePoint] = sorted(
            self._hand_overs, key=lambda last: last.version, reverse=True
        )
        candidates += self.schedule.candidates()
        return candidates[num_unsound] if num_unsound < len(candidates) else None

    def _note_unsound(self, member: Member, said: Attendance) -> None:
        point = self._point(said.num_unsound)
        instead = f"version {point.version:,}" if point else "the start of the job"
        text = f"{member.name} goes back to {instead}: {said.problem}"
        self._act(Note(CheckpointUnsound(member.index, said.problem), text, is_warning=True))

    def _has_restored(self, member: Member, said: Attendance) -> None:
        if not self._rendezvous.world.id:
            self._rendezvous.restored(member.session)  # nothing was trained before
            return
        asked = _Restoring(member.session, said.store)
        if self._asked == asked:
            return
        self._asked = asked
        is_from_hand_over = isinstance(self._point(said.num_unsound), HandedOver)
        self._journal.record("world restores", said.version, is_from_hand_over)
        self._act(AskWatermarks(member.index, member.session, said.store, Role.WORKER))

    def _take_in(self, member: Member, answer: Watermarks, now: float) -> None:
        """Go on with restored parameters: what they lack is trained again."""
        lacks = self._ledger.lacks(answer.applied)
        seconds = 0.0 if self._lost_at is None else now - self._lost_at
        recovery = Recovery(
            replica=member.index,
            version=self._restored_version,
            tasks=len(lacks),
            minibatches=int(lacks.minibatches.sum()),
            records=int(lacks.records.sum()),
            is_replayed=True,
            seconds=seconds,
            is_handed_over=self._is_from_hand_over and not len(lacks),
        )
        self._ledger.replay(lacks.task_ids)
        self._journal.record("world restored", asdict(recovery))
        self._rendezvous.restored(member.session)
        at = f"version {recovery.version:,}" if recovery.version else "the start of the job"
        text = (
            f"all workers were lost; {member.name} goes on from {at}, and {len(lacks):,} tasks "
            "are trained again"
        )
        if recovery.is_handed_over:
            text = f"{member.name} goes on from {at}, with all that the last worker had"
        kind = WorldRestored(
            member.name, recovery.version, recovery.tasks, recovery.records, seconds
        )
        self._act(Note(kind, text))

    # --- questions -------------------------------------------------------------------------------

    def is_ready(self, member: Member) -> bool:
        """See `Holder`: of ps replicas alone."""
        return False

    @property
    def generation(self) -> int:
        """See `Holder`."""
        return JointGeneration(self.num_restored, 0).number

    @property
    def is_complete(self) -> bool:
        """Whether the world's first member is there, from whom all others have the parameters."""
        return self._first() is not None

    def _first(self) -> str | None:
        members = self._rendezvous.world.members
        if not members or members[0].session not in self._rendezvous.holders:
            return None
        member = self._members.find(Role.WORKER, members[0].worker_id)
        is_it = member is not None and member.is_alive and member.session == members[0].session
        return members[0].store if is_it else None

    @property
    def route(self) -> PsRoute:
        """Where the parameters are served."""
        return PsRoute(self.generation, (self._first() or "",))

    # --- what is due -----------------------------------------------------------------------------

    def ask_what_is_due(self, now: float) -> None:
        """See `Holder`."""
        self._advance(now)
        self._requests.ask_what_is_due(now)

    def answered(self, answer: Answer, now: float) -> Verdict:
        """See `Holder`."""
        match answer:
            case Watermarks(index, session):
                member = self._restoring(index, session)
                if member is not None:
                    self._take_in(member, answer, now)
                    self._asked = None
                    self._advance(now)
                return Verdict()
            case WatermarksFailed(index, session, message):
                return Verdict(lost=self._restoring(index, session), words=message)
            case _:
                return self._requests.answered(answer, now)

    def _restoring(self, index: int, session: str) -> Member | None:
        """Return the restorer that was asked, unless it is lost again, or the job has ended."""
        member = self._members.find(Role.WORKER, index)
        if member is None or member.session != session or not member.is_alive:
            return None
        is_it = session == self._rendezvous.restorer and not self._history.has_ended
        return member if is_it else None

    # --- facts -----------------------------------------------------------------------------------

    def _apply_lost(self, now: float) -> None:
        self._lost_at = now

    def _apply_restores(self, version: int, is_from_hand_over: bool = False) -> None:
        self._restored_version = version
        self._is_from_hand_over = is_from_hand_over

    def _apply_restored(self, recovery: dict[str, Any]) -> None:
        self.recoveries.append(Recovery(**recovery))
        self.num_restored += 1
        self._lost_at = None

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "rendezvous": self._rendezvous.snapshot(),
            "generation": self.num_restored,
            "recoveries": [asdict(recovery) for recovery in self.recoveries],
            "lost_at": self._lost_at,
            "restored_version": self._restored_version,
            "is_from_hand_over": self._is_from_hand_over,
            "hand_overs": self._hand_overs.snapshot(),
            "requests": self._requests.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self._rendezvous.restore(snapshot["rendezvous"])
        self.num_restored = snapshot["generation"]
        self.recoveries = [Recovery(**recovery) for recovery in snapshot["recoveries"]]
        self._lost_at = snapshot["lost_at"]
        self._restored_version = snapshot["restored_version"]
        self._is_from_hand_over = snapshot["is_from_hand_over"]
        self._hand_overs.restore(snapshot["hand_overs"])
        self._requests.restore(snapshot["requests"])
