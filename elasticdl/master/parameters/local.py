"""The one store of a job in one process, which lives and dies with the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from elasticdl.errors import ElasticdlError
from elasticdl.job import PsRoute, Recovery
from elasticdl.master.membership import Member
from elasticdl.master.parameters.holder import (
    Answer,
    NoWorlds,
    RestorePoint,
    Verdict,
    Watermarks,
    WatermarksFailed,
)
from elasticdl.master.parameters.requests import Parts, Requests


class LocalStore(NoWorlds):
    """`Holder` of a job that has no ps replicas: all parameters are there from the start.

    So it is for a job that uses an exported model, which is whole in each worker.
    """

    num_processes = 0
    is_complete = True
    generation = 0
    route = PsRoute(0, ())
    can_lose_updates = False
    recoveries: tuple[Recovery, ...] = ()
    lost_tasks: Mapping[int, Set[int]] = {}

    def __init__(self, make_requests: Callable[[Parts], Requests]) -> None:
        self._requests = make_requests(self)
        self.schedule = self._requests.schedule

    def admit(self, index: int, session: str) -> None:
        """Refuse: nobody else holds parameters."""
        raise ElasticdlError(f"this job has 0 ps replicas, none is number {index}")

    def registered(self, member: Member, now: float) -> None:
        """See `Holder`: workers hold none."""

    def lost(self, member: Member, now: float) -> None:
        """See `Holder`: workers hold none."""

    def wants_hand_over(self, member: Member) -> bool:
        """See `Holder`: the job is one process."""
        return False

    def handed_over(self, member: Member, version: int, now: float) -> None:
        """See `Holder`: workers hold none."""

    def restore_point(self, index: int, num_unsound: int, problem: str) -> RestorePoint | None:
        """Refuse: nobody else holds parameters."""
        raise ElasticdlError(f"this job has 0 ps replicas, none is number {index}")

    def resumed(self, now: float) -> None:
        """See `Holder`."""
        self._requests.resumed(now)

    def is_ready(self, member: Member) -> bool:
        """See `Holder`: workers hold none."""
        return False

    def ask_what_is_due(self, now: float) -> None:
        """See `Holder`."""
        self._requests.ask_what_is_due(now)

    def answered(self, answer: Answer, now: float) -> Verdict:
        """See `Holder`."""
        assert not isinstance(answer, Watermarks | WatermarksFailed)
        return self._requests.answered(answer, now)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {"requests": self._requests.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self._requests.restore(snapshot["requests"])
