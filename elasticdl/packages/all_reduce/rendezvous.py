"""The rendezvous of all-reduce: the workers that reduce together agree again after each change.

A **world** is a numbered agreement on its members. It ends when a member is lost or leaves, or when
a new worker has come. The members then meet again. The next world closes as soon as all required
workers are there; it never waits for a fixed time.

A **holder** is a worker that has the parameters. The holder with the most updates gets rank 0, and
gives its parameters to all members that have others, or none. A worker outside the world is no
holder any more: the world goes on without it, and its parameters are out of date.

If no worker holds anything (at the start, or because all holders were lost), one worker is asked to
begin with a checkpoint. This worker is the **restorer**.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from elasticdl.job import Attendance, Seat
from elasticdl.master.journal import Journal
from elasticdl.state.base import Snapshot

_MISSED_SECONDS = 2.0
"""The world waits no longer than this for a member that others missed and that has not come."""


@dataclass(frozen=True, slots=True)
class WorldMember:
    """A worker in a world. store: where its parameters are served, if it came with any."""

    worker_id: int
    session: str
    ring: str
    store: str
    is_behind: bool


@dataclass(frozen=True, slots=True)
class World:
    """A numbered agreement; the members by rank."""

    id: int
    members: tuple[WorldMember, ...]

    def rank_of(self, session: str) -> int | None:
        """Return the rank of a worker; None if it is no member."""
        ranks = (rank for rank, member in enumerate(self.members) if member.session == session)
        return next(ranks, None)


@dataclass(frozen=True, slots=True)
class Guest:
    """A worker that has come to the rendezvous."""

    worker_id: int
    session: str
    said: Attendance
    since: float


class Rendezvous:
    """Decides when a world closes, and who its members are.

    Words of guests are not journalled, because guests say them again to another master.
    """

    def __init__(self, journal: Journal) -> None:
        """Begin without a world."""
        self._journal = journal
        self.world = World(0, ())
        self.holders: set[str] = set()
        self.restorer = ""
        self._guests: dict[str, Guest] = {}
        journal.handle("world", self._apply_world)
        journal.handle("holder", self._apply_holder)
        journal.handle("no holder", self._apply_no_holder)
        journal.handle("restorer", self._apply_restorer)

    # --- events ----------------------------------------------------------------------------------

    def attend(self, worker_id: int, session: str, said: Attendance, now: float) -> None:
        """A worker has come, or says again that it is here."""
        is_member = self.world.rank_of(session) is not None
        if is_member and said.told_world < self.world.id:
            return  # it has not heard of this world yet
        # A guest that repeats its words keeps its time of arrival: the wait for members that it
        # misses counts from there.
        before = self._guests.get(session)
        self._guests[session] = Guest(worker_id, session, said, before.since if before else now)
        if session in self.holders and said.version < 0:
            self._journal.record("no holder", session)
        elif session not in self.holders and is_member and said.synced_world == self.world.id:
            self._journal.record("holder", session)

    def restored(self, session: str) -> None:
        """The restorer has parameters."""
        self._journal.record("holder", session)

    def lost(self, session: str) -> None:
        """A worker is lost."""
        self._guests.pop(session, None)
        if session in self.holders:
            self._journal.record("no holder", session)
        if session == self.restorer:
            self._journal.record("restorer", "")

    def advance(self, here: Mapping[str, int], num_to_come: int, now: float) -> bool:
        """Close the next world, or choose a restorer, if it is time; return whether one closed.

        Args:
            here: The workers that are there and stay, by session, with their ids.
            num_to_come: How many more are being started.
            now: The time.
        """
        guests = [guest for session, guest in self._guests.items() if session in here]
        if self.holders & here.keys():
            if not self._is_all_there(here, guests, now):
                return False
            self._close(guests)
            return True
        if self.holders:
            return False  # the last that have parameters are leaving, and hand over what they have
        is_somebody_awaited = num_to_come or len(guests) < len(here)
        if guests and not is_somebody_awaited and self.restorer not in here:
            first = min(guests, key=lambda guest: guest.worker_id)
            self._journal.record("restorer", first.session)
        return False

    # --- questions -------------------------------------------------------------------------------

    def seat_of(self, session: str, told_world: int, generation: int) -> Seat | None:
        """Return a worker's place in a world that it has not heard of; None if there is none."""
        rank = self.world.rank_of(session)
        if rank is None or told_world >= self.world.id:
            return None
        members = self.world.members
        return Seat(
            self.world.id,
            rank,
            tuple(member.worker_id for member in members),
            tuple(member.ring for member in members),
            tuple(member.is_behind for member in members),
            generation,
        )

    def ended_world(self, session: str, here: Collection[str]) -> int:
        """Return the world that a worker is to leave at its next step; 0 if it may stay."""
        if self.world.rank_of(session) is None or session in self._guests:
            return 0
        members = {member.session for member in self.world.members}
        has_come = any(guest in here for guest in self._guests)
        return self.world.id if has_come or not members <= set(here) else 0

    def _is_all_there(self, here: Mapping[str, int], guests: list[Guest], now: float) -> bool:
        if not any(guest.session in self.holders for guest in guests):
            return False
        # A member may send heartbeats and still be out of reach for the others. The world closes
        # without a member that guests have missed for long.
        missed = {
            worker_id
            for guest in guests
            if now - guest.since >= _MISSED_SECONDS
            for worker_id in guest.said.missed
        }
        return all(
            member.session in self._guests
            or member.session not in here
            or member.worker_id in missed
            for member in self.world.members
        )

    # --- decisions -------------------------------------------------------------------------------

    def _close(self, guests: list[Guest]) -> None:
        """Seat all guests: holders of the newest parameters first, then by their old ranks."""
        newest = max(g.said.version for g in guests if g.session in self.holders)

        def order(guest: Guest) -> tuple[bool, int, int]:
            rank = self.world.rank_of(guest.session)
            last = len(self.world.members)
            return is_behind(guest), last if rank is None else rank, guest.worker_id

        def is_behind(guest: Guest) -> bool:
            return guest.session not in self.holders or guest.said.version < newest

        members = [
            [g.worker_id, g.session, g.said.ring, g.said.store, is_behind(g)]
            for g in sorted(guests, key=order)
        ]
        self._journal.record("world", self.world.id + 1, members)

    # --- facts -----------------------------------------------------------------------------------

    def _apply_world(self, world_id: int, members: list[list[Any]]) -> None:
        self.world = World(world_id, tuple(WorldMember(*member) for member in members))
        sessions = {member.session for member in self.world.members}
        self.holders &= sessions  # a holder outside of the world has old parameters from now on
        self.restorer = ""
        for session in sessions:
            self._guests.pop(session, None)

    def _apply_holder(self, session: str) -> None:
        self.holders.add(session)
        if session == self.restorer:
            self.restorer = ""

    def _apply_no_holder(self, session: str) -> None:
        self.holders.discard(session)

    def _apply_restorer(self, session: str) -> None:
        self.restorer = session

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "world": [self.world.id, [list(astuple(member)) for member in self.world.members]],
            "holders": sorted(self.holders),
            "restorer": self.restorer,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        world_id, members = snapshot["world"]
        self.world = World(world_id, tuple(WorldMember(*member) for member in members))
        self.holders = set(snapshot["holders"])
        self.restorer = snapshot["restorer"]
