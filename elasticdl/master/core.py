"""The job as one state machine: events and the time go in, answers and actions come out.

Nothing here reads a clock, a socket or a file. `elasticdl.master.durable` writes down the facts
that an event gave rise to, before its answer and its actions leave; so a master that was killed
goes on from its journal as if nothing had happened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from elasticdl.config import JobConfig
from elasticdl.data.topic import is_topic, parse
from elasticdl.data.updates import UpdateOrder
from elasticdl.errors import ElasticdlError
from elasticdl.job import (
    Attendance,
    BestEvaluation,
    DataCheckTurn,
    Finished,
    Lease,
    Outcome,
    Position,
    Progress,
    PsRoute,
    Role,
    ServedProgram,
    Shard,
    Task,
    TaskKind,
    TaskReport,
    Usage,
    Wait,
    moment,
)
from elasticdl.launchers.base import Exited, PendingProcess, ProcessHandle, Started
from elasticdl.master import stream_news
from elasticdl.master.actions import Action, Note
from elasticdl.master.best import best_of
from elasticdl.master.callbacks import Callbacks
from elasticdl.master.counters import Counters
from elasticdl.master.data_check import DataCheck
from elasticdl.master.divergence import Divergence
from elasticdl.master.evaluation import Evaluations
from elasticdl.master.event_time import EventTime
from elasticdl.master.history import AT_REST, BEGUN_FIRST, JobHistory
from elasticdl.master.intake import Intake
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Missing, Settled
from elasticdl.master.membership import Member, Membership
from elasticdl.master.overfitting import Overfitting, overfitting_of
from elasticdl.master.parameters.answers import (
    Answer,
    Audited,
    MoveFailed,
    MoveTold,
    RestorePoint,
    Seating,
)
from elasticdl.master.parameters.pair import JobParameters
from elasticdl.master.parameters.schedule import RECOVERY_FOLDER
from elasticdl.master.patience import Patience, told
from elasticdl.master.phase_plan import PhasePlan
from elasticdl.master.phases import Phase
from elasticdl.master.processes import Leaving, Loss, Processes
from elasticdl.master.progress import Meter
from elasticdl.master.results import Failure, TaskResults
from elasticdl.master.stragglers import Stragglers
from elasticdl.master.stream_table import StreamTable
from elasticdl.master.tasks import JobTasks, draws_order, is_stream, records_per_task
from elasticdl.master.training_metrics import TASK_ID as TRAINING_METRICS
from elasticdl.master.training_metrics import TrainingMetrics
from elasticdl.observe import kinds
from elasticdl.observe.kinds import Kind
from elasticdl.settings.best import Best
from elasticdl.state.base import Snapshot

_MADE_ANEW = frozenset({TaskKind.EVALUATION, TaskKind.METRICS, TaskKind.EXPORT})  # by their phases
_WRITING = frozenset({TaskKind.EXPORT, TaskKind.PREDICTION})
_LATE_SECONDS = 5.0  # of which a word is said
_WAIT_SECONDS = 0.1
_RESTS = "the tasks that were begun are done by the model before"
_WAIT_SECONDS_PER_WORKER = 0.002


class JobCore:
    """Decides. Methods that take `now` are events, but for few; all others are questions.

    `now` is the time in seconds since the job began; it never goes back. After each event
    somebody takes the facts (`journal.take`) and the actions (`take_actions`), in this order.

    All that a decision depends on is a fact of the journal, but for what a living process says of
    itself with each heartbeat: when it was heard, and how far it is. It says so again.
    """

    def __init__(self, config: JobConfig, tasks: JobTasks) -> None:
        self.config = config
        self.tasks = tasks
        self.journal = Journal()
        self.history = JobHistory(self.journal)
        self.ledger = Ledger(
            tasks,
            self.journal,
            seed=config.training.seed,
            shuffle=draws_order(config) and not is_stream(config),
            max_retries=config.training.max_task_retries,
            minibatch_size=config.training.minibatch_size,
            updates=UpdateOrder.of(config.training, tasks.per_epoch),
        )
        self.members = Membership(
            self.journal,
            config.cluster.heartbeat_timeout_seconds,
            self._forget_worker,
            config.cluster.heartbeat_seconds,
        )
        self.intake = _intake(config, tasks, self.journal)
        if self.intake is not None and self.intake.keeps_order:
            self.ledger.may_lease = self.intake.is_in_order(self.ledger.leases)
        self.evaluations = Evaluations(
            self.journal, len(tasks.validation), config.evaluation.evaluation_steps
        )
        self.meter = Meter(self.journal, tasks.per_epoch, tasks.training.num_records)
        self.event_time = _event_time(config, self.intake, tasks, self.journal)
        windows = None if self.event_time is None else self.event_time.windows
        self.training_metrics = TrainingMetrics(windows)
        self.counters = Counters(self.journal)
        self.patience = Patience(self.journal, "results")  # with the export, and with predictions
        self.journal.handle("reopened", self._apply_reopened)
        self.journal.handle("model changes", self._apply_model_changes)
        self.data_check = DataCheck()
        self.divergence = Divergence()
        self.stragglers = Stragglers(config.training.finish_rate)
        self._actions: list[Action] = []
        self._next_tick = math.inf  # not journalled: a master that begins is not late
        self.callbacks = Callbacks(
            self.journal, tasks, self.ledger, self.evaluations, self.meter, self._act
        )
        self.results = TaskResults(
            config.training,
            tasks,
            self.ledger,
            self.meter,
            self.evaluations,
            self.callbacks,
            self.training_metrics,
            self._act,
        )
        self.parameters = JobParameters(
            config,
            tasks,
            self.journal,
            self.history,
            self.members,
            self.ledger,
            self.meter,
            self._act,
        )
        if self.event_time is not None:
            times = self.event_time
            self.parameters.schedule.event_seconds = lambda: times.watermark
        self.parameters.schedule.is_wanted = self.members.want_checkpoint
        self.plan = PhasePlan(
            config,
            self.history,
            self.ledger,
            self.members,
            self.evaluations,
            self.training_metrics,
            self.parameters,
        )
        self.ledger.may_begin = self._may_begin
        self.processes = Processes(
            config,
            self.journal,
            self.members,
            self.ledger,
            self.meter,
            self.history,
            self.parameters,
            self.data_check,
            self._act,
        )

    @property
    def phase(self) -> Phase:
        """What the job is about."""
        return self.history.phase

    @property
    def message(self) -> str:
        """What is to be said of the job now, or of its end."""
        return self.history.message

    def take_actions(self) -> list[Action]:
        """Return what is to be done since the last call."""
        actions, self._actions = self._actions, []
        return actions

    # --- the life of the job ---------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Plan the processes of a new job."""
        self._next_tick = now + self.members.tick_seconds
        self.processes.begin(now)

    def resume(self, now: float) -> None:
        """Take up a job that an earlier master has left, after its facts were replayed."""
        self._next_tick = now + self.members.tick_seconds
        self.members.heard_all(now)
        self.meter.begin(now)
        self.processes.resume()
        if self.has_ended:
            return
        if self.history.is_reopened:
            self.processes.complete(now)
            self.history.taken_up()
        self.counters.resumed_job()
        self._note(kinds.Resumed(), f"the job goes on, {self.ledger.num_done} tasks are done")
        self.parameters.resumed(now)
        if self.history.model_change == BEGUN_FIRST and not self.ledger.num_begun:
            self.history.model_is_at_rest()
        self._advance(now)

    def tick(self, now: float) -> None:
        """Look for processes that have fallen silent; call it every `members.tick_seconds`.

        A master that is late (its machine was suspended, swapped or overloaded) could hear nobody
        meanwhile: silence counts only while the master listens.
        """
        late = now - self._next_tick
        self._next_tick = now + self.members.tick_seconds
        if late > 0:
            self.members.excuse(late, now)
        if late > _LATE_SECONDS:
            text = f"the master stood still for {late:.1f} s; nobody is taken as lost for that"
            self._note(kinds.MasterLate(late), text, is_warning=True)
        self.processes.tell_interval()
        for member in self.members.silent(now):
            words = f"nothing was heard of it for {now - member.last_heard:.0f} s"
            self._give_up(member, words, now)
        self.processes.make_room(now)
        self._advance(now)

    def stop(self, reason: str, now: float) -> None:
        """Cancel the job; what is trained to its end is kept in a last checkpoint."""
        if self.has_ended:
            return
        message = f"stopped: {reason}"
        is_trained = self.phase in (Phase.EVALUATING, Phase.EXPORTING, Phase.CHECKPOINTING)
        if self.config.command == "train" and is_trained and self.parameters.is_complete:
            self._fail_after_checkpoint(message, now, hurries=True)
            self._advance(now)
        else:
            self._fail(message, now, is_cancelled=True)

    def drain(self, now: float) -> None:
        """Finish a job without end, once what has arrived by now is trained.

        Raises:
            ElasticdlError: The job has an end.
        """
        if self.intake is None:
            raise ElasticdlError("the job has an end: it trains on all of its data, and finishes")
        self.intake.drain()
        self._advance(now)

    @property
    def has_ended(self) -> bool:
        """Whether the job has finished or failed."""
        return self.history.has_ended

    # --- members of the job ----------------------------------------------------------------------

    def register_worker(self, worker_id: int, session: str, pid: int, now: float) -> float:
        """A worker announces itself. A new process at an old index takes nothing over.

        Returns how often it is to send a heartbeat.
        """
        member = self.members.find(Role.WORKER, worker_id)
        if member is not None and member.is_alive and member.session != session:
            self.processes.replaced(member, now)
        member = self.members.register(Role.WORKER, worker_id, session, pid, "", now)
        if not member.gone:
            self._note(kinds.Registered(member.name, pid), f"{member.name} is here")
        self._advance(now)
        return self.members.tell_interval(member, 0.0)

    def has_callbacks(self, now: float) -> None:
        """A worker says that the model file has callbacks that the job is to call."""
        if self.config.command == "train" and not self.has_ended:
            self.callbacks.declare()
            self._advance(now)

    def needs_program(self, worker_id: int, key: str) -> bool:
        """Return whether a worker is to write its model's program for those who serve."""
        is_first = not 0 < worker_id < self.config.cluster.num_workers
        return self.parameters.exports.needs_program(key, is_first)

    def has_program(self, key: str, program: ServedProgram, now: float) -> None:
        """A worker says that its model's program is written."""
        self.parameters.exports.has_program(key, program)
        self._advance(now)

    def data_check_turn(self, worker_id: int) -> DataCheckTurn:
        """Return whether a worker is to look at the data before it asks for tasks."""
        holder = self.members.find(Role.WORKER, self.data_check.worker_id)
        has_begun = self.has_ended or self.ledger.num_done > 0
        return self.data_check.turn(worker_id, holder is not None and holder.is_alive, has_begun)

    def data_checked(self, worker_id: int, lines: Sequence[str], error: str, now: float) -> None:
        """A worker says what it found in the data; an error ends the job."""
        if self.has_ended or not self.data_check.done(worker_id, lines):
            return
        if lines:
            self._note(kinds.DataChecked(self.data_check.lines), "the data was looked at")
        if error:
            self._fail(error, now)

    def register_ps(self, index: int, session: str, pid: int, address: str, now: float) -> float:
        """A ps replica announces itself; return how often it is to send a heartbeat.

        Raises:
            ElasticdlError: The job has no such replica, or another process is that replica.
        """
        replicas = self.parameters.replicas_with(index)
        replicas.admit(index, session)
        member = self.members.register(Role.PS, index, session, pid, address, now)
        registered = kinds.Registered(member.name, pid, address)
        self._note(registered, f"{member.name} listens at {address}")
        replicas.registered(member)
        self._advance(now)
        return self.members.tell_interval(member, 0.0)

    def register_model_server(
        self, index: int, session: str, pid: int, address: str, now: float
    ) -> float:
        """A model server announces itself; return how often it is to send a heartbeat.

        It holds nothing that another one has not, so a new process takes the place of an old one.

        Raises:
            ElasticdlError: The job has no model server of that number.
        """
        number = self.config.num_model_servers
        if not 0 <= index < number:
            raise ElasticdlError(
                f"model server {index} registers, but the job has --num_model_servers={number}"
            )
        member = self.members.find(Role.MODEL_SERVER, index)
        if member is not None and member.is_alive and member.session != session:
            self.processes.replaced(member, now)
        member = self.members.register(Role.MODEL_SERVER, index, session, pid, address, now)
        registered = kinds.Registered(member.name, pid, address)
        self._note(registered, f"{member.name} listens at {address}")
        self._advance(now)
        return self.members.tell_interval(member, 0.0)

    def model_servers(self) -> list[str]:
        """Return where each model server listens; "" of one that is away."""
        indexes = range(self.config.num_model_servers)
        members = (self.members.find(Role.MODEL_SERVER, index) for index in indexes)
        return ["" if m is None or not m.is_alive else m.address for m in members]

    def restore_point(
        self, index: int, num_unsound: int = 0, problem: str = ""
    ) -> RestorePoint | None:
        """A ps replica that has been started asks what to begin with; see `PsReplicas`."""
        replicas = self.parameters.replicas_with(index)
        return replicas.restore_point(index, num_unsound, problem)

    def arrived(self, found: Sequence[Shard], now: float) -> None:
        """The source of a stream says what can be read of each partition."""
        if self.intake is None or self.has_ended:
            return
        if self.intake.away:
            self.intake.answers_again(now)
            self._note(kinds.StreamNews(), "the source of the stream answers")
            if self.event_time is not None:
                self.event_time.answers_again(now)
        before = dict(self.intake.skipped)
        problem = self.intake.arrived(found, now)
        for name, skipped in self.intake.skipped.items():
            for note in stream_news.of_gap(name, self.num_gone, skipped - before.get(name, 0)):
                self._act(note)
        if self.event_time is not None:
            self.event_time.look(self.intake.waiting, now)
        if problem:
            self._fail_after_checkpoint(problem, now)
        elif not (self.history.failing or self.ledger.is_stopped):
            self._cut(now)
        self._advance(now)

    def _cut(self, now: float) -> None:
        if self.intake is not None:
            self.intake.cut(self.ledger.num_todo, now, self.ledger.open_training())

    def trained_up_to(self) -> dict[str, int]:
        """Return the position of each partition of a stream before which nothing is left to do."""
        open_tasks = self.ledger.open_training()
        return {} if self.intake is None else self.intake.trained_up_to(open_tasks)

    @property
    def num_gone(self) -> int:
        """How many positions of a stream the broker deleted before they were read."""
        skipped = {} if self.intake is None else self.intake.skipped
        return sum(skipped.values()) + sum(self.ledger.gone.values())

    def kept_from(self) -> dict[str, int]:
        """Return the position of each partition of a stream before which all is forgotten."""
        table = self.tasks.training
        return table.kept_from() if isinstance(table, StreamTable) else {}

    def stream_is_over(self, now: float) -> None:
        """The source of a stream has come to its end: nothing comes after what is there."""
        if self.intake is not None and not self.has_ended:
            self.intake.drain()

    def stream_is_away(self, words: str) -> None:
        """The source of a stream does not answer; workers wait for it."""
        if self.intake is None or self.has_ended:
            return
        if not self.intake.away:
            self._note(kinds.StreamNews(), f"{words}; still trying", is_warning=True)
        self.intake.away = words

    def stream_failed(self, words: str, now: float) -> None:
        """The source of a stream can never be read again."""
        if not self.has_ended:
            self._fail_after_checkpoint(words, now)
            self._advance(now)

    def answered(self, answer: Answer, now: float) -> None:
        """Whoever holds the parameters has done what was asked, or could not."""
        if isinstance(answer, Audited) and not self.has_ended:
            self.counters.of_replicas(answer.tally)
        verdict = self.parameters.answered(answer, now)
        if self.has_ended:
            return
        if isinstance(answer, MoveTold | MoveFailed):
            self.processes.fill_places(now)
        if verdict.lost is not None:
            self._give_up(verdict.lost, verdict.words, now)
        if verdict.failure:
            self._fail(verdict.failure, now)
        elif not verdict.is_phase_over:
            self._advance(now)
        elif self.history.failing == _RESTS and self.ledger.is_at_rest:
            self.history.model_is_at_rest()
        elif self.history.failing == _RESTS:  # parameters were lost meanwhile
            self.journal.record("model changes", BEGUN_FIRST)
            self._advance(now)
        elif self.history.failing:
            self._fail(self.history.failing, now)
        else:
            self._enter(self.plan.after(self.phase), now)

    def heartbeat(
        self,
        role: Role,
        index: int,
        session: str,
        progress: Progress | None,
        now: float,
        usage: Usage | None = None,
        interval_seconds: float = 0.0,
    ) -> float:
        """A process says that it is alive; return how long it is to wait until it says so again.

        `interval_seconds` is what it keeps now; 0: as the job is set up.
        """
        member = self.members.heard(role, index, session, now)
        if member is None:
            return self.members.interval_seconds
        member.usage = usage or member.usage
        if progress is not None:
            self._hear_of_source(member, progress.waits_for)
            self.meter.heard(index, progress, now)
            self._advance(now)
        return self.members.tell_interval(member, interval_seconds)

    def _hear_of_source(self, member: Member, waits_for: str) -> None:
        """A worker says of what it can read nothing."""
        if bool(waits_for) != bool(member.waits_for) and not self.has_ended:
            said = f"waits: {waits_for}" if waits_for else "reads again"
            self._note(kinds.StreamNews(), f"{member.name} {said}", is_warning=bool(waits_for))
        member.waits_for = waits_for

    @property
    def event_seconds(self) -> int | None:
        """How far a stream is in event time, since 1970; 0: not known so far. None: no stream."""
        return None if self.event_time is None else int(self.event_time.watermark)

    @property
    def is_recovering(self) -> bool:
        """Whether parameters that training needs are lost, and not yet restored."""
        is_begun = self.phase is not Phase.PENDING and not self.has_ended
        return is_begun and not self.parameters.is_complete

    def leave(self, role: Role, index: int, session: str, now: float) -> Leaving:
        """A process was asked to end, by others; it may say so again."""
        member = self.members.heard(role, index, session, now)
        if member is None or self.has_ended:
            return Leaving(is_awaited=False, hands_over=False)
        self.processes.leaves(member, now)
        hands_over = self.parameters.wants_hand_over(member)
        return Leaving(role is Role.WORKER or hands_over, hands_over)

    def handed_over(self, index: int, session: str, version: int, now: float) -> None:
        """A process that was asked to end has written all that it holds."""
        for role in (Role.PS, Role.WORKER):
            found = self.members.find(role, index)
            if found is None or found.session != session or self.has_ended:
                continue
            member = self.members.heard(role, index, session, now)
            if member is not None:
                self.parameters.handed_over(member, version, now)

    def lease(
        self, worker_id: int, session: str, request: int, now: float, goes_on: bool = False
    ) -> Lease | Wait | Finished:
        """A worker asks for a task; `request` is the same for all attempts at one call.

        Args:
            worker_id: Who asks.
            session: Of that worker.
            request: Its number of the call.
            now: The time.
            goes_on: This attempt was to wait before, and was not answered so: see `awaits`.

        Raises:
            ElasticdlError: No worker of that number and session has registered.
        """
        member = self.members.heard(Role.WORKER, worker_id, session, now)
        if member is None:
            found = self.members.find(Role.WORKER, worker_id)
            is_known = found.session if found else self.members.has_been(Role.WORKER, worker_id)
            if not is_known:
                raise ElasticdlError(f"worker {worker_id} asks for a task, but has not registered")
            return Finished()  # given up, or replaced
        if not self.processes.are_workers_needed:
            return Finished()
        is_new = request > member.newest_request or (goes_on and self._awaits(member, request))
        if request > member.newest_request:
            member.newest_request, member.is_told_to_wait = request, False
        again = self.ledger.lease_of_request(worker_id, request)
        if again is not None:
            task_id, number = again
            is_suspect = self.ledger.is_suspect(task_id)
            task, place = self.tasks.task(task_id), self.ledger.place_of(task_id)
            return self._completed(Lease(task, number, is_suspect=is_suspect, place=place))
        if member.is_stopping or member.is_leaving:
            return Finished()
        if not is_new:
            # It was told to wait, or works on what it was given: an attempt that comes late. What
            # it was leased now nobody would know of, and the job would wait for it.
            member.is_told_to_wait = True  # so an earlier attempt is leased nothing either
            return Wait(_WAIT_SECONDS)
        if self._wants_metrics(now):
            return self.training_metrics.lease(worker_id, now)
        if not self._has_work(worker_id, now):
            return Wait(max(_WAIT_SECONDS, self.pace_seconds))
        self.history.begin(now)
        lease = self.ledger.lease(worker_id, request)
        self.stragglers.leased(lease.task.id, now)
        return self._completed(lease)

    def awaits(self, worker_id: int, session: str, request: int) -> bool:
        """Whether a worker still waits for the answer to an attempt that was not answered."""
        member = self.members.find(Role.WORKER, worker_id)
        return member is not None and member.session == session and self._awaits(member, request)

    @staticmethod
    def _awaits(member: Member, request: int) -> bool:
        return request == member.newest_request and not member.is_told_to_wait

    def has_word_for(self, worker_id: int, session: str, now: float) -> bool:
        """Whether a worker that asks for a task would be told something else than to wait."""
        member = self.members.find(Role.WORKER, worker_id)
        if member is None or member.session != session or member.gone or member.is_departing:
            return True
        is_needed = self.processes.are_workers_needed
        return not is_needed or self._wants_metrics(now) or self._has_work(worker_id, now)

    def _wants_metrics(self, now: float) -> bool:
        """Whether it is time for somebody to compute the metrics of training."""
        if self.phase is not Phase.TRAINING or self.history.failing:
            return False
        # They are compared with those of an evaluation that training waits for.
        is_wanted = self.evaluations.follows_epochs and self.evaluations.running_id is not None
        return self.training_metrics.is_due(now, self.plan.is_trained or is_wanted)

    def _has_work(self, worker_id: int, now: float) -> bool:
        """Whether there is a task for a worker."""
        is_open = self.phase is not Phase.PENDING and not self.history.failing
        is_open = is_open and not self.is_at_rest
        if not (is_open and self.parameters.is_complete):
            return False
        next_id = self.ledger.next_id(worker_id)
        return next_id is not None and self._may_write(next_id, now)

    @property
    def lets_workers_wait(self) -> bool:
        """Whether a worker may be kept waiting for a task: it need not hear now that there is none.

        In a world each worker tells the others that it has nothing to do.
        """
        return not self.config.has_worlds

    @property
    def pace_seconds(self) -> float:
        """How long a worker that waits leaves the master alone: thousands may do so."""
        return _WAIT_SECONDS_PER_WORKER * self.members.num_alive(Role.WORKER)

    def report(self, worker_id: int, session: str, report: TaskReport, now: float) -> bool:
        """A worker ends a lease; return whether that was still its lease."""
        member = self.members.heard(Role.WORKER, worker_id, session, now)
        if self.has_ended:
            return False
        if report.task_id == TRAINING_METRICS:
            if member is None:
                return False
            is_new = self.results.measured(report)
            self._advance(now)
            return is_new
        is_its = self.ledger.is_current(worker_id, report.task_id, report.lease)
        if member is None or not is_its:
            self.counters.refused_report()
            return False
        task = self.tasks.task(report.task_id)
        report = self.results.checked(task, report)
        was_done = self.ledger.is_replayed(task.id)
        may_pass = report.may_pass and report.outcome is Outcome.FAILED
        pause = self.patience.failed(now) if may_pass else None
        settled = self.ledger.report(
            worker_id,
            task.id,
            report.lease,
            report.outcome if pause is None else Outcome.RETURNED,
            report.message,
            report.end_index,
            report.num_examples,
            Missing(report.num_missing, report.num_unreadable, report.num_late, report.num_gone),
            is_last_try=may_pass or report.is_certain,
        )
        if task.kind is TaskKind.TRAINING:
            self.meter.reported(worker_id, report, now, was_done, settled is Settled.DONE)
            if words := self.divergence.trained(report):
                kind = kinds.Anomaly("diverging loss", "", self.divergence.advice)
                self._note(kind, words, is_warning=True)
        self.stragglers.ended(task.id, now, settled is Settled.DONE)
        if pause is not None:
            self._wait_for_storage(task, report.message, pause)
        elif task.kind in _WRITING and self.patience.is_waiting:
            self.patience.succeeded()
            self.history.say("")
        if settled is Settled.DONE and task.kind is TaskKind.TRAINING:
            self.counters.finished(report)
            totals = self.ledger.num_unreadable, self.ledger.num_late, self.num_gone
            for note in stream_news.of_task(task.shard, report, *totals, self.config.data):
                self._act(note)
            if self.intake is not None:
                self.intake.trained(task.shard.name, report.time)
                num_positions = task.shard.num_records
                self.intake.found(num_positions, num_positions - report.num_missing)
        if self.intake is not None and self.intake.keeps_order and not self.history.failing:
            self._cut(now)
        self._settle(task, report, settled, now)
        self._advance(now)
        return True

    def _may_write(self, task_id: int, now: float) -> bool:
        """Whether a task may be leased, as far as the place of its results is known to be well."""
        return self.patience.may_try(now) or self.tasks.task(task_id).kind not in _WRITING

    def _wait_for_storage(self, task: Task, message: str, pause: float) -> None:
        text = told(message, pause, "the export" if task.kind is TaskKind.EXPORT else "the task")
        self.history.say(text)
        self._note(kinds.ResultsWait(task.id, pause), text, is_warning=True)

    def attend(self, worker_id: int, session: str, said: Attendance, now: float) -> Seating:
        """A worker comes to the rendezvous of an all-reduce job."""
        member = self.members.heard(Role.WORKER, worker_id, session, now)
        if member is None or self.has_ended:
            return Finished()
        seating = self.parameters.worlds_with(member).attend(member, said, now)
        self._advance(now)
        return seating

    def seating(self, worker_id: int, session: str, said: Attendance) -> Seating:
        """Return what a worker that has come to the rendezvous is told now."""
        member = self.members.find(Role.WORKER, worker_id)
        worlds = self.parameters.worlds
        if member is None or member.session != session or self.has_ended or worlds is None:
            return Finished()
        return worlds.seating(member, said)

    def ended_world(self, role: Role, index: int) -> int:
        """Return the world that a process is to leave at its next step; 0 if it may stay."""
        member, worlds = self.members.find(role, index), self.parameters.worlds
        return 0 if member is None or worlds is None else worlds.ended_world(member)

    def announce(self, worker_id: int, session: str, position: Position, now: float) -> None:
        """A worker says where in a task it is."""
        member = self.members.heard(Role.WORKER, worker_id, session, now)
        if member is not None and self.ledger.is_current(
            worker_id, position.task_id, position.lease
        ):
            self.processes.is_at(member, position)

    def ps_route(self) -> PsRoute:
        """Return where the ps replicas are."""
        return self.parameters.route

    def set_num_workers(self, num_workers: int, now: float) -> None:
        """Go on with so many workers; see `Processes`."""
        self.processes.set_num_workers(num_workers, now)

    def set_num_ps(self, num_ps: int, now: float) -> None:
        """Have the model move to so many ps replicas.

        Raises:
            ElasticdlError: It cannot move, or moves already, or is not trained now.
        """
        if self.phase is not Phase.TRAINING or self.history.failing:
            raise ElasticdlError(f"the job is {self.phase}, expected training: nothing moves now")
        self.parameters.set_num_ps(num_ps)
        self.processes.fill_places(now)
        self._advance(now)

    # --- processes, as the launcher sees them ----------------------------------------------------

    def process_started(self, handle: ProcessHandle, now: float) -> None:
        """The launcher has taken a planned process on."""
        self.members.started(handle.role, handle.index, handle.ref, now)
        if handle.role is Role.PS:
            self.processes.end_superfluous()  # a move that it was for may have been called off

    def process_pending(self, pending: PendingProcess, now: float) -> None:
        """A process waits to be started."""
        member = self._member_of(pending.handle)
        if member is not None:
            self.processes.waits(member, pending, now)

    def process_runs(self, started: Started, now: float) -> None:
        """A process runs."""
        member = self._member_of(started.handle)
        if member is not None:
            self.processes.runs(member, now)

    def _member_of(self, handle: ProcessHandle) -> Member | None:
        """Return the member that a process is, unless it is another one's, or has ended."""
        member = self.members.find(handle.role, handle.index)
        is_it = member is not None and member.is_process(handle.ref) and not member.has_exited
        return member if is_it else None

    def process_exited(self, exited: Exited, now: float) -> None:
        """A process has ended, or could not be started (its handle has no `ref` then)."""
        member = self._member_of(exited.handle)
        if member is None:
            return  # known already, or the one before this member
        self.members.exited(member)
        if not member.gone:
            self._carry_out(member, self.processes.lose(member, exited, now), now)
            self._advance(now)

    def _settle(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        if task.kind is TaskKind.TRAINING:
            self._time(task, report, settled, now)
        failure = self.results.settle(task, report, settled, self.phase)
        if task.kind is TaskKind.METRICS and settled is Settled.DONE:
            failure = failure or self._look_for_best()
            self._look_for_overfitting()
        if failure is None:
            return
        if failure.after_checkpoint:
            self._fail_after_checkpoint(failure.words, now)
        else:
            self._fail(failure.words, now)

    def _time(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        """Have the watermark go on with a task of a stream that is done."""
        if self.event_time is None or self.intake is None:
            return
        name = task.shard.name
        if settled is Settled.DONE:
            self.event_time.done(name, report)
        elif settled is Settled.QUARANTINED:
            self.event_time.set_aside(name, task.id)
        if self.event_time.is_held_by(name):
            self.event_time.look(self.intake.waiting, now)

    def _look_for_best(self) -> Failure | None:
        """Have a checkpoint of the newest evaluation, if it is the best one so far."""
        wanted, results = Best.of(self.config.checkpoint.keep_best), self.evaluations.results
        if wanted is None or not results:
            return None
        newest = results[-1]
        if wanted.value_in(newest.metrics) is None:
            known = ", ".join(newest.metrics) or "none"
            words = f"--keep_best={wanted.metric}: the evaluation has no such metric, but {known}"
            return Failure(words, after_checkpoint=True)
        best = best_of(results, wanted)
        if best is not None and best.result is newest:
            self.parameters.schedule.want_best()
            said = f"{wanted.metric} {best.value:.6g}"
            text = f"the best evaluation so far, {said}; its checkpoint is kept"
            kind = kinds.BestEvaluation(wanted.metric, wanted.mode, best.value, newest.version)
            self._note(kind, text)
        return None

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation so far; None without `--keep_best`."""
        wanted = Best.of(self.config.checkpoint.keep_best)
        found = best_of(self.evaluations.results, wanted) if wanted is not None else None
        if wanted is None or found is None:
            return None
        return BestEvaluation(
            metric=wanted.metric,
            mode=wanted.mode,
            value=found.value,
            version=found.result.version,
            num_epochs=found.result.num_epochs,
            checkpoint=self.parameters.schedule.best_kept,
        )

    @property
    def overfitting(self) -> Overfitting | None:
        """How the model overfits, by the evaluations so far; None if it does not."""
        kept = Best.of(self.config.checkpoint.keep_best)
        return overfitting_of(self.evaluations.results, kept)

    def _look_for_overfitting(self) -> None:
        """Say it when it is seen for the first time."""
        found = None if self.evaluations.has_told_overfitting else self.overfitting
        if found is not None:
            self.evaluations.tell_overfitting()
            kind = kinds.Overfitting(
                metric=found.metric.metric,
                mode=found.metric.mode,
                best=found.best.value,
                value=found.last,
            )
            self._note(kind, found.words, is_warning=True)

    def _give_up(self, member: Member, words: str, now: float) -> None:
        self._carry_out(member, self.processes.give_up(member, words, now), now)

    def _carry_out(self, member: Member, loss: Loss, now: float) -> None:
        """Do what follows for the tasks and the job from the loss of a process."""
        if member.role is Role.WORKER:
            self.training_metrics.lost(member.index)
        if loss.task_id is not None and not self.has_ended:
            task = self.tasks.task(loss.task_id)
            report = TaskReport(task.id, 0, Outcome.FAILED, loss.message)
            self._settle(task, report, loss.settled, now)
        if loss.failure and member.role is Role.WORKER and self.ledger.num_done:
            self._fail_after_checkpoint(loss.failure, now)
        elif loss.failure and not self.has_ended:
            self._fail(loss.failure, now)

    # --- phases ----------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Go on to the next phase, if this one has nothing left; start what is due."""
        if self.has_ended:
            return
        if self.intake is not None and self.intake.is_over and not self.ledger.has_fresh:
            self.ledger.stop_training()
        self._leave_stragglers(now)
        if self.history.model_change:
            self._come_to_rest()
        is_training = self.phase is Phase.TRAINING and not self.ledger.is_trained
        is_failing = bool(self.history.failing) or self.is_at_rest
        version, num_epochs = self.meter.model_version, self.ledger.num_epochs_complete
        if is_training and not is_failing and self.evaluations.is_due(version, num_epochs):
            self._start_evaluation()
        if not is_failing:
            is_last = self.phase is Phase.EVALUATING or not self.plan.needs(Phase.EVALUATING)
            self.callbacks.advance(self.phase, is_last and self.plan.is_over(self.phase))
        self.parameters.ask_what_is_due(now)
        is_over = not is_failing and self.plan.is_over(self.phase)
        is_over = is_over and not self._waits_for_stragglers
        if self.event_time is not None:
            for window in self.event_time.tell(is_over and self.phase is Phase.TRAINING):
                self._act(stream_news.of_window(window))
        if is_over:
            self._enter(self.plan.after(self.phase), now)

    @property
    def is_at_rest(self) -> bool:
        """Whether the model changes, and none of the training tasks is begun: the master leaves."""
        return self.history.model_change == AT_REST

    def _come_to_rest(self) -> None:
        """Have a job whose model changes rest, once no task is begun, with what it has trained.

        The first minibatches of a task that is begun are those of the model before, which decides
        the order of its records.
        """
        is_open = self.parameters.is_complete and not self.history.failing and not self.is_at_rest
        if is_open and self.phase is not Phase.PENDING and self.ledger.is_at_rest:
            self.history.fail_after_checkpoint(_RESTS)

    def _leave_stragglers(self, now: float) -> None:
        """Wait no longer for the last tasks, if so many workers have nothing left as have to."""
        ledger = self.ledger
        if self.stragglers.are_awaited or self.phase is not Phase.TRAINING or ledger.num_todo:
            return
        held = ledger.held_in_training
        busy, num_workers = set(held.values()), self.members.num_alive(Role.WORKER)
        if not self.stragglers.may_be_left(num_workers, len(busy), held, now):
            return
        ledger.leave(held)
        for member in self.members.present(Role.WORKER):
            if member.index in busy:
                self.processes.end(member, "the job does not wait for it")
        self._note(kinds.LeftToStragglers(sorted(held)), ledger.left_behind(), is_warning=True)

    @property
    def _waits_for_stragglers(self) -> bool:
        """Whether a worker whose task was left is still there: it may have a step to push."""
        is_left = self.phase is Phase.TRAINING and bool(self.ledger.left)
        return is_left and any(m.is_stopping for m in self.members.present(Role.WORKER))

    def _enter(self, phase: Phase, now: float) -> None:
        if phase is Phase.FINISHED:
            self._finish(now)
            return
        self.history.enter(phase, now)
        self._note(kinds.PhaseBegan(str(phase)), f"the job is {phase}")
        match phase:
            case Phase.TRAINING:
                self.meter.begin(now)
            case Phase.PREDICTING:
                self.ledger.queue(self.tasks.prediction_ids)
            case Phase.EVALUATING:
                self._start_evaluation()
            case Phase.EXPORTING:
                self.ledger.queue(range(self.tasks.export_id, self.tasks.export_id + 1))
        self._advance(now)

    def _may_begin(self) -> int:
        """Return how many training tasks may be begun.

        An epoch waits for the evaluation of the one before, and for what callbacks make of it. In
        one process it waits for callbacks without an evaluation, too, as in Keras. Where the model
        changes, only those are left that the updates begun have.
        """
        if self.history.model_change:
            return self.ledger.num_begun_whole
        if self.evaluations.follows_epochs:
            num_ended = self.evaluations.num_epochs
        elif self.config.is_local and self.callbacks.is_declared and self.intake is None:
            num_ended = self.callbacks.epochs_ended
        else:
            return self.tasks.num_known
        is_busy = self.callbacks.are_under_way or self.parameters.schedule.is_best_due
        num_epochs = num_ended + (not is_busy)
        return min(num_epochs * self.tasks.per_epoch, self.tasks.num_known)

    def _start_evaluation(self) -> None:
        evaluation_id = self.evaluations.start(
            self.meter.model_version, self.ledger.num_epochs_complete
        )
        self.ledger.queue(self.tasks.evaluation_ids(evaluation_id))

    def _fail_after_checkpoint(self, message: str, now: float, hurries: bool = False) -> None:
        """Fail, once what has been trained is in a checkpoint, if the job can write any."""
        if self.has_ended or self.history.failing:
            return
        has_trained = self.phase in (
            Phase.TRAINING,
            Phase.EVALUATING,
            Phase.EXPORTING,
            Phase.CHECKPOINTING,
        )
        is_for_user = self.plan.needs(Phase.CHECKPOINTING)
        is_kept = self.config.keeps_own_checkpoints and self.ledger.training_records_done > 0
        is_held = bool(self.members.present(Role.WORKER)) or not self.config.has_worlds
        if not (has_trained and is_held and (is_for_user or is_kept)):
            self._fail(message, now, is_cancelled=hurries)
            return
        self.history.fail_after_checkpoint(message, hurries)
        if hurries:
            self.parameters.schedule.patience.succeeded()  # what it waits for is tried now, once
        self._note(kinds.JobStopping(), f"{message}; writing a last checkpoint", is_warning=True)

    def _finish(self, now: float) -> None:
        shortcomings = self.plan.shortcomings()
        if shortcomings:
            self._fail("; ".join(shortcomings), now)
        else:
            parts = (self.callbacks.stopped, self._words_of_best(), self.message)
            message = "; ".join(part for part in parts if part)
            self.parameters.job_finished()
            self.history.end(Phase.FINISHED, message, now)
            self._note(kinds.JobEnded(str(Phase.FINISHED)), "the job is finished")

    def _words_of_best(self) -> str:
        """Say which checkpoint is that of the best evaluation; "" if none is asked for."""
        best = self.best
        if best is None:
            return ""
        when = moment(best.num_epochs, best.version)
        named = f"the best evaluation ({best.metric} {best.value:.6g}, {when})"
        if best.checkpoint is None:
            return f"the checkpoint of {named} could not be written"
        exported = "; --output has the last parameters" if self.config.checkpoint.output else ""
        return f"{named} is kept in the checkpoint of version {best.checkpoint}{exported}"

    def _fail(self, message: str, now: float, is_cancelled: bool = False) -> None:
        goes_on = not (is_cancelled or self.history.hurries) and self._can_go_on
        job_dir, newest = self.config.cluster.job_dir, self.parameters.schedule.newest
        if goes_on:
            message += f"; the same command with --job_dir={job_dir} goes on"
        elif newest is not None and newest.is_private and self.config.is_local:
            folder = f"{job_dir}/{RECOVERY_FOLDER}"
            message += f"; what was trained is in {folder}, where --checkpoint_dir_for_init begins"
        self.history.end(Phase.FAILED, message, now, goes_on)
        ended = kinds.JobEnded(str(Phase.FAILED))
        self._note(ended, f"the job failed: {message}", is_warning=True)

    @property
    def _can_go_on(self) -> bool:
        """Whether another master can make good what this job has failed for.

        It tries again what was set aside, and then what comes after. A job that has trained nothing
        is begun anew; and where the proof has found fault, nothing could be trusted.
        """
        config = self.config
        is_resumable = config.cluster.job_dir is not None and not config.is_local
        has_trained = config.command == "train" and self.ledger.training_records_done > 0
        return is_resumable and has_trained and not self.history.is_unproved

    def _apply_reopened(self) -> None:
        self.history.reopened()
        self.ledger.reopened(
            lambda task_id: self.tasks.task(task_id).kind in _MADE_ANEW,
            tries_again=not self.history.model_change,  # the other model is to try what failed
        )
        self.evaluations.reopened()
        self.parameters.schedule.reopened()
        self.patience.reset()

    def _apply_model_changes(self, how: str) -> None:
        self.history.model_changes(how)
        self.parameters.schedule.reopened()
        if not how:
            self.ledger.reopened(lambda task_id: False)

    def _forget_worker(self, worker_id: int) -> None:
        """Keep only the sums of a worker that has long been dead; a part of a fact."""
        self.ledger.forget_worker(worker_id)
        self.meter.forget_worker(worker_id)

    # --- tasks -----------------------------------------------------------------------------------

    def _completed(self, lease: Lease) -> Lease:
        generation, rate = self.parameters.generation, self.callbacks.learning_rate
        match lease.task.kind:
            case TaskKind.METRICS:
                return replace(lease, metric_states=self.evaluations.states, generation=generation)
            case TaskKind.CALLBACKS:
                return replace(lease, callbacks=self.callbacks.call(), generation=generation)
            case TaskKind.TRAINING:
                times = self.event_time
                late_before = 0.0 if times is None else times.begun(lease.task.id)
                if rate is None and not late_before:
                    return replace(lease, generation=generation) if generation else lease
                return replace(
                    lease, learning_rate=rate, generation=generation, late_before=late_before
                )
        return replace(lease, generation=generation) if generation else lease

    def _act(self, action: Action) -> None:
        self._actions.append(action)

    def _note(self, kind: Kind, text: str, is_warning: bool = False) -> None:
        self._act(Note(kind, text, is_warning))

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "history": self.history.snapshot(),
            "intake": None if self.intake is None else self.intake.snapshot(),
            "event_time": None if self.event_time is None else self.event_time.snapshot(),
            "ledger": self.ledger.snapshot(),
            "members": self.members.snapshot(),
            "withheld": self.processes.room.num_withheld,
            "evaluations": self.evaluations.snapshot(),
            "callbacks": self.callbacks.snapshot(),
            "meter": self.meter.snapshot(),
            "holder": self.parameters.snapshot(),
            "counters": self.counters.snapshot(),
            "patience": self.patience.snapshot(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.history.restore(snapshot["history"])
        if self.intake is not None:
            self.intake.restore(snapshot["intake"])
        if self.event_time is not None and snapshot.get("event_time"):
            self.event_time.restore(snapshot["event_time"])
        self.ledger.restore(snapshot["ledger"])
        self.members.restore(snapshot["members"])
        self.processes.room.num_withheld = snapshot.get("withheld", 0)
        self.evaluations.restore(snapshot["evaluations"])
        self.callbacks.restore(snapshot["callbacks"])
        self.meter.restore(snapshot["meter"])
        self.parameters.restore(snapshot["holder"])
        self.counters.restore(snapshot["counters"])
        self.patience.restore(snapshot.get("patience"))


def _intake(config: JobConfig, tasks: JobTasks, journal: Journal) -> Intake | None:
    """Return what cuts the training data into tasks as it arrives; None: all of it is there."""
    if not isinstance(tasks.training, StreamTable):
        return None
    if not is_topic(config.data.training_data):
        return Intake(journal, tasks.training, records_per_task(config))
    topic, skips_gaps = parse(config.data.training_data), config.data.on_gap == "skip"
    table, size = tasks.training, records_per_task(config)
    return Intake(
        journal,
        table,
        size,
        skips_gaps=skips_gaps,
        keeps_order=topic.keeps_order,
        ends_at_once=not topic.is_endless,
        guessed_records=topic.guessed_records,
    )


def _event_time(
    config: JobConfig, intake: Intake | None, tasks: JobTasks, journal: Journal
) -> EventTime | None:
    """Return what follows the event times of a stream; None: it has none."""
    is_timed = is_topic(config.data.training_data)
    if intake is None or not is_timed or not isinstance(tasks.training, StreamTable):
        return None
    disorder, data = parse(config.data.training_data).disorder_seconds, config.data
    found = EventTime(journal, tasks.training, data.window_seconds, disorder, data.lateness_seconds)
    intake.when_cut = found.cut
    return found
