"""The ps replicas' places in the model: who is at each, and what became of those before.

A place is **ready** when a process has registered there and, if it is a successor, the ledger has
taken in what it lacks. Only then are workers told where it is. The **generation** counts the
successors; with it workers and leases tell an old picture of the replicas from a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from elasticdl.job import PsRoute, Recovery, Role
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Lack, to_ranges
from elasticdl.master.membership import Member, Membership


class Places:
    """The ps replicas, by index."""

    def __init__(self, journal: Journal, members: Membership, num_ps: int) -> None:
        self._journal = journal
        self._members = members
        self._num_ps = num_ps
        self._sessions: dict[int, str] = {}  # of the last process that was ready, by index
        self._restored: dict[int, int] = {}  # version that a successor was told to restore
        self._lost_at: dict[int, float] = {}  # not journalled: only to tell how long it took
        self.generation = 0
        self.recoveries: list[Recovery] = []
        self.lost_tasks: dict[int, set[int]] = {}  # by index; only with --ps_recovery=latest
        journal.handle("ps ready", self._apply_ready)
        journal.handle("ps restores", self._apply_restores)
        journal.handle("ps back", self._apply_back)

    # --- events ----------------------------------------------------------------------------------

    def registered(self, member: Member) -> bool:
        """Take in a process; return whether it is a successor whose watermarks are to be asked."""
        if member.index in self._sessions:
            return not self.is_ready(member)
        self._journal.record("ps ready", member.index, member.session)
        return False

    def restores(self, index: int, version: int) -> None:
        """Note which checkpoint a successor was told to restore; 0: none."""
        self._journal.record("ps restores", index, version)

    def lost(self, member: Member, now: float) -> None:
        """Note that the process at a place is lost."""
        self._lost_at.setdefault(member.index, now)

    def took_in(
        self, member: Member, lacks: Iterable[Lack], is_replayed: bool, now: float
    ) -> Recovery:
        """Note that a successor is ready, and what it lacks."""
        lacks = list(lacks)
        recovery = Recovery(
            replica=member.index,
            version=self._restored.get(member.index, 0),
            tasks=len(lacks),
            minibatches=sum(lack.minibatches for lack in lacks),
            records=sum(lack.records for lack in lacks),
            is_replayed=is_replayed,
            seconds=now - self._lost_at.pop(member.index, now),
        )
        lost = [] if is_replayed else to_ranges(lack.task_id for lack in lacks)
        self._journal.record("ps back", member.session, asdict(recovery), lost)
        return recovery

    # --- questions -------------------------------------------------------------------------------

    def is_ready(self, member: Member) -> bool:
        """Whether workers may know of this process."""
        return member.is_alive and self._sessions.get(member.index) == member.session

    @property
    def is_complete(self) -> bool:
        """Whether every replica is ready."""
        members = (self._members.find(Role.PS, index) for index in range(self._num_ps))
        return all(m is not None and self.is_ready(m) for m in members)

    @property
    def route(self) -> PsRoute:
        """Where the replicas are that are ready."""
        members = [self._members.find(Role.PS, index) for index in range(self._num_ps)]
        addresses = (m.address if m is not None and self.is_ready(m) else "" for m in members)
        return PsRoute(self.generation, tuple(addresses))

    # --- facts -----------------------------------------------------------------------------------

    def _apply_ready(self, index: int, session: str) -> None:
        self._sessions[index] = session

    def _apply_restores(self, index: int, version: int) -> None:
        self._restored[index] = version

    def _apply_back(self, session: str, recovery: dict[str, Any], lost: list[list[int]]) -> None:
        found = Recovery(**recovery)
        self.recoveries.append(found)
        self._sessions[found.replica] = session
        self.generation += 1
        if lost:
            tasks = self.lost_tasks.setdefault(found.replica, set())
            tasks.update(id for first, stop in lost for id in range(first, stop))

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "sessions": [list(item) for item in self._sessions.items()],
            "restored": [list(item) for item in self._restored.items()],
            "generation": self.generation,
            "recoveries": [asdict(recovery) for recovery in self.recoveries],
            "lost": [[index, to_ranges(tasks)] for index, tasks in self.lost_tasks.items()],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self._sessions = dict(snapshot["sessions"])
        self._restored = dict(snapshot["restored"])
        self.generation = snapshot["generation"]
        self.recoveries = [Recovery(**recovery) for recovery in snapshot["recoveries"]]
        self.lost_tasks = {
            index: {id for first, stop in ranges for id in range(first, stop)}
            for index, ranges in snapshot["lost"]
        }


def describe(recovery: Recovery) -> str:
    """Say what became of a ps replica that was lost."""
    source = f"restored from version {recovery.version:,}" if recovery.version else "empty"
    text = f"ps replica {recovery.replica} is back after {recovery.seconds:.1f} s, {source}"
    if not recovery.tasks:
        return f"{text}; no more tasks to replay"
    if recovery.is_replayed:
        return f"{text}; {recovery.tasks:,} tasks to replay"
    return (
        f"{text}; {recovery.minibatches:,} updates of {recovery.records:,} records are lost to it "
        "(--ps_recovery=latest)"
    )
