"""Too little room for the whole job: workers give their places to the replicas they wait for.

A job trains with all of its ps replicas and any number of workers. A cluster may have room for
fewer processes than the job wants. Workers may then have the places that ps replicas need, and
nobody trains. So workers give way while a replica waits for room and nobody can train. Workers in
the queue are withdrawn first; then one running worker ends for each replica that waits. These
workers are **withheld**: the job plans them again only when all replicas run, so that no place goes
back and forth.
"""

from __future__ import annotations

from elasticdl.job import Role
from elasticdl.master.journal import Journal
from elasticdl.master.membership import Member, Membership

_WAITED_FOR = tuple(role for role in Role if role not in (Role.MASTER, Role.WORKER))
_PATIENCE_SECONDS = 5.0  # a replica waits so long for room before workers give way
_LEAVE_SECONDS = 10.0  # time for a replica to get a place that was given back


class Room:
    """Decides which workers give way, and counts the workers that are withheld."""

    def __init__(self, journal: Journal, members: Membership, keeps_one: bool) -> None:
        """Withhold none. keeps_one: A worker holds parameters, so the last one never ends."""
        self._journal = journal
        self._members = members
        self._keeps_one = keeps_one
        self._not_before = 0.0  # not journalled: another master waits as long again
        self.num_withheld = 0
        """Workers that the job wants, and that are not planned as long as replicas need room."""
        journal.handle("workers withheld", self._apply_withheld)

    # --- events ----------------------------------------------------------------------------------

    def give_way(self, now: float) -> list[Member]:
        """Return the workers that are to end while nobody can train; they count as withheld."""
        waiting = [m for m in self.waiting() if now - m.waits_since >= _PATIENCE_SECONDS]
        if not waiting or now < self._not_before:
            return []
        workers = [m for m in self._members.present(Role.WORKER) if not m.is_departing]
        queued = [m for m in workers if m.handle and not _has_place(m)]
        placed = sorted((m for m in workers if _has_place(m)), key=lambda m: m.index)
        # Workers in the queue are withdrawn first. Otherwise a queued worker would take the place
        # that a running worker gives back.
        leaving = queued or placed[self._keeps_one :][-len(waiting) :]
        if leaving:
            self._not_before = now + (_PATIENCE_SECONDS if queued else _LEAVE_SECONDS)
            self.withhold(self.num_withheld + len(leaving))
        return leaving

    def withhold(self, number: int) -> None:
        """Note how many workers the job lacks from now on."""
        if number != self.num_withheld:
            self._journal.record("workers withheld", number)

    # --- questions -------------------------------------------------------------------------------

    def waiting(self) -> list[Member]:
        """Return the replicas that have no place, since the cluster has no room for them."""
        return [m for role in _WAITED_FOR for m in self._members.present(role) if m.lacks_room]

    @property
    def is_enough(self) -> bool:
        """Whether all replicas have a place, so that withheld workers may come."""
        return all(_has_place(m) for role in _WAITED_FOR for m in self._members.present(role))

    # --- facts -----------------------------------------------------------------------------------

    def _apply_withheld(self, number: int) -> None:
        self.num_withheld = number


def _has_place(member: Member) -> bool:
    return member.is_running or bool(member.session)
