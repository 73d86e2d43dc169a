"""A world of workers as holder of parameters: each has all of them, and all have the same.

The master speaks to rank 0 of the world when it wants a checkpoint or the proof: that worker serves
its parameters as a ps replica does. `Rendezvous` chooses the members of the world. When all holders
are lost at once, a worker begins with the newest checkpoint, which `Recoveries` names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from elasticdl.job import Attendance, Finished, PsRoute, Role, Wait
from elasticdl.job.status import Recovery
from elasticdl.master.actions import Action, Note
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Member, Membership
from elasticdl.master.missing_tasks import MissingTasks
from elasticdl.master.parameters.answers import BeginWith, RendezvousAnswer
from elasticdl.master.parameters.recoveries import Recoveries
from elasticdl.packages.all_reduce.events import WorldClosed, WorldRestored
from elasticdl.packages.all_reduce.rendezvous import Rendezvous
from elasticdl.state.base import Snapshot


@dataclass(frozen=True, slots=True)
class _Restoring:
    """The restorer has parameters, and is asked what was applied to them."""

    session: str
    store: str


class WorkerWorlds:
    """`HoldersOfRole` of a job whose workers hold parameters, and reduce their gradients.

    rendezvous: The members of the world.
    """

    def __init__(
        self,
        journal: Journal,
        members: Membership,
        ledger: Ledger,
        history: JobHistory,
        recoveries: Recoveries,
        act: Callable[[Action], None],
    ) -> None:
        self._members = members
        self._ledger = ledger
        self._history = history
        self.recoveries = recoveries
        self._act = act
        self.rendezvous = Rendezvous(journal)
        self._asked: _Restoring | None = None  # not journalled: it is asked again

    # --- members ---------------------------------------------------------------------------------

    def lost(self, member: Member, now: float) -> None:
        """A worker is lost, and the parameters with the last one that has them."""
        had_holders = bool(self.rendezvous.holders)
        self.rendezvous.lost(member.session)
        if self._asked is not None and self._asked.session == member.session:
            self._asked = None
        if had_holders and not self.rendezvous.holders:
            # The place of the world has had many sessions. The last holder counts as the one that
            # served, so that its hand-over is known to have everything.
            self.recoveries.serves(member)
            self.recoveries.lost(member, now)
        self.advance(now)

    def wants_hand_over(self, member: Member) -> bool:
        """Whether a worker that is asked to end is the last that has the parameters."""
        if not self.recoveries.keeps_any or member.session not in self.rendezvous.holders:
            return False
        return not self.rendezvous.holders & self._here().keys() - {member.session}

    def attend(self, member: Member, said: Attendance, now: float) -> RendezvousAnswer:
        """A worker comes to the rendezvous of those who hold parameters and reduce gradients."""
        if not self._stays(member):
            return Finished()
        if member.session == self.rendezvous.restorer and said.version >= 0:
            self._has_restored(member, said)
        elif member.session == self.rendezvous.restorer and said.num_unsound:
            point = self.recoveries.point(said.num_unsound)
            self.recoveries.goes_back(member.name, member.index, point, said.problem)
        self.rendezvous.attend(member.index, member.session, said, now)
        self.advance(now)
        return self.seating(member, said)

    def seating(self, member: Member, said: Attendance) -> RendezvousAnswer:
        """Return what a worker that came to the rendezvous is told now; `Wait`: nothing yet."""
        if not self._stays(member):
            return Finished()
        generation = self.recoveries.generation
        seat = self.rendezvous.seat_of(member.session, said.told_world, generation)
        if seat is not None:
            return replace(seat, tasks_per_epoch=self._ledger.per_epoch)
        if member.session == self.rendezvous.restorer and said.version < 0:
            return BeginWith(self.recoveries.point(said.num_unsound))
        return Wait(0.0)

    def ended_world(self, member: Member) -> int:
        """Return the world that a worker is to leave at its next step; 0 if it may stay."""
        return self.rendezvous.ended_world(member.session, self._here())

    def _stays(self, member: Member) -> bool:
        """Whether a worker takes part; a worker that is to stop does so until it holds no task."""
        if not member.is_alive or member.is_leaving:
            return False
        return not member.is_stopping or bool(self._ledger.held_by(member.index))

    def _here(self) -> dict[str, int]:
        workers = self._members.present(Role.WORKER)
        return {member.session: member.index for member in workers if self._stays(member)}

    def advance(self, now: float) -> None:
        """Have the next world closed, or a restorer chosen, if it is time."""
        workers = self._members.present(Role.WORKER)
        # A pending worker may wait for room for hours: the choice of a restorer does not wait.
        num_to_come = sum(
            not (member.session or member.pending or member.is_departing) for member in workers
        )
        if self._history.has_ended or not self.rendezvous.advance(self._here(), num_to_come, now):
            return
        world = self.rendezvous.world
        names = [member.worker_id for member in world.members]
        behind = [member.worker_id for member in world.members if member.is_behind]
        text = f"world {world.id}: workers {', '.join(map(str, names))}"
        if behind:
            text += f"; {', '.join(map(str, behind))} are given the parameters"
        self._act(Note(WorldClosed(world.id, names, behind), text))

    # --- all holders are lost --------------------------------------------------------------------

    def _has_restored(self, member: Member, said: Attendance) -> None:
        if not self.rendezvous.world.id:
            self.rendezvous.restored(member.session)  # nothing was trained before
            return
        asked = _Restoring(member.session, said.store)
        if self._asked == asked:
            return
        self._asked = asked
        self.recoveries.restores(member.index, self.recoveries.point(said.num_unsound))
        self.recoveries.ask(member, said.store)

    def awaits(self, member: Member) -> bool:
        """Whether a worker has restored parameters, and is asked what they have."""
        return member.session == self.rendezvous.restorer

    def is_back(self, member: Member, recovery: Recovery, lacks: MissingTasks, now: float) -> None:
        """Go on with a worker that has restored the parameters."""
        self.rendezvous.restored(member.session)
        at = f"version {recovery.version:,}" if recovery.version else "the start of the job"
        text = (
            f"all workers were lost; {member.name} goes on from {at}, and {recovery.tasks:,} tasks "
            "are trained again"
        )
        if recovery.is_handed_over:
            text = f"{member.name} goes on from {at}, with all that the last worker had"
        kind = WorldRestored(
            member.name, recovery.version, recovery.tasks, recovery.records, recovery.seconds
        )
        self._act(Note(kind, text))
        self._asked = None
        self.advance(now)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return self.rendezvous.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.rendezvous.restore(snapshot)

    # --- questions -------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether the world's first member is there, from whom all others have the parameters."""
        return self._first() is not None

    def _first(self) -> str | None:
        members = self.rendezvous.world.members
        if not members or members[0].session not in self.rendezvous.holders:
            return None
        member = self._members.find(Role.WORKER, members[0].worker_id)
        is_it = member is not None and member.is_alive and member.session == members[0].session
        return members[0].store if is_it else None

    @property
    def route(self) -> PsRoute:
        """The address at which the parameters are served."""
        return PsRoute(self.recoveries.generation, (self._first() or "",))
