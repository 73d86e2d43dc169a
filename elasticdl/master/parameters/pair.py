"""The holders of a job's parameters: ps replicas, a world of workers, or both.

    ParameterServerStrategy   ps replicas hold all
    AllreduceStrategy         each worker of a world holds all
    HybridStrategy            ps replicas hold the rows, each worker of a world all else
    Local                     neither: the one store is there from the start, as a saved model is

So a job has a pair, and either part may be absent. Each part has its own marks of every task, comes
back by itself when it was lost, and tells the ledger what it lacks. Tasks that one part lacks are
trained again, and the other part drops their updates. The master asks both parts together for a
checkpoint or for the proof.

A part decides, as the rest of the job's state machine does: events come in with the time, facts go
to the journal, actions come out. The result of an action comes back as an `Answer`. The ledger of
tasks knows no holders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.job import Attendance, Finished, JointGeneration, PsRoute, Role, Strategy
from elasticdl.job.status import Recovery
from elasticdl.master.actions import Action, Note
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Member, Membership
from elasticdl.master.missing_tasks import MissingTasks
from elasticdl.master.moves.facts import Moves, check_may_move
from elasticdl.master.moves.messages import (
    AbandonMove,
    LostInMove,
    MoveAnswer,
    MoveFailed,
    MovePrepared,
    MoveTold,
)
from elasticdl.master.parameters.answers import (
    Answer,
    Consequences,
    RendezvousAnswer,
    RestorePoint,
    Watermarks,
    WatermarksFailed,
)
from elasticdl.master.parameters.recoveries import Recoveries
from elasticdl.master.parameters.replicas import PsReplicas
from elasticdl.master.parameters.requests import Requests
from elasticdl.master.parameters.schedule import CheckpointSchedule
from elasticdl.master.parameters.works import ParameterWork
from elasticdl.master.phases import Phase
from elasticdl.master.progress import Meter
from elasticdl.master.tasks import JobTasks
from elasticdl.observe.kinds import PsMoved, PsMoveWanted, PsNotMoved
from elasticdl.state.base import Snapshot


class HoldersOfRole(Protocol):
    """Holders of one role.

    recoveries: The places of these holders that were lost, and their successors.
    """

    recoveries: Recoveries

    @property
    def is_complete(self) -> bool:
        """Whether all parameters are there: only then may a lease go out."""
        ...

    @property
    def route(self) -> PsRoute:
        """The addresses at which the parameters are served."""
        ...

    def lost(self, member: Member, now: float) -> None:
        """A process of this role is lost."""
        ...

    def wants_hand_over(self, member: Member) -> bool:
        """Whether a process that is asked to end is to write the parameters that it holds."""
        ...

    def awaits(self, member: Member) -> bool:
        """Whether a process is asked what its parameters have."""
        ...

    def is_back(self, member: Member, recovery: Recovery, lacks: MissingTasks, now: float) -> None:
        """The ledger has taken in what a successor lacks: it serves."""
        ...


class Worlds(HoldersOfRole, Protocol):
    """Worlds of workers that hold parameters, and reduce their gradients; a package brings them."""

    def attend(self, member: Member, said: Attendance, now: float) -> RendezvousAnswer:
        """A worker comes to the rendezvous."""
        ...

    def seating(self, member: Member, said: Attendance) -> RendezvousAnswer:
        """Return what a worker that came to the rendezvous is told now; `Wait`: nothing yet."""
        ...

    def ended_world(self, member: Member) -> int:
        """Return the world that a worker is to leave at its next step; 0 if it may stay."""
        ...

    def advance(self, now: float) -> None:
        """Have the next world closed if it is time."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        ...


MakeWorlds = Callable[
    [Journal, Membership, Ledger, JobHistory, Recoveries, Callable[[Action], None]], Worlds
]
"""Returns the worlds of a job; the last argument takes what the master is to do."""


class JobParameters:
    """The pair, as the core speaks to it."""

    def __init__(
        self,
        config: JobConfig,
        tasks: JobTasks,
        journal: Journal,
        history: JobHistory,
        members: Membership,
        ledger: Ledger,
        meter: Meter,
        event_seconds: Callable[[], float | None],
        act: Callable[[Action], None],
    ) -> None:
        self._config = config
        self._members = members
        self._history = history
        self._act = act
        self.schedule = CheckpointSchedule(
            journal, config.checkpoint, members.want_checkpoint, event_seconds
        )
        requests = Requests(
            config, tasks, journal, history, ledger, meter, self, self.schedule, act
        )
        self._requests = requests

        def recoveries(role: Role) -> Recoveries:
            return Recoveries(role, config, journal, members, ledger, requests, act)

        self.replicas: PsReplicas | None = None
        self.worlds: Worlds | None = None
        self._by_role: dict[Role, HoldersOfRole] = {}
        if config.num_ps:
            requests.moves = moves = Moves(journal, members, config.num_ps)
            self.replicas = PsReplicas(moves, members, recoveries(Role.PS), act)
            self._by_role[Role.PS] = self.replicas
        if config.has_worlds:
            of_workers = recoveries(Role.WORKER)
            make: MakeWorlds = registry.only("worlds")
            self.worlds = make(journal, members, ledger, history, of_workers, act)
            self._by_role[Role.WORKER] = self.worlds

    # --- members ---------------------------------------------------------------------------------

    def replicas_with(self, index: int) -> PsReplicas:
        """Return the ps replicas, of which one has this index.

        Raises:
            ElasticdlError: There is none.
        """
        number = 0 if self.replicas is None else self.replicas.moves.num_places
        if self.replicas is None or not 0 <= index < number:
            raise ElasticdlError(f"this job has {number} ps replicas, none is number {index}")
        return self.replicas

    def worlds_with(self, member: Member) -> Worlds:
        """Return the worlds, to whose rendezvous a worker has come.

        Raises:
            ElasticdlError: There are none in this job.
        """
        if self.worlds is None:
            raise ElasticdlError(
                f"{member.name} came to a rendezvous, expected in jobs with "
                f"--distribution_strategy={Strategy.ALLREDUCE} alone"
            )
        return self.worlds

    def seating(self, worker_id: int, session: str, said: Attendance) -> RendezvousAnswer:
        """Return what a worker that has come to the rendezvous is told now."""
        member = self._members.find(Role.WORKER, worker_id)
        is_it = member is not None and member.session == session
        if member is None or not is_it or self._history.has_ended or self.worlds is None:
            return Finished()
        return self.worlds.seating(member, said)

    def ended_world(self, role: Role, index: int) -> int:
        """Return the world that a process is to leave at its next step; 0 if it may stay."""
        member = self._members.find(role, index)
        return 0 if member is None or self.worlds is None else self.worlds.ended_world(member)

    def lost(self, member: Member, now: float) -> None:
        """A process is lost, of whatever role."""
        # Threads of a move wait for answers of this process, and would wait until a time-out.
        if member.role is Role.PS and self.replicas and self.replicas.moves.is_going_on:
            self._act(LostInMove(member.session))
        if (part := self._by_role.get(member.role)) is not None:
            part.lost(member, now)

    def wants_hand_over(self, member: Member) -> bool:
        """Whether a process that is asked to end is to write the parameters that it holds."""
        part = self._by_role.get(member.role)
        return part is not None and part.wants_hand_over(member)

    def handed_over(self, index: int, session: str, version: int, now: float) -> None:
        """A process that was asked to end has written all that it holds."""
        for role, part in self._by_role.items():
            found = self._members.find(role, index)
            if found is None or found.session != session or self._history.has_ended:
                continue
            if (member := self._members.heard(role, index, session, now)) is not None:
                part.recoveries.handed_over(member, version, now)

    def restore_point(
        self, index: int, num_unsound: int = 0, problem: str = ""
    ) -> RestorePoint | None:
        """A ps replica that has been started asks what to begin with; see `PsReplicas`."""
        return self.replicas_with(index).restore_point(index, num_unsound, problem)

    def resumed(self, now: float) -> None:
        """Another master goes on with the job: what the one before had asked is lost."""
        self._requests.resumed(now)
        if self.replicas is not None:
            self.replicas.resumed()
            if (action := self.replicas.moves.resumed()) is not None:
                self._act(action)

    # --- questions -------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether all parameters are there: only then may a lease go out."""
        return all(part.is_complete for part in self._by_role.values())

    @property
    def is_recovering(self) -> bool:
        """Whether parameters that training needs are lost, and not yet restored."""
        is_begun = self._history.phase is not Phase.PENDING and not self._history.has_ended
        return is_begun and not self.is_complete

    @property
    def generation(self) -> int:
        """Counts the losses that were made good. Leases carry it, and workers compare it."""
        of_ps, of_worlds = (
            0 if part is None else part.recoveries.generation
            for part in (self.replicas, self.worlds)
        )
        return JointGeneration(of_worlds, of_ps).number

    @property
    def routes(self) -> dict[Role, Callable[[], PsRoute]]:
        """For each role, a function that returns the addresses of its holders."""

        def finder(part: HoldersOfRole) -> Callable[[], PsRoute]:
            return lambda: part.route

        return {role: finder(part) for role, part in self._by_role.items()}

    @property
    def route(self) -> PsRoute:
        """The addresses of the ps replicas; without them, of a worker that serves parameters."""
        part = self.replicas or self.worlds
        return PsRoute(0, ()) if part is None else part.route

    @property
    def can_lose_updates(self) -> bool:
        """Whether updates can be lost while the job lives, so that workers stay to its end."""
        return bool(self._by_role)

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """The losses that were made good: first losses of ps replicas, then losses of worlds."""
        return tuple(r for part in self._by_role.values() for r in part.recoveries.made_good)

    @property
    def lost_tasks(self) -> Mapping[int, Set[int]]:
        """Training tasks that a ps replica has lost for good, in part or whole, by its index."""
        return {} if self.replicas is None else self.replicas.recoveries.lost_tasks

    def kept_hand_overs(self, role: Role) -> set[tuple[int, str]]:
        """Return index and session of the processes whose hand-overs are to stay."""
        return self._by_role[role].recoveries.kept_hand_overs()

    def is_ready(self, member: Member) -> bool:
        """Whether a process is a ps replica that workers may use."""
        return self.replicas is not None and self.replicas.is_ready(member)

    # --- what is due -----------------------------------------------------------------------------

    def add_work(self, work: ParameterWork) -> None:
        """Have the work of a package done with all parameters when it is due."""
        self._requests.add_work(work)

    def ask_what_is_due(self, now: float) -> None:
        """Have done what is due in the job's phase: a checkpoint, the proof, rows that expire."""
        if self.worlds is not None:
            self.worlds.advance(now)
        self._requests.ask_what_is_due(now)

    def answered(self, answer: Answer, now: float) -> Consequences:
        """The holders have done what was asked for, or could not."""
        if isinstance(answer, MovePrepared | MoveFailed | MoveTold):
            self._move_answered(answer, now)
            return Consequences()
        if not isinstance(answer, Watermarks | WatermarksFailed):
            return self._requests.answered(answer, now)
        part = self._by_role[answer.role]
        member = self._members.find(answer.role, answer.index)
        is_it = member is not None and member.session == answer.session and member.is_alive
        if member is None or not is_it or self._history.has_ended or not part.awaits(member):
            return Consequences()  # it is lost again, or the job has ended
        if isinstance(answer, WatermarksFailed):
            return Consequences(lost=member, words=answer.message)
        if words := part.recoveries.lacks_for_good(member):
            return Consequences(failure=words)
        part.is_back(member, *part.recoveries.take_in(member, answer.applied, now), now)
        return Consequences()

    # --- another number of ps replicas -----------------------------------------------------------

    def set_num_ps(self, count: int) -> None:
        """Have the model move to so many ps replicas, as soon as those are there; or stay.

        Raises:
            ElasticdlError: It cannot move, or moves already.
        """
        check_may_move(self._config)
        assert self.replicas is not None
        moves = self.replicas.moves
        was_wanted = moves.is_under_way
        moves.want(count)
        if moves.is_under_way:
            text = f"the model is to move from {moves.number} to {count} ps replicas"
            self._act(Note(PsMoveWanted(count), text))
        elif was_wanted:
            self.stays("it was asked to")

    def stays(self, why: str) -> None:
        """Say that the model does not move, though that was wanted."""
        assert self.replicas is not None
        text = f"the model stays on {self.replicas.moves.number} ps replicas: {why}"
        self._act(Note(PsNotMoved(why), text, is_warning=True))

    def job_finished(self) -> None:
        """Say what was wanted and will not be: a move that nothing is left to train for."""
        if self.replicas is not None and self.replicas.moves.is_under_way:
            self.stays("the job is finished")

    def _move_answered(self, answer: MoveAnswer, now: float) -> None:
        assert self.replicas is not None, "only ps replicas move"
        moves = self.replicas.moves
        match answer:
            case MovePrepared(done):
                first = self._requests.move_ended()
                if first is None or not moves.is_as_prepared(done) or self._history.has_ended:
                    self._act(AbandonMove(done.layout, tuple({*done.now, *done.after})))
                    moves.failed(now)
                    return
                tell = self.replicas.moved(done)
                self._requests.moved(done.version, first, now)
                self._act(tell)
                text = f"the model has moved to {moves.number} ps replicas"
                self._act(Note(PsMoved(moves.number, moves.layout), text))
            case MoveFailed(done, message, is_refused):
                self._requests.move_ended()
                moves.failed(now)
                is_wanted = moves.is_under_way and not is_refused
                again = "; it will be tried again" if is_wanted else ""
                text = f"the model has not moved to other ps replicas: {message}{again}"
                self._act(Note(PsNotMoved(message), text, is_warning=True))
                if is_refused:
                    moves.give_up()
            case MoveTold(_, is_everybody):
                if (more := moves.told(is_everybody)) is not None:
                    self._act(more)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        parts = {str(role): part.recoveries.snapshot() for role, part in self._by_role.items()}
        world = None if self.worlds is None else self.worlds.snapshot()
        found = {"requests": self._requests.snapshot(), "recoveries": parts, "rendezvous": world}
        if self.replicas is not None:
            found["moves"] = self.replicas.moves.snapshot()
        return found

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        if not isinstance(snapshot.get("recoveries"), dict):
            snapshot = _of_earlier(snapshot, self._by_role)
        self._requests.restore(snapshot["requests"])
        for role, part in self._by_role.items():
            part.recoveries.restore(snapshot["recoveries"][str(role)])
        if self.replicas is not None:
            self.replicas.moves.restore(snapshot.get("moves"))
        if self.worlds is not None:
            self.worlds.restore(snapshot["rendezvous"])


def _of_earlier(snapshot: Snapshot, roles: Mapping[Role, HoldersOfRole]) -> dict[str, Any]:
    """Return a snapshot of an earlier version as one of this version."""
    rows, worlds = snapshot.get("rows", snapshot), snapshot.get("worlds", snapshot)
    found = {str(Role.PS): rows}
    if Role.WORKER in roles:
        lost_at = [] if worlds["lost_at"] is None else [[0, worlds["lost_at"]]]
        more = {"sessions": [], "restored": [], "lost_at": lost_at, "lost": []}
        found[str(Role.WORKER)] = {**worlds, **more}
    return {
        "requests": rows["requests"],
        "recoveries": found,
        "rendezvous": worlds.get("rendezvous"),
    }
