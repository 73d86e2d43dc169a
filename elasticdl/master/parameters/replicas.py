"""Ps replicas as holders of parameters: the process at each place.

A replica is **ready** when a process has registered at its place. For a successor the ledger must
have taken in what it lacks, too. Only then workers learn its address. `Recoveries` handles replicas
that were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from elasticdl.errors import ElasticdlError
from elasticdl.job import PsRoute, Role
from elasticdl.job.status import Recovery
from elasticdl.master.actions import Action, Note
from elasticdl.master.membership import Member, Membership
from elasticdl.master.missing_tasks import MissingTasks
from elasticdl.master.moves.facts import Moves
from elasticdl.master.moves.messages import PrepareMove, TellMoved
from elasticdl.master.parameters.answers import RestorePoint
from elasticdl.master.parameters.recoveries import Recoveries
from elasticdl.observe.kinds import PsRecovered


class PsReplicas:
    """`HoldersOfRole` of a job with ps replicas."""

    def __init__(
        self,
        moves: Moves,
        members: Membership,
        recoveries: Recoveries,
        act: Callable[[Action], None],
    ) -> None:
        self.moves = moves
        self._members = members
        self.recoveries = recoveries
        self._act = act

    # --- members ---------------------------------------------------------------------------------

    def admit(self, index: int, session: str) -> None:
        """A replica is about to register, or to ask what it begins with, which is before it.

        Raises:
            ElasticdlError: Another process has its place.
        """
        member = self._members.find(Role.PS, index)
        if member is not None and member.is_alive and member.session != session:
            raise ElasticdlError(
                f"ps replica {index} is already process {member.pid} at {member.address}"
            )

    def registered(self, member: Member) -> None:
        """Take in a process. A successor is asked for its watermarks before it is ready."""
        if self.is_ready(member) or member.index >= self.moves.number:
            return  # a replica beyond the number gets its part by a move
        if self.recoveries.last_served(member.index):
            self.recoveries.ask(member, member.address)
        else:  # no process has served here before, so nothing can be lacking
            self.recoveries.serves(member)

    def lost(self, member: Member, now: float) -> None:
        """Note when a replica was lost."""
        if member.index < self.moves.number:
            self.recoveries.lost(member, now)

    def wants_hand_over(self, member: Member) -> bool:
        """Whether a replica that is asked to end writes what it holds, where recoveries lie.

        A replica that may not have heard of a move may still hold a part of the layout before.
        Its hand-over is of no use: the successor begins with the checkpoint of the move.
        """
        is_part = member.index < self.moves.number and self.moves.has_gone_over(member)
        return self.recoveries.keeps_any and is_part

    def restore_point(self, index: int, num_unsound: int, problem: str) -> RestorePoint | None:
        """Return what a replica that starts is to begin with; None: the start of the job.

        Args:
            index: The replica.
            num_unsound: The number of points that it has tried in vain, newest first.
            problem: The fault of the last of these points.

        Raises:
            ElasticdlError: Another process has its place: what that one began with stays.
        """
        self.admit(index, session="")  # a process that asks has not registered
        if index >= self.moves.number:
            return None  # a move will give it what it is to hold
        point = self.recoveries.point(num_unsound, index)
        if num_unsound:
            self.recoveries.goes_back(f"ps replica {index}", index, point, problem)
        self.recoveries.restores(index, point)
        return point

    def resumed(self) -> None:
        """Another master goes on with the job: what the one before had asked is lost."""
        for member in self._members.present(Role.PS):
            is_awaited = member.index < self.moves.number and not self.is_ready(member)
            if member.is_alive and is_awaited:
                self.recoveries.ask(member, member.address)

    def awaits(self, member: Member) -> bool:
        """Whether a replica is asked what it has, and is not ready so far."""
        return member.index < self.moves.number and not self.is_ready(member)

    def is_back(self, member: Member, recovery: Recovery, lacks: MissingTasks, now: float) -> None:
        """Tell of a successor that serves."""
        ranges = (
            ()
            if recovery.is_replayed
            else [(k.task_id, k.have, k.have + k.minibatches) for k in lacks]
        )
        kind = PsRecovered(member.name, **asdict(recovery), lost=ranges)
        self._act(Note(kind, describe(recovery)))

    def moved(self, done: PrepareMove) -> TellMoved:
        """The next layout counts from now on; its replicas have all that there was."""
        for seated in done.after:
            self.recoveries.has_all(seated.index, seated.session)
        return self.moves.moved(done)

    def place_of(self, index: int) -> tuple[int, int, bool]:
        """Return the number of replicas, their layout, and whether this one awaits a move."""
        place = self.moves.place_of(index)
        return place.num_replicas, place.layout, place.awaits_move

    # --- questions -------------------------------------------------------------------------------

    def first_lease(self, index: int) -> int:
        """Return `Lease.fence` of the first lease that a replica may let in that starts now.

        Where an order is kept, a successor refuses the leases of before: it may lack tasks that
        were done before theirs, and these are trained first.
        """
        is_successor = index < self.moves.number and self.recoveries.last_served(index) != ""
        return self.recoveries.first_lease(is_successor)

    @property
    def number(self) -> int:
        """How many there are."""
        return self.moves.number

    def is_ready(self, member: Member) -> bool:
        """Whether a process is a replica that workers may use."""
        is_here = member.role is Role.PS and member.is_alive
        return is_here and self.recoveries.last_served(member.index) == member.session

    @property
    def is_complete(self) -> bool:
        """Whether every replica is ready, and none is about to end."""
        members = (self._members.find(Role.PS, index) for index in range(self.number))
        return all(m is not None and self.is_ready(m) and not m.is_leaving for m in members)

    @property
    def route(self) -> PsRoute:
        """The addresses of the replicas that are ready."""
        members = [self._members.find(Role.PS, index) for index in range(self.number)]
        addresses = (m.address if m is not None and self.is_ready(m) else "" for m in members)
        return PsRoute(self.recoveries.generation, tuple(addresses), self.moves.layout)


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
