"""Ps replicas as the holder of the parameters: who is at each place, and what became of the lost.

A replica is **ready** when a process has registered at its place and, if it is a successor, the
ledger has taken in what it lacks. Only then are workers told where it is. The **generation** counts
the successors; with it workers and leases tell an old picture of the replicas from a new one.
See docs/designs/ps-recovery.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.job import PsRoute, Recovery, Role
from elasticdl.master.actions import Action, AskWatermarks, DeleteHandOvers, Note
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.lacks import Lacks, to_ranges
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Member, Membership
from elasticdl.master.parameters.hand_overs import HandedOver, HandOvers
from elasticdl.master.parameters.holder import (
    Answer,
    NoWorlds,
    RestorePoint,
    Verdict,
    Watermarks,
    WatermarksFailed,
)
from elasticdl.master.parameters.requests import Parts, Requests
from elasticdl.observe.kinds import CheckpointUnsound, PsHandedOver, PsRecovered


class PsReplicas(NoWorlds):
    """`Holder` of a job with ps replicas."""

    can_lose_updates = True

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
        self.num_processes = config.num_ps
        self._is_training = config.command == "train"
        self._is_replayed = config.checkpoint.ps_recovery == "replay"
        self._is_recovery_kept = config.checkpoint.recovery_seconds > 0
        self._journal = journal
        self._members = members
        self._ledger = ledger
        self._history = history
        self._act = act
        self._sessions: dict[int, str] = {}  # of the last process that was ready, by index
        self._hand_overs = HandOvers(journal)
        # What a successor was told to restore: version, and the session that handed it over, or "".
        self._restored: dict[int, tuple[int, str]] = {}
        self._lost_at: dict[int, float] = {}
        self.generation = 0
        self.recoveries: list[Recovery] = []
        self.lost_tasks: dict[int, set[int]] = {}  # by index; only with --ps_recovery=latest
        self._requests = make_requests(self)
        self._requests.when_written(self._drop_hand_overs)
        self.schedule = self._requests.schedule
        journal.handle("ps ready", self._apply_ready)
        journal.handle("ps restores", self._apply_restores)
        journal.handle("ps lost", self._apply_lost)
        journal.handle("ps back", self._apply_back)

    # --- members ---------------------------------------------------------------------------------

    def admit(self, index: int, session: str) -> None:
        """See `Holder`."""
        if not 0 <= index < self.num_processes:
            raise ElasticdlError(
                f"this job has {self.num_processes} ps replicas, none is number {index}"
            )
        member = self._members.find(Role.PS, index)
        if member is not None and member.is_alive and member.session != session:
            raise ElasticdlError(
                f"ps replica {index} is already process {member.pid} at {member.address}"
            )

    def registered(self, member: Member, now: float) -> None:
        """Take in a process. A successor is asked for its watermarks before it is ready."""
        if member.role is not Role.PS or self.is_ready(member):
            return
        if member.index in self._sessions:
            self._ask_watermarks(member)
        else:
            self._journal.record("ps ready", member.index, member.session)

    def lost(self, member: Member, now: float) -> None:
        """Note when a replica was lost."""
        if member.role is Role.PS and member.index not in self._lost_at:
            self._journal.record("ps lost", member.index, now)

    def wants_hand_over(self, member: Member) -> bool:
        """Whether a replica that is asked to end writes what it holds, where recoveries lie."""
        return member.role is Role.PS and self._is_training and self._is_recovery_kept

    def handed_over(self, member: Member, version: int, now: float) -> None:
        """See `Holder`."""
        self._hand_overs.note(HandedOver(member.index, member.session, version, now))
        text = f"{member.name} has handed over what it had"
        self._act(Note(PsHandedOver(member.name, version), text))

    def restore_point(self, index: int, num_unsound: int, problem: str) -> RestorePoint | None:
        """See `Holder`. What the predecessor has handed over is newer than any checkpoint."""
        handed_over = self._hand_overs.of(index)
        candidates: list[RestorePoint] = [] if handed_over is None else [handed_over]
        candidates += self._requests.candidates()
        point = candidates[num_unsound] if num_unsound < len(candidates) else None
        if num_unsound:
            instead = f"version {point.version:,}" if point else "the start of the job"
            text = f"ps replica {index} goes back to {instead}: {problem}"
            self._act(Note(CheckpointUnsound(index, problem), text, is_warning=True))
        if candidates or self._requests.retired.first:
            session = point.session if isinstance(point, HandedOver) else ""
            self._journal.record("ps restores", index, point.version if point else 0, session)
        return point

    def resumed(self, now: float) -> None:
        """See `Holder`."""
        self._requests.resumed(now)
        for member in self._members.present(Role.PS):
            if member.is_alive and not self.is_ready(member):
                self._ask_watermarks(member)

    def _ask_watermarks(self, member: Member) -> None:
        self._act(AskWatermarks(member.index, member.session, member.address))

    # --- questions -------------------------------------------------------------------------------

    def is_ready(self, member: Member) -> bool:
        """See `Holder`."""
        is_here = member.role is Role.PS and member.is_alive
        return is_here and self._sessions.get(member.index) == member.session

    @property
    def is_complete(self) -> bool:
        """Whether every replica is ready, and none is about to end."""
        members = (self._members.find(Role.PS, index) for index in range(self.num_processes))
        return all(m is not None and self.is_ready(m) and not m.is_leaving for m in members)

    @property
    def route(self) -> PsRoute:
        """Where the replicas are that are ready."""
        members = [self._members.find(Role.PS, index) for index in range(self.num_processes)]
        addresses = (m.address if m is not None and self.is_ready(m) else "" for m in members)
        return PsRoute(self.generation, tuple(addresses))

    # --- what is due -----------------------------------------------------------------------------

    def ask_what_is_due(self, now: float) -> None:
        """See `Holder`."""
        self._requests.ask_what_is_due(now)

    def answered(self, answer: Answer, now: float) -> Verdict:
        """See `Holder`."""
        match answer:
            case Watermarks(index, session):
                member = self._successor(index, session)
                if member is None or self.is_ready(member):
                    return Verdict()
                if words := self._lacks_for_good(member):
                    return Verdict(failure=words)
                self._take_in(member, answer, now)
                return Verdict()
            case WatermarksFailed(index, session, message):
                return Verdict(lost=self._successor(index, session), words=message)
            case _:
                return self._requests.answered(answer, now)

    def _drop_hand_overs(self, began: float) -> None:
        """A checkpoint is whole: what was handed over before it was begun is of no use."""
        if self._hand_overs.checkpoint_written(began):
            self._act(DeleteHandOvers(self._hand_overs_in_use()))

    def _hand_overs_in_use(self) -> tuple[tuple[int, str], ...]:
        """Return those that may be restored, and those that may be being written."""
        leaving = [m for m in self._members.present(Role.PS) if m.is_leaving]
        written = {(last.index, last.session) for last in self._hand_overs}
        return tuple(sorted(written | {(member.index, member.session) for member in leaving}))

    def _successor(self, index: int, session: str) -> Member | None:
        """Return the replica that was asked, unless it is lost again, or the job has ended."""
        member = self._members.find(Role.PS, index)
        is_it = member is not None and member.session == session and member.is_alive
        return member if is_it and not self._history.has_ended else None

    def _lacks_for_good(self, member: Member) -> str:
        """Say that a successor lacks what nobody can give it again; "" if it does not."""
        version, _ = self._restored.get(member.index, (0, ""))
        if not self._requests.retired.first or version or not self._is_training:
            return ""
        return (
            f"{member.name} was lost, and none of the job's checkpoints can be restored; the "
            f"first {self._requests.retired.first:,} tasks of the stream were done long ago, and "
            "are not trained again. Begin a new job with --checkpoint_dir_for_init"
        )

    def _take_in(self, member: Member, answer: Watermarks, now: float) -> None:
        """Go on with a successor: what it lacks is trained again, or is lost to it."""
        lacks = self._ledger.lacks(answer.applied)
        recovery = self._recovery(member, lacks, now)
        # Where nothing is lost, leases of before end as if nothing had happened.
        if self._is_training and not recovery.is_handed_over:
            self._ledger.replay(lacks.task_ids if self._is_replayed else ())
        lost = [] if self._is_replayed else to_ranges(lacks.task_ids)
        self._journal.record("ps back", member.session, asdict(recovery), lost)
        ranges = (
            ()
            if self._is_replayed
            else [(k.task_id, k.have, k.have + k.minibatches) for k in lacks]
        )
        kind = PsRecovered(member.name, **asdict(recovery), lost=ranges)
        self._act(Note(kind, describe(recovery)))

    def _recovery(self, member: Member, lacks: Lacks, now: float) -> Recovery:
        version, session = self._restored.get(member.index, (0, ""))
        # One that had itself a successor which served has not all that this one had.
        is_all = not len(lacks) and session == self._sessions[member.index]
        return Recovery(
            replica=member.index,
            version=version,
            tasks=len(lacks),
            minibatches=int(lacks.minibatches.sum()),
            records=int(lacks.records.sum()),
            is_replayed=self._is_replayed,
            seconds=now - self._lost_at.get(member.index, now),
            is_handed_over=is_all,
        )

    # --- facts -----------------------------------------------------------------------------------

    def _apply_ready(self, index: int, session: str) -> None:
        self._sessions[index] = session

    def _apply_restores(self, index: int, version: int, session: str) -> None:
        self._restored[index] = (version, session)

    def _apply_lost(self, index: int, now: float) -> None:
        self._lost_at[index] = now

    def _apply_back(self, session: str, recovery: dict[str, Any], lost: list[list[int]]) -> None:
        found = Recovery(**recovery)
        self.recoveries.append(found)
        self._sessions[found.replica] = session
        self._lost_at.pop(found.replica, None)
        self.generation += 1
        if lost:
            tasks = self.lost_tasks.setdefault(found.replica, set())
            tasks.update(id for first, stop in lost for id in range(first, stop))

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "sessions": [list(item) for item in self._sessions.items()],
            "hand_overs": self._hand_overs.snapshot(),
            "restored": [[index, *what] for index, what in self._restored.items()],
            "lost_at": [list(item) for item in self._lost_at.items()],
            "generation": self.generation,
            "recoveries": [asdict(recovery) for recovery in self.recoveries],
            "lost": [[index, to_ranges(tasks)] for index, tasks in self.lost_tasks.items()],
            "requests": self._requests.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self._sessions = dict(snapshot["sessions"])
        self._hand_overs.restore(snapshot["hand_overs"])
        self._restored = {
            index: (version, session) for index, version, session in snapshot["restored"]
        }
        self._lost_at = dict(snapshot["lost_at"])
        self.generation = snapshot["generation"]
        self.recoveries = [Recovery(**recovery) for recovery in snapshot["recoveries"]]
        self.lost_tasks = {
            index: {id for first, stop in ranges for id in range(first, stop)}
            for index, ranges in snapshot["lost"]
        }
        self._requests.restore(snapshot["requests"])


def describe(recovery: Recovery) -> str:
    """Say what became of a ps replica that was lost."""
    source = f"restored from version {recovery.version:,}" if recovery.version else "empty"
    text = f"ps replica {recovery.replica} is back after {recovery.seconds:.1f} s, {source}"
    if recovery.is_handed_over:
        return f"{text}, all that its predecessor had"
    if not recovery.tasks:
        return f"{text}; no more tasks to replay"
    if recovery.is_replayed:
        return f"{text}; {recovery.tasks:,} tasks to replay"
    return (
        f"{text}; {recovery.minibatches:,} updates of {recovery.records:,} records are lost to it "
        "(--ps_recovery=latest)"
    )
