"""Requests to the holders of parameters: to write checkpoints, to expire rows, for the proof.

There is one request at a time. If a holder is lost before it has answered, the answer is void. The
request is made again once all parameters are there and have all that was done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from elasticdl.config import JobConfig
from elasticdl.job import Strategy
from elasticdl.master.actions import (
    Action,
    AskAudit,
    DeleteCheckpoints,
    DoWork,
    ExpireRows,
    Note,
    WriteCheckpoint,
)
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.moves.facts import Moves
from elasticdl.master.parameters.answers import (
    Audited,
    AuditFailed,
    CheckpointFailed,
    CheckpointWritten,
    Consequences,
    WorkDone,
    WorkFailed,
)
from elasticdl.master.parameters.proof import Proof, Replicas, prove
from elasticdl.master.parameters.retired import ForgottenTasks
from elasticdl.master.parameters.schedule import CheckpointSchedule, WholeCheckpoint
from elasticdl.master.parameters.works import ParameterWork
from elasticdl.master.patience import told
from elasticdl.master.phases import CLOSING, Phase
from elasticdl.master.progress import Meter
from elasticdl.master.tasks import JobTasks
from elasticdl.observe import kinds
from elasticdl.state.base import Snapshot

_PAUSE_SECONDS = 10.0  # pause after a proof in training that could not be made
_TIMES_UNREACHABLE = 5  # tries in a row without a recovery in between
_AGAIN_SECONDS = 1.0  # pause after the first; each later pause is twice as long


class Asked(Protocol):
    """The questions that the requests ask about the holders they go to."""

    @property
    def is_complete(self) -> bool:
        """Whether all parameters are there."""
        ...

    @property
    def generation(self) -> int:
        """Counts the losses that were made good."""
        ...

    @property
    def lost_tasks(self) -> Mapping[int, Set[int]]:
        """Training tasks that a part has lost for good, in part or whole, by its index."""
        ...


class Purpose(StrEnum):
    """The purpose of a request that is no work of a package."""

    CHECKPOINT = "checkpoint"  # for the user, while training
    RECOVERY = "recovery"  # a checkpoint in the job's own folder
    LAST_CHECKPOINT = "last checkpoint"  # ends its phase, or the job that fails
    PROOF = "proof"
    RETIRED_PROOF = "retired proof"  # of tasks that are forgotten then
    MOVE = "move"  # to another number of ps replicas


@dataclass(frozen=True, slots=True)
class _Request:
    purpose: str  # a `Purpose`, or the name of a work
    version: int
    generation: int  # of those that were asked
    began: float
    first: int = 0  # training tasks before it were done then, or are to be forgotten


class Requests:
    """Decides what is requested when, and what an answer is worth."""

    def __init__(
        self,
        config: JobConfig,
        tasks: JobTasks,
        journal: Journal,
        history: JobHistory,
        ledger: Ledger,
        meter: Meter,
        asked: Asked,
        schedule: CheckpointSchedule,
        act: Callable[[Action], None],
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._journal = journal
        self._history = history
        self._ledger = ledger
        self._meter = meter
        self._asked = asked
        self._act = act
        self.schedule = schedule
        self.retired = ForgottenTasks(journal, self._forget)
        self._works: list[ParameterWork] = []
        self.moves: Moves | None = None
        """The moves of the ps replicas; None if there are no replicas."""
        self._under_way: _Request | None = None
        self._times_unreachable = 0
        self._epochs_expired = 0
        self._retires_from = 0.0  # not before this time
        self._pause = (0, 0.0)  # in this generation nothing is asked before a time; not journalled
        self._when_written: list[Callable[[float], None]] = []
        journal.handle("request", self._apply_request)
        journal.handle("request ended", self._apply_ended)
        journal.handle("rows expire", self._apply_expire)

    def add_work(self, work: ParameterWork) -> None:
        """Have the work of a package done when it is due."""
        self._works.append(work)

    def when_written(self, tell: Callable[[float], None]) -> None:
        """Have `tell` called for each whole checkpoint, with the time at which it was asked for."""
        self._when_written.append(tell)

    # --- requests --------------------------------------------------------------------------------

    def ask_what_is_due(self, now: float) -> None:
        """Request what is due in the job's phase, unless something is under way."""
        generation, until = self._pause
        is_pause = generation == self._asked.generation and now < until
        if is_pause or not self.schedule.patience.may_try(now):
            return
        if self.moves is not None and self.moves.is_being_told:
            return  # some replicas would still answer for the layout before
        if self._history.failing and self._asked.is_complete:
            self._ask(Purpose.LAST_CHECKPOINT, now)
        elif self._history.failing:
            return
        elif self._history.phase in CLOSING:
            self._ask_at_end(now)
        elif self._history.phase is Phase.TRAINING and not self._ledger.is_trained:
            self._ask_in_training(now)

    def resumed(self, now: float) -> None:
        """Take what the master before had requested as not done."""
        request = self._under_way
        if request is None:
            return
        self._journal.record("request ended", self._times_unreachable)
        # `begin` has already moved the next multiple on, so this one has to be wanted again.
        if request.purpose == Purpose.CHECKPOINT:
            self.schedule.repeat()

    def _ask_in_training(self, now: float) -> None:
        version = self._meter.model_version
        # Nothing else is under way: replicas that a move holds would answer after the move, and
        # the calls that end the move wait for this one.
        epoch = self._ledger.epochs.first_open
        if epoch > self._epochs_expired and self._under_way is None:
            self._journal.record("rows expire", epoch)
            self._act(ExpireRows())
        if not self._asked.is_complete:
            return
        self.schedule.begin_training(now)
        if self._ledger.is_whole and self.moves is not None and self.moves.may_begin(now):
            self._ask(Purpose.MOVE, now)
        elif self._ledger.is_whole and self.schedule.is_due(version):
            self._ask(Purpose.CHECKPOINT, now)
        elif self._is_stream and (stop := self._to_retire(now)) is not None:
            self._ask(Purpose.RETIRED_PROOF, now, stop)
        elif not self._is_local and self.schedule.is_recovery_due(version, now):
            self._ask(Purpose.RECOVERY, now)
        elif self._ledger.is_whole:
            due = next((work for work in self._works if work.is_due(version, now)), None)
            if due is not None:
                self._ask_work(due, now)

    def _ask_at_end(self, now: float) -> None:
        """Have the last checkpoint written, or the proof made, of all that was done."""
        if self._asked.is_complete and self._ledger.is_idle:
            if left := [work for work in self._works if not work.is_over]:
                if due := [work for work in left if work.is_last_due(now)]:
                    self._ask_work(due[0], now, is_last=True)
                return
            is_checkpoint = self._history.phase is Phase.CHECKPOINTING
            self._ask(Purpose.LAST_CHECKPOINT if is_checkpoint else Purpose.PROOF, now)

    def _ask_work(self, work: ParameterWork, now: float, is_last: bool = False) -> None:
        if not self._begins(work.last_name if is_last else work.name, now):
            return
        version = self._meter.model_version
        step = work.begin(version, now)
        if is_last:
            self._act(ExpireRows())  # what is written is to have no rows that are over
        self._act(DoWork(version, step))

    def _begins(self, purpose: str, now: float, stop: int = 0) -> bool:
        """Begin a request, unless one is under way; return whether it began."""
        if self._under_way is not None:
            return False
        version = self._meter.model_version
        first = stop if stop or not self._is_stream else self._ledger.first_open
        self._journal.record("request", purpose, version, self._asked.generation, now, first)
        return True

    def _ask(self, purpose: Purpose, now: float, stop: int = 0) -> None:
        if not self._begins(str(purpose), now, stop):
            return
        version = self._meter.model_version
        if purpose is Purpose.MOVE:
            assert self.moves is not None
            self._act(self.moves.begin(version))
            return
        if purpose is Purpose.PROOF:
            self._act(AskAudit(self._prover(self._ledger.begun()), self.retired.first))
            return
        if purpose is Purpose.RETIRED_PROOF:
            self._act(AskAudit(self._prover(lambda task_id: task_id < stop), self.retired.first))
            return
        is_last = purpose is Purpose.LAST_CHECKPOINT
        is_private = self.schedule.is_last_private if is_last else purpose is Purpose.RECOVERY
        if not is_private:
            self.schedule.begin(version)
        self._act(ExpireRows())  # what has come to its end need not be written
        self._act(WriteCheckpoint(version, is_private))

    @property
    def _is_local(self) -> bool:
        return self._config.training.distribution_strategy is Strategy.LOCAL

    @property
    def _is_stream(self) -> bool:
        return self._tasks.growing is not None

    def _to_retire(self, now: float) -> int | None:
        """Return the task up to which tasks can be forgotten now; None if there are too few."""
        restorable = [point.version for point in self.candidates()]
        return self.retired.due(restorable) if now >= self._retires_from else None

    def candidates(self) -> list[WholeCheckpoint]:
        """Return the checkpoints that a replica may be given, the best first."""
        found = self.schedule.candidates()
        if not self._is_stream:
            return found
        return [point for point in found if self.retired.allows(point.version)]

    def _noted(self, version: int, first: int) -> None:
        """Note that a checkpoint has all tasks before `first`."""
        if self._is_stream:
            versions = [point.version for point in self.schedule.candidates()]
            self.retired.written(version, first, versions)

    def _sure_first(self, request: _Request) -> int:
        """Return the first task that may not be in what was written for a request."""
        # If parameters were lost meanwhile, tasks that were done may be missing in the file. Only
        # forgotten tasks are sure: every restored replica has them.
        is_sure = request.generation == self._asked.generation
        return request.first if is_sure else self.retired.first

    def _forget(self, first: int) -> None:
        """Have everybody forget the training tasks before one; a part of a fact."""
        assert self._tasks.growing is not None, "only tasks of a stream are forgotten"
        self._tasks.growing.forget(first)
        self._ledger.forget_tasks(first)
        self._meter.forget_tasks(first)

    # --- answers ---------------------------------------------------------------------------------

    def move_ended(self) -> int | None:
        """End the request for a move.

        Returns the first task that was not done when it was begun; None if somebody was lost
        meanwhile.
        """
        request = self._under_way
        if request is None or request.purpose != Purpose.MOVE:
            return None
        self._journal.record("request ended", self._times_unreachable)
        is_sound = request.generation == self._asked.generation and self._asked.is_complete
        return request.first if is_sound else None

    def moved(self, version: int, first: int, now: float) -> None:
        """The model has moved: only the checkpoint of the move restores the new layout.

        Args:
            version: The version of that checkpoint.
            first: A task; all tasks before it are in the checkpoint.
            now: The time.
        """
        self.schedule.moved(version)
        self._noted(version, first)
        for tell in self._when_written:
            tell(now)
        self._act(DeleteCheckpoints((version,), is_private=True))

    def answered(
        self,
        answer: CheckpointWritten
        | CheckpointFailed
        | WorkDone
        | WorkFailed
        | Audited
        | AuditFailed,
        now: float,
    ) -> Consequences:
        """Take in what came of the request under way."""
        request = self._under_way
        if request is None:
            return Consequences()
        match answer:
            case CheckpointWritten(version):
                verdict = self._written(request, version, now)
                for tell in self._when_written:
                    tell(request.began)
                return verdict
            case CheckpointFailed():
                return self._not_written(request, answer, now)
            case WorkDone():
                return self._work_done(request, answer)
            case WorkFailed():
                return self._work_failed(request, answer, now)
            case Audited(replicas, proof):
                prover = self._prover(self._ledger.begun())
                return self._audited(request, proof or prover(replicas))
            case AuditFailed(_, was_unreachable) if request.purpose == Purpose.RETIRED_PROOF:
                self._end(request, was_unreachable, now)
                self._retires_from = now + _PAUSE_SECONDS
                return Consequences()
            case AuditFailed(message, was_unreachable):
                is_again = self._end(request, was_unreachable, now)
                return Consequences(
                    failure="" if is_again else f"the ledger could not be proved: {message}"
                )

    def _written(self, request: _Request, version: int, now: float) -> Consequences:
        self._journal.record("request ended", 0)
        self.schedule.ended(now - request.began, now)
        if not self._history.has_ended:
            self._history.say("")
        is_last = request.purpose == Purpose.LAST_CHECKPOINT
        # In another generation a replica was restored meanwhile, and may have lacked some tasks.
        verdict = Consequences(is_last and request.generation == self._asked.generation)
        if is_last:
            self.schedule.patience.succeeded()
        if request.purpose == Purpose.RECOVERY or (is_last and self.schedule.is_last_private):
            self.schedule.written_for_recovery(version)
            self._noted(version, self._sure_first(request))
            self._act(DeleteCheckpoints((version,), is_private=True))
            return verdict
        is_best = self.schedule.is_best_due
        self.schedule.written(version)
        self._noted(version, self._sure_first(request))
        of_best = ", that of the best evaluation" if is_best else ""
        text = f"checkpoint of version {version} is written{of_best}"
        self._act(Note(kinds.CheckpointWritten(version, is_best), text))
        if self._config.checkpoint.keep_checkpoint_max:
            self._act(DeleteCheckpoints(tuple(self.schedule.kept)))
        return verdict

    def _not_written(self, request: _Request, answer: CheckpointFailed, now: float) -> Consequences:
        """Go on without it, unless it is the last one of the job, which must be there.

        The last checkpoint is tried for long, and then in the job's own folder.
        """
        is_again = self._end(request, answer.was_unreachable, now)
        self.schedule.ended(now - request.began, now)
        text = f"checkpoint of version {answer.version}: {answer.message}"
        is_last = request.purpose == Purpose.LAST_CHECKPOINT and not self._history.has_ended
        may_wait = is_last and not is_again and not self._history.hurries
        pause = self.schedule.patience.failed(now) if may_wait else None
        if pause is not None:
            text = told(text, pause, "it")
        self._act(Note(kinds.CheckpointFailed(answer.version), text, is_warning=True))
        if request.purpose == Purpose.RECOVERY or self._history.has_ended:
            return Consequences()
        self._history.say(text)
        if is_again:
            self.schedule.repeat()
            return Consequences()
        if not is_last:
            self.schedule.give_up_best()
        if pause is not None or not is_last:
            return Consequences()
        self._history.add_problem(text)
        if not self.schedule.is_last_private and self._config.keeps_own_checkpoints:
            self.schedule.give_up_users_place()
            return Consequences()
        return Consequences(is_phase_over=True)

    def _work_of(self, request: _Request) -> ParameterWork:
        return next(w for w in self._works if request.purpose in (w.name, w.last_name))

    def _work_done(self, request: _Request, answer: WorkDone) -> Consequences:
        self._journal.record("request ended", 0)
        work, is_same = self._work_of(request), request.generation == self._asked.generation
        work.done(answer.version, answer.result, request.purpose == work.last_name and is_same)
        return Consequences()

    def _work_failed(self, request: _Request, answer: WorkFailed, now: float) -> Consequences:
        """Go on without it."""
        is_again = self._end(request, answer.was_unreachable, now)
        work = self._work_of(request)
        is_last = request.purpose == work.last_name and not self._history.has_ended
        work.failed(answer.version, answer.message, now, is_last, is_again)
        return Consequences()

    def _prover(self, begun: Callable[[int], bool]) -> Callable[[Replicas], Proof]:
        """Return the function that makes the proof; no task is under way until it has run."""
        return partial(
            prove,
            self._tasks,
            self._config.training.minibatch_size,
            skipped=self._meter.skipped,
            lost=self._asked.lost_tasks,
            uneven=self._ledger.uneven.by_task,
            set_aside=self._ledger.aside.quarantined.keys() | self._ledger.aside.left,
            begun=begun,
            missing={i: n.positions for i, n in self._ledger.missing.by_task.items()},
        )

    def _audited(self, request: _Request, found: Proof) -> Consequences:
        self._journal.record("request ended", self._times_unreachable)
        # Parameters were lost after the question: the proof would speak of a state that is gone.
        if self._history.has_ended or request.generation != self._asked.generation:
            return Consequences()
        if found.problem:
            self._history.add_problem(f"ledger: {found.problem}", is_of_proof=True)
        if request.purpose == Purpose.RETIRED_PROOF:
            self.retired.proved(request.first, found)
            return Consequences()
        whole = self.retired.with_all(found)
        notes = filter(None, [whole.note, self._ledger.aside.left_words()])
        self._history.proved(whole.ledger, "; ".join(notes))
        return Consequences(is_phase_over=True)

    def _end(self, request: _Request, was_unreachable: bool, now: float) -> bool:
        """End a request that came to nothing; return whether to repeat it.

        A holder of parameters may be about to end, or may be lost while nobody has noticed it. The
        pauses leave time to notice that.
        """
        is_same = request.generation == self._asked.generation
        times = (self._times_unreachable if is_same else 0) + was_unreachable
        self._journal.record("request ended", times)
        if was_unreachable:
            pause_seconds = _AGAIN_SECONDS * 2 ** (times - 1)
            self._pause = (self._asked.generation, now + pause_seconds)
        return was_unreachable and times < _TIMES_UNREACHABLE

    # --- facts -----------------------------------------------------------------------------------

    def _apply_request(
        self, purpose: str, version: int, generation: int, now: float, first: int = 0
    ) -> None:
        self._under_way = _Request(purpose, version, generation, now, first)

    def _apply_ended(self, times_unreachable: int) -> None:
        self._under_way = None
        self._times_unreachable = times_unreachable

    def _apply_expire(self, epoch: int) -> None:
        self._epochs_expired = epoch

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        request = self._under_way
        return {
            "under_way": None if request is None else list(astuple(request)),
            "times_unreachable": self._times_unreachable,
            "epochs_expired": self._epochs_expired,
            "schedule": self.schedule.snapshot(),
            "retired": self.retired.snapshot(),
        } | {work.key: work.snapshot() for work in self._works}

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        request = snapshot["under_way"]
        if request is not None:
            self._under_way = _Request(*request)
        self._times_unreachable = snapshot["times_unreachable"]
        self._epochs_expired = snapshot["epochs_expired"]
        self.schedule.restore(snapshot["schedule"])
        if (retired := snapshot.get("retired")) is not None:
            self.retired.restore(retired)
        for work in self._works:
            work.restore(snapshot.get(work.key))
