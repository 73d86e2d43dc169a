"""The return of parameters that were lost; the same steps for ps replicas and for workers.

A **place** is lost and comes back as a whole. Each ps replica has a place, and the world of workers
has one. When a place that serves is lost, its successor begins with a hand-over or with a
checkpoint. The master asks the successor which tasks its parameters have. The ledger takes in the
tasks that they lack: these are trained again, or they are lost for good. Then the place serves
again. The **generation** counts the returns; by it workers and leases tell an old picture of the
parameters from a new one. See docs/designs/ps-recovery.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.job import Role, first_fence
from elasticdl.job.status import Recovery
from elasticdl.master.actions import Action, AskWatermarks, DeleteHandOvers, Note
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Member, Membership
from elasticdl.master.missing_tasks import Applied, MissingTasks, to_ranges
from elasticdl.master.parameters.answers import RestorePoint
from elasticdl.master.parameters.hand_overs import HandOver, HandOvers
from elasticdl.master.parameters.requests import Requests
from elasticdl.observe.kinds import CheckpointUnsound, PsHandedOver
from elasticdl.state.base import Snapshot

_WORLD = 0  # the place of a world of workers


class Recoveries:
    """The places of the holders of one role, and their losses and returns."""

    def __init__(
        self,
        role: Role,
        config: JobConfig,
        journal: Journal,
        members: Membership,
        ledger: Ledger,
        requests: Requests,
        act: Callable[[Action], None],
    ) -> None:
        self._role = role
        self._is_training = config.command == "train"
        self._is_replayed = role is Role.WORKER or config.checkpoint.ps_recovery == "replay"
        self._makes_rounds = role is Role.PS and config.grads_to_wait is not None
        self.keeps_any = self._is_training and config.checkpoint.recovery_seconds > 0
        """Whether hand-overs are kept."""
        self._journal = journal
        self._members = members
        self._ledger = ledger
        self._requests = requests
        self._act = act
        self._served: dict[int, str] = {}  # the last session that served at a place
        # A successor's order: the version to restore, and the session that handed it over, or "".
        self._restored: dict[int, tuple[int, str]] = {}
        self._lost_at: dict[int, float] = {}
        self.generation = 0
        self.made_good: list[Recovery] = []
        self.lost_tasks: dict[int, set[int]] = {}  # by place; only with --ps_recovery=latest
        self._hand_overs = HandOvers(journal, "world " if role is Role.WORKER else "")
        requests.when_written(self._drop_hand_overs)
        self._whose = "worlds" if role is Role.WORKER else "ps"
        journal.handle(f"{self._whose} ready", self._apply_ready)
        journal.handle(f"{self._whose} restores", self._apply_restores)
        journal.handle(f"{self._whose} lost", self._apply_lost)
        journal.handle(f"{self._whose} back", self._apply_back)
        if role is Role.WORKER:  # so journals of earlier versions have it
            journal.handle("world lost", lambda now: self._apply_lost(_WORLD, now))
            journal.handle("world restores", lambda v, *_: self._apply_restores(_WORLD, v, ""))
            journal.handle("world restored", lambda found: self._apply_back("", found, [], _WORLD))

    # --- events ----------------------------------------------------------------------------------

    def serves(self, member: Member) -> None:
        """A process has everything that belongs to its place."""
        self._journal.record(f"{self._whose} ready", self._place(member.index), member.session)

    def has_all(self, index: int, session: str) -> None:
        """A process has everything that belongs to a place of a new layout."""
        self._journal.record(f"{self._whose} ready", index, session)

    def lost(self, member: Member, now: float) -> None:
        """A process is lost, and its place with it."""
        place = self._place(member.index)
        if place not in self._lost_at:
            self._journal.record(f"{self._whose} lost", place, now)

    def handed_over(self, member: Member, version: int, now: float) -> None:
        """A process that was asked to end has written all that it holds."""
        is_of_worker = self._role is Role.WORKER
        self._hand_overs.note(HandOver(member.index, member.session, version, now, is_of_worker))
        what = "the parameters, which nobody else has" if is_of_worker else "what it had"
        self._act(Note(PsHandedOver(member.name, version), f"{member.name} has handed over {what}"))

    def _drop_hand_overs(self, began: float) -> None:
        """A checkpoint is whole: hand-overs from before its begin are of no use."""
        if self._hand_overs.checkpoint_written(began):
            self._act(DeleteHandOvers(self._role))

    def goes_back(self, name: str, index: int, point: RestorePoint | None, problem: str) -> None:
        """A successor could not begin with what it was told first."""
        instead = f"version {point.version:,}" if point else "the start of the job"
        text = f"{name} goes back to {instead}: {problem}"
        self._act(Note(CheckpointUnsound(index, problem), text, is_warning=True))

    def restores(self, index: int, point: RestorePoint | None) -> None:
        """A successor begins with something; None: with the start of the job."""
        session = point.session if isinstance(point, HandOver) else ""
        begins, place = (point.version if point else 0, session), self._place(index)
        if begins != self._begins(index):
            self._journal.record(f"{self._whose} restores", place, *begins)

    def ask(self, member: Member, address: str) -> None:
        """Have a successor asked what its parameters have."""
        self._act(AskWatermarks(member.index, member.session, address, self._role))

    def take_in(
        self, member: Member, applied: Applied, now: float
    ) -> tuple[Recovery, MissingTasks]:
        """Go on with a successor: what it lacks is trained again, or is lost to it."""
        lacks, place = self._ledger.lacks(applied), self._place(member.index)
        version, session = self._begins(member.index)
        recovery = Recovery(
            replica=member.index,
            version=version,
            tasks=len(lacks),
            minibatches=int(lacks.minibatches.sum()),
            records=int(lacks.records.sum()),
            is_replayed=self._is_replayed,
            seconds=now - self._lost_at.get(place, now),
            # The hand-over has everything only if it came from the process that served last
            # here: a later process has applied more. Gradients that were kept for a round are in
            # no file, so they are lost.
            is_handed_over=not len(lacks)
            and session == self._served.get(place)
            and not self._makes_rounds,
        )
        # `replay` raises the ledger's generation, which voids all leases of before. If nothing is
        # lost, it is not called, and these leases end as if nothing had happened.
        if self._is_training and not recovery.is_handed_over:
            self._ledger.replay(lacks.task_ids if self._is_replayed else ())
        lost = [] if self._is_replayed else to_ranges(lacks.task_ids)
        name = f"{self._whose} back"
        self._journal.record(name, member.session, asdict(recovery), lost, place)
        return recovery, lacks

    # --- questions -------------------------------------------------------------------------------

    def point(self, num_unsound: int, index: int | None = None) -> RestorePoint | None:
        """Return what a successor is to begin with; None: the start of the job.

        Any checkpoint of this job will do: it brings its own watermarks, and tasks that they lack
        are trained again. A hand-over is newer than any checkpoint.

        Args:
            num_unsound: The number of points that were tried in vain, the newest first.
            index: The process whose hand-over is of use; None: the hand-over of any process.
        """
        given = [last for last in self._hand_overs if index in (None, last.index)]
        given.sort(key=lambda last: (last.version, last.at), reverse=True)
        points: list[RestorePoint] = [*given, *self._requests.candidates()]
        return points[num_unsound] if num_unsound < len(points) else None

    def kept_hand_overs(self) -> set[tuple[int, str]]:
        """Return index and session of the hand-overs that may be restored or are being written."""
        kept = {(last.index, last.session) for last in self._hand_overs}
        leaving = (m for m in self._members.present(self._role) if m.is_leaving)
        return kept | {(member.index, member.session) for member in leaving}

    def lacks_for_good(self, member: Member) -> str:
        """Say that a successor lacks what nobody can give it again; "" if it does not."""
        version, _ = self._begins(member.index)
        retired = self._requests.retired.first
        if not retired or version or not self._is_training:
            return ""
        return (
            f"{member.name} was lost, and none of the job's checkpoints can be restored; the "
            f"first {retired:,} tasks of the stream were done long ago, and "
            "are not trained again. Begin a new job with --checkpoint_dir_for_init"
        )

    def first_lease(self, is_successor: bool) -> int:
        """Return `Lease.fence` of the first lease that a process may let in that starts now."""
        return first_fence(self.generation + is_successor) if self._ledger.keeps_order else 0

    def last_served(self, index: int) -> str:
        """Return the session that served last at a process's place; "" if none has."""
        return self._served.get(self._place(index), "")

    def _begins(self, index: int) -> tuple[int, str]:
        return self._restored.get(self._place(index), (0, ""))

    def _place(self, index: int) -> int:
        return index if self._role is Role.PS else _WORLD

    # --- facts -----------------------------------------------------------------------------------

    def _apply_ready(self, place: int, session: str) -> None:
        self._served[place] = session

    def _apply_restores(self, place: int, version: int, session: str) -> None:
        self._restored[place] = (version, session)

    def _apply_lost(self, place: int, now: float) -> None:
        self._lost_at[place] = now

    def _apply_back(
        self,
        session: str,
        recovery: dict[str, Any],
        lost: list[list[int]],
        place: int | None = None,
    ) -> None:
        found = Recovery(**recovery)
        self.made_good.append(found)
        place = found.replica if place is None else place
        self._served[place] = session
        self._lost_at.pop(place, None)
        self.generation += 1
        if lost:
            tasks = self.lost_tasks.setdefault(place, set())
            tasks.update(id for first, stop in lost for id in range(first, stop))

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "sessions": [list(item) for item in self._served.items()],
            "hand_overs": self._hand_overs.snapshot(),
            "restored": [[place, *what] for place, what in self._restored.items()],
            "lost_at": [list(item) for item in self._lost_at.items()],
            "generation": self.generation,
            "recoveries": [asdict(recovery) for recovery in self.made_good],
            "lost": [[place, to_ranges(tasks)] for place, tasks in self.lost_tasks.items()],
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._served = dict(snapshot["sessions"])
        self._hand_overs.restore(snapshot["hand_overs"])
        self._restored = {
            place: (version, session) for place, version, session in snapshot["restored"]
        }
        self._lost_at = dict(snapshot["lost_at"])
        self.generation = snapshot["generation"]
        self.made_good = [Recovery(**recovery) for recovery in snapshot["recoveries"]]
        self.lost_tasks = {
            place: {id for first, stop in ranges for id in range(first, stop)}
            for place, ranges in snapshot["lost"]
        }
