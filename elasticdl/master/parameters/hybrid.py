"""Two holders at once: ps replicas have the rows, a world of workers has all else.

Each has its own marks of every task, recovers as it does alone, and tells the ledger what it lacks.
What one of them lacks is trained again, and the other drops it. What is asked of the holders, a
checkpoint or the proof, is asked of both together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.job import Attendance, JointGeneration, PsRoute, Recovery, Role
from elasticdl.master.actions import Action
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Member, Membership
from elasticdl.master.parameters.holder import (
    Answer,
    RestorePoint,
    Seating,
    Verdict,
    Watermarks,
    WatermarksFailed,
)
from elasticdl.master.parameters.replicas import PsReplicas
from elasticdl.master.parameters.requests import Parts, Requests
from elasticdl.master.parameters.worlds import WorkerWorlds


class HybridHolder:
    """`Holder` of a job with rows on ps replicas and dense parameters in the workers."""

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
        self._members = members
        requests = make_requests(self)

        def shared(parts: Parts) -> Requests:
            return requests

        self._rows = PsReplicas(config, journal, members, ledger, history, shared, act)
        self._worlds = WorkerWorlds(config, journal, members, ledger, history, shared, act)
        self.num_processes = self._rows.num_processes
        self.schedule = requests.schedule

    # --- members ---------------------------------------------------------------------------------

    def admit(self, index: int, session: str) -> None:
        """See `Holder`."""
        self._rows.admit(index, session)

    def registered(self, member: Member, now: float) -> None:
        """See `Holder`."""
        self._rows.registered(member, now)

    def lost(self, member: Member, now: float) -> None:
        """See `Holder`; each looks at its own."""
        self._rows.lost(member, now)
        self._worlds.lost(member, now)

    def handed_over(self, member: Member, version: int, now: float) -> None:
        """See `Holder`."""
        part = self._worlds if member.role is Role.WORKER else self._rows
        part.handed_over(member, version, now)

    def restore_point(self, index: int, num_unsound: int, problem: str) -> RestorePoint | None:
        """See `Holder`."""
        return self._rows.restore_point(index, num_unsound, problem)

    def resumed(self, now: float) -> None:
        """See `Holder`."""
        self._rows.resumed(now)

    def attend(self, member: Member, said: Attendance, now: float) -> Seating:
        """See `Holder`."""
        return self._worlds.attend(member, said, now)

    # --- questions -------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether both have all that is theirs."""
        return self._rows.is_complete and self._worlds.is_complete

    @property
    def generation(self) -> int:
        """Both generations in one number."""
        return JointGeneration(self._worlds.num_restored, self._rows.generation).number

    @property
    def route(self) -> PsRoute:
        """Where the ps replicas are."""
        return self._rows.route

    def find_dense(self) -> PsRoute:
        """Return where the world's first member serves the dense parameters."""
        return self._worlds.route

    @property
    def recoveries(self) -> Sequence[Recovery]:
        """Those of ps replicas, then those of worlds."""
        return [*self._rows.recoveries, *self._worlds.recoveries]

    @property
    def lost_tasks(self) -> Mapping[int, Set[int]]:
        """None are: what a holder lacks is trained again."""
        return self._rows.lost_tasks

    def wants_hand_over(self, member: Member) -> bool:
        """See `Holder`; each knows its own."""
        return self._rows.wants_hand_over(member) or self._worlds.wants_hand_over(member)

    def is_ready(self, member: Member) -> bool:
        """See `Holder`."""
        return self._rows.is_ready(member)

    def seating(self, member: Member, said: Attendance) -> Seating:
        """See `Holder`."""
        return self._worlds.seating(member, said)

    def ended_world(self, member: Member) -> int:
        """See `Holder`."""
        return self._worlds.ended_world(member)

    # --- what is due -----------------------------------------------------------------------------

    def ask_what_is_due(self, now: float) -> None:
        """See `Holder`; what is asked, and whether anything is under way, both share."""
        self._worlds.ask_what_is_due(now)

    def answered(self, answer: Answer, now: float) -> Verdict:
        """See `Holder`."""
        if isinstance(answer, Watermarks | WatermarksFailed):
            replica = self._members.find(Role.PS, answer.index)
            if replica is None or replica.session != answer.session:
                return self._worlds.answered(answer, now)
        return self._rows.answered(answer, now)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it; each part has the requests that they share."""
        return {"rows": self._rows.snapshot(), "worlds": self._worlds.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self._rows.restore(snapshot["rows"])
        self._worlds.restore(snapshot["worlds"])
