"""The job as one state machine: events and the time go in, answers and actions come out.

Nothing here reads a clock, a socket or a file. `elasticdl.master.durable` writes down the facts
that an event gave rise to, before its answer and its actions leave; so a master that was killed
goes on from its journal as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.job import (
    Finished,
    Lease,
    Outcome,
    Progress,
    PsRoute,
    Role,
    Task,
    TaskAudit,
    TaskKind,
    TaskReport,
    Wait,
)
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master import relaunch
from elasticdl.master.actions import (
    Action,
    AdoptProcess,
    AskWatermarks,
    ExpireRows,
    Note,
    StartProcess,
    StopProcess,
)
from elasticdl.master.audit import Replicas
from elasticdl.master.checkpoints import Checkpoints, WholeCheckpoint
from elasticdl.master.course import Course
from elasticdl.master.evaluation import Evaluations
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.membership import Member, Membership
from elasticdl.master.phases import CLOSING, ENDED, ORDER, Phase
from elasticdl.master.places import Places, describe
from elasticdl.master.progress import Meter
from elasticdl.master.questions import Questions
from elasticdl.master.tasks import JobTasks

_WAIT_SECONDS = 0.1
_WAIT_SECONDS_PER_WORKER = 0.002  # so that a thousand waiting workers do not drown the master
_LAST_WORDS_KEPT = 100


class JobCore:
    """Decides. Every method that takes `now` is an event; all others are questions.

    `now` is the time in seconds since the job began; it never goes back. After each event
    somebody takes the facts (`journal.take`) and the actions (`take_actions`), in this order.
    """

    def __init__(self, config: JobConfig, tasks: JobTasks) -> None:
        self.config = config
        self.num_ps = config.num_ps
        self.tasks = tasks
        self.journal = Journal()
        self.course = Course(self.journal)
        training, checkpoint = config.training, config.checkpoint
        self.ledger = Ledger(
            tasks,
            self.journal,
            seed=training.seed,
            shuffle=training.shuffle_tasks,
            max_retries=training.max_task_retries,
            minibatch_size=training.minibatch_size,
        )
        self.members = Membership(self.journal, config.cluster.heartbeat_timeout_seconds)
        self.places = Places(self.journal, self.members, self.num_ps)
        self.evaluations = Evaluations(
            self.journal, len(tasks.validation), config.evaluation.evaluation_steps
        )
        self.checkpoints = Checkpoints(self.journal, checkpoint.checkpoint_steps)
        self.meter = Meter(self.journal)
        self._last_words: list[str] = []  # of processes that failed
        self._epochs_expired = 0  # not journalled: a pass too many or too few does no harm
        self._fatal = ""  # the job fails for this when its last checkpoint is written
        self._actions: list[Action] = []
        parts = (self.course, self.ledger, self.places, self.checkpoints, self.meter)
        self.questions = Questions(config, tasks, *parts, act=lambda a: self._actions.append(a))

    @property
    def phase(self) -> Phase:
        """What the job is about."""
        return self.course.phase

    @property
    def message(self) -> str:
        """What is to be said of the job now, or of its end."""
        return self.course.message

    def take_actions(self) -> list[Action]:
        """Return what is to be done since the last call."""
        actions, self._actions = self._actions, []
        return actions

    # --- the life of the job ---------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Plan the processes of a new job."""
        for index in range(self.num_ps):
            self._plan(Role.PS, now, index)
        for _ in range(self.config.cluster.num_workers):
            self._plan(Role.WORKER, now)

    def resume(self, now: float) -> None:
        """Take up a job that an earlier master has left, after its facts were replayed."""
        self.members.heard_all(now)
        self.meter.begin(now)
        for member in list(self.members):
            self._take_up(member)
        if self.has_ended:
            return
        self._note("resumed", f"the job goes on, {self.ledger.num_done} tasks are done")
        for member in self.members.present(Role.PS):
            if member.is_alive and not self.places.is_ready(member):
                self._actions.append(AskWatermarks(member.index, member.session, member.address))
        self._advance(now)

    def tick(self, now: float) -> None:
        """Look for processes that have fallen silent; call it now and then."""
        for member in self.members.silent(now):
            words = f"nothing was heard of it for {now - member.last_heard:.0f} s"
            self._give_up(member, words, now)
        self._advance(now)

    def stop(self, reason: str, now: float) -> None:
        """Cancel the job."""
        if not self.has_ended:
            self._fail(f"stopped: {reason}", now)

    @property
    def _needs_workers(self) -> bool:
        """Whether there may still be tasks: a replica that is lost at the very end needs them."""
        return not self.has_ended and (self.num_ps > 0 or self.phase not in CLOSING)

    @property
    def has_ended(self) -> bool:
        """Whether the job has finished or failed."""
        return self.phase in ENDED

    # --- workers and ps replicas -----------------------------------------------------------------

    def register_worker(self, worker_id: int, session: str, pid: int, now: float) -> None:
        """A worker announces itself. A new process at an old index takes nothing over."""
        member = self.members.find(Role.WORKER, worker_id)
        if member is not None and member.is_alive and member.session != session:
            self._take_back(member, now)
        member = self.members.register(Role.WORKER, worker_id, session, pid, "", now)
        if not member.gone:
            self._note("registered", f"{member.name} is here", process=member.name, pid=pid)
        self._advance(now)

    def register_ps(self, index: int, session: str, pid: int, address: str, now: float) -> None:
        """A ps replica announces itself.

        Raises:
            ElasticdlError: The job has no such replica, or another process is that replica.
        """
        if not 0 <= index < self.num_ps:
            raise ElasticdlError(f"this job has {self.num_ps} ps replicas, none is number {index}")
        member = self.members.find(Role.PS, index)
        if member is not None and member.is_alive and member.session != session:
            raise ElasticdlError(
                f"ps replica {index} is already process {member.pid} at {member.address}"
            )
        member = self.members.register(Role.PS, index, session, pid, address, now)
        text = f"{member.name} listens at {address}"
        self._note("registered", text, process=member.name, pid=pid, address=address)
        if self.places.registered(member):
            self._actions.append(AskWatermarks(index, session, address))
        self._advance(now)

    def restore_point(
        self, index: int, num_unsound: int = 0, problem: str = ""
    ) -> WholeCheckpoint | None:
        """A ps replica that has been started asks which checkpoint of this job it is to restore.

        Any of this job's own will do: it brings its own watermarks, and the ledger gives back what
        they lack. After all it is the start of the job, and everything is replayed.

        Args:
            index: Which replica.
            num_unsound: How many it has tried in vain, newest first.
            problem: What was wrong with the last of these.
        """
        candidates = self.checkpoints.candidates()
        point = candidates[num_unsound] if num_unsound < len(candidates) else None
        if num_unsound:
            instead = f"version {point.version:,}" if point else "the start of the job"
            text = f"ps replica {index} goes back to {instead}: {problem}"
            self._note("checkpoint unsound", text, True, replica=index, problem=problem)
        version = point.version if point else 0
        if candidates:
            self.places.restores(index, version)
        return point

    def replica_back(
        self, index: int, session: str, applied: Iterable[TaskAudit], now: float
    ) -> None:
        """A ps replica that was lost is back, and has said what it has."""
        member = self._successor(index, session)
        if member is None or self.places.is_ready(member):
            return
        lacks = self.ledger.lacks({entry.task_id: entry.next_index for entry in applied})
        is_replayed = self.config.checkpoint.ps_recovery == "replay"
        if self.config.command == "train":  # else it has all: nothing changes
            self.ledger.take_in_replica(lack.task_id for lack in lacks if is_replayed)
        recovery = self.places.took_in(member, lacks, is_replayed, now)
        self._note("ps recovered", describe(recovery), process=member.name, **asdict(recovery))
        self._advance(now)

    def replica_unreachable(self, index: int, session: str, message: str, now: float) -> None:
        """A ps replica that was back could not be asked what it has."""
        member = self._successor(index, session)
        if member is not None:
            self._give_up(member, message, now)
            self._advance(now)

    def _successor(self, index: int, session: str) -> Member | None:
        """Return the ps replica that was asked, unless it is lost again, or the job has ended."""
        member = self.members.find(Role.PS, index)
        is_it = member is not None and member.session == session and member.is_alive
        return member if is_it and not self.has_ended else None

    def heartbeat(
        self, role: Role, index: int, session: str, progress: Progress | None, now: float
    ) -> None:
        """A process says that it is alive."""
        member = self.members.heard(role, index, session, now)
        if member is not None and progress is not None:
            self.meter.heard(index, progress, now)
            self._advance(now)

    def lease(
        self, worker_id: int, session: str, request: int, now: float
    ) -> Lease | Wait | Finished:
        """A worker asks for a task; `request` is the same for all attempts at one call.

        Raises:
            ElasticdlError: No worker of that number and session has registered.
        """
        member = self.members.heard(Role.WORKER, worker_id, session, now)
        if member is None:
            found = self.members.find(Role.WORKER, worker_id)
            if found is None or not found.session:
                raise ElasticdlError(f"worker {worker_id} asks for a task, but has not registered")
            return Finished()  # given up, or replaced
        if not self._needs_workers:
            return Finished()
        again = self.ledger.lease_of_request(worker_id, request)
        if again is not None:
            return self._completed(Lease(self.tasks.task(again[0]), again[1]))
        if member.is_stopping:
            return Finished()
        has_work = self.phase is not Phase.PENDING and self.ledger.next_id() is not None
        if not has_work or self._fatal or not self.places.is_complete:
            return self._wait()
        self.course.begin(now)
        return self._completed(self.ledger.lease(worker_id, request))

    def report(self, worker_id: int, session: str, report: TaskReport, now: float) -> bool:
        """A worker ends a lease; return whether that was still its lease."""
        member = self.members.heard(Role.WORKER, worker_id, session, now)
        if member is None or self.has_ended:
            return False
        if not self.ledger.is_current(worker_id, report.task_id, report.lease):
            return False
        task = self.tasks.task(report.task_id)
        report = self._checked(task, report)
        if task.kind is TaskKind.TRAINING:
            self.meter.reported(worker_id, report, now)
        settled = self.ledger.report(
            worker_id, task.id, report.lease, report.outcome, report.message, report.end_index
        )
        self._settle(task, report, settled, now)
        self._advance(now)
        return True

    def ps_route(self) -> PsRoute:
        """Return where the ps replicas are."""
        return self.places.route

    def set_num_workers(self, num_workers: int, now: float) -> None:
        """Go on with so many workers.

        Workers above the number finish what they hold and get no more; they are the youngest.

        Raises:
            ElasticdlError: The number is not positive, or the job needs no workers any more.
        """
        if num_workers < 1:
            raise ElasticdlError(f"expected at least one worker, found {num_workers}")
        if not self._needs_workers:
            raise ElasticdlError(f"the job is {self.phase}, it needs no workers any more")
        present = [m for m in self.members.present(Role.WORKER) if not m.is_stopping]
        for _ in range(num_workers - len(present)):
            self._plan(Role.WORKER, now)
        for member in present[num_workers:]:
            self.members.stopping(member)
            self._note("stopping", f"{member.name} is to leave", process=member.name)

    # --- processes, as the launcher sees them ----------------------------------------------------

    def process_started(self, handle: ProcessHandle, now: float) -> None:
        """The launcher has started a planned process."""
        self.members.started(handle.role, handle.index, handle.ref, now)

    def process_exited(self, exited: Exited, last_words: str, now: float) -> None:
        """A process has ended, or could not be started (its handle has no `ref` then).

        Args:
            exited: Which one, and why as far as the launcher knows.
            last_words: The end of its log, for the messages.
            now: The time.
        """
        handle = exited.handle
        member = self.members.find(handle.role, handle.index)
        if member is None or member.has_exited or member.handle not in ("", handle.ref):
            return  # known already, or the one before this member
        self.members.exited(member)
        if not member.gone:
            self._lose(member, exited, last_words, now)
            self._advance(now)

    # --- effects that have been carried out ------------------------------------------------------

    def checkpoint_written(self, version: int, now: float) -> None:
        """A checkpoint is whole."""
        is_over = self.questions.checkpoint_written(version, now)
        if not self.has_ended:
            self.course.message = ""
            self._go_on(is_over, now)

    def checkpoint_failed(
        self, version: int, message: str, now: float, was_unreachable: bool = False
    ) -> None:
        """A checkpoint could not be written, perhaps because a replica could not be reached."""
        is_over = self.questions.checkpoint_failed(version, message, was_unreachable, now)
        if not self.has_ended:
            self._go_on(is_over, now)

    def audited(self, replicas: Replicas, now: float) -> None:
        """The replicas have said what they have applied."""
        if self.phase is Phase.AUDITING:
            self._go_on(self.questions.audited(replicas), now)

    def audit_failed(self, message: str, now: float, was_unreachable: bool = False) -> None:
        """The replicas could not be asked, so nothing is proved."""
        if self.phase is Phase.AUDITING and self.questions.audit_failed(was_unreachable):
            self._fail(f"the ledger could not be proved: {message}", now)
        self._advance(now)

    # --- phases ----------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Go on to the next phase, if this one has nothing left; start what is due."""
        if self._fatal:
            self.questions.ask_before_failing(now)
            return
        if self.phase is Phase.TRAINING:
            self._start_what_is_due(now)
        elif self.phase in CLOSING:
            self.questions.ask_at_end(now)
        if self._is_over(self.phase):
            self._enter(self._phase_after(self.phase), now)

    def _is_over(self, phase: Phase) -> bool:
        match phase:
            case Phase.PENDING:
                return self.places.is_complete and self.members.num_alive(Role.WORKER) > 0
            case Phase.TRAINING:
                return self.ledger.is_trained and self.ledger.is_idle
            case Phase.EVALUATING | Phase.PREDICTING | Phase.EXPORTING:
                return self.ledger.is_idle
            case _:
                return False  # ended by an event of its own

    def _phase_after(self, phase: Phase) -> Phase:
        """Return the next phase that this job needs."""
        for candidate in ORDER[ORDER.index(phase) + 1 :]:
            if self._needs(candidate):
                return candidate
        raise AssertionError("every job ends with FINISHED")

    def _needs(self, phase: Phase) -> bool:
        command, checkpoint = self.config.command, self.config.checkpoint
        is_sound = not self.shortcomings()
        match phase:
            case Phase.TRAINING:
                return command == "train"
            case Phase.PREDICTING:
                return command == "predict"
            case Phase.EVALUATING:
                return command != "predict" and self.evaluations.can_start and is_sound
            case Phase.EXPORTING:
                wanted = checkpoint.output or checkpoint.export_tables
                return command == "train" and wanted is not None and is_sound
            case Phase.CHECKPOINTING:
                return command == "train" and checkpoint.checkpoint_dir is not None
            case Phase.AUDITING:
                return command == "train"
            case _:
                return True

    def _enter(self, phase: Phase, now: float) -> None:
        if phase is Phase.FINISHED:
            self._finish(now)
            return
        self.course.enter(phase, now)
        self._note("phase", f"the job is {phase}", phase=str(phase))
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

    def _start_what_is_due(self, now: float) -> None:
        if self.ledger.is_trained:
            return  # the last evaluation and the last checkpoint come by themselves
        version = self.meter.model_version
        if self.ledger.epoch > self._epochs_expired:
            self._epochs_expired = self.ledger.epoch
            self._actions.append(ExpireRows())
        if self.evaluations.is_due(version):
            self._start_evaluation()
        self.questions.ask_in_training(now)

    def _start_evaluation(self) -> None:
        evaluation_id = self.evaluations.start(self.meter.model_version)
        self.ledger.queue(self.tasks.evaluation_ids(evaluation_id))

    def _stop_training(self, message: str, now: float) -> None:
        """Fail, once what has been trained is in a checkpoint, if the job writes any."""
        if self._fatal:
            return
        if self.phase is not Phase.TRAINING or not self._needs(Phase.CHECKPOINTING):
            self._fail(message, now)
            return
        self._fatal = message
        self._note("training stopped", f"{message}; writing a last checkpoint", is_warning=True)
        self.questions.ask_before_failing(now)

    def _go_on(self, is_over: bool, now: float) -> None:
        if is_over and self._fatal:
            self._fail(self._fatal, now)
        elif is_over:
            self._enter(self._phase_after(self.phase), now)
        else:
            self._advance(now)

    def _finish(self, now: float) -> None:
        shortcomings = self.shortcomings()
        if shortcomings:
            self._fail("; ".join(shortcomings), now)
        else:
            self.course.end(Phase.FINISHED, self.message, now)
            self._note("ended", "the job is finished", phase=str(Phase.FINISHED))

    def _fail(self, message: str, now: float) -> None:
        self.course.end(Phase.FAILED, message, now)
        self._note("ended", f"the job failed: {message}", is_warning=True, phase=str(Phase.FAILED))

    def shortcomings(self) -> list[str]:
        """Say what the job has not done, and will fail for."""
        set_aside = self.ledger.set_aside()
        return [*self.course.problems, *([set_aside] if set_aside else [])]

    # --- tasks -----------------------------------------------------------------------------------

    def _wait(self) -> Wait:
        num_workers = self.members.num_alive(Role.WORKER)
        return Wait(max(_WAIT_SECONDS, _WAIT_SECONDS_PER_WORKER * num_workers))

    def _completed(self, lease: Lease) -> Lease:
        is_metrics, generation = lease.task.kind is TaskKind.METRICS, self.places.generation
        if not is_metrics and not generation:
            return lease
        states = self.evaluations.states if is_metrics else {}
        return replace(lease, metric_states=states, generation=generation)

    def _checked(self, task: Task, report: TaskReport) -> TaskReport:
        """Return the report, as a failure if its metric states do not fit the others'."""
        if task.kind is not TaskKind.EVALUATION or report.outcome is not Outcome.DONE:
            return report
        try:
            self.evaluations.check(task.evaluation_id, report.metric_states)
        except ModelError as error:
            return replace(report, outcome=Outcome.FAILED, message=str(error))
        return report

    def _settle(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        if report.fatal:
            self._stop_training(report.message, now)
        elif settled is Settled.QUARANTINED:
            self._set_aside(task, report.message, now)
        elif settled is Settled.DONE and task.kind is TaskKind.EVALUATION:
            if self.evaluations.evaluated(task.evaluation_id, report.metric_states):
                metrics_id = self.tasks.metrics_id(task.evaluation_id)
                self.ledger.queue(range(metrics_id, metrics_id + 1))
        elif settled is Settled.DONE and task.kind is TaskKind.METRICS:
            self.evaluations.finish(task.evaluation_id, report.metrics)
            text = ", ".join(f"{name} {value:.6g}" for name, value in report.metrics.items())
            self._note("evaluation", f"evaluation: {text}", metrics=report.metrics)
        elif settled is Settled.REQUEUED and report.outcome is Outcome.FAILED:
            self._note("task failed", report.message, is_warning=True, task=task.id)

    def _set_aside(self, task: Task, message: str, now: float) -> None:
        self._note("task set aside", message, is_warning=True, task=task.id)
        if self.ledger.num_done == 0:
            tries = self.config.training.max_task_retries + 1
            self._fail(f"no task succeeded, and one failed {tries} times: {message}", now)
        elif task.evaluation_id >= 0 and task.evaluation_id == self.evaluations.running_id:
            self.evaluations.abandon()
            self.ledger.drop(self.tasks.evaluation_ids(task.evaluation_id))

    # --- processes -------------------------------------------------------------------------------

    def _plan(self, role: Role, now: float, index: int | None = None) -> None:
        member = self.members.plan(role, now, index)
        self._actions.append(StartProcess(role, member.index))

    def _take_up(self, member: Member) -> None:
        """Watch a process that an earlier master planned, or start it if that had not happened."""
        if member.handle and not member.has_exited:
            handle = ProcessHandle(member.role, member.index, member.handle)
            self._actions.append(AdoptProcess(handle))
        elif not (member.handle or member.session or member.gone or self.has_ended):
            self._actions.append(StartProcess(member.role, member.index))

    def _take_back(self, member: Member, now: float) -> None:
        if member.role is Role.PS:
            self.places.lost(member, now)
        else:
            task_ids = self.ledger.worker_lost(member.index)
            self.meter.lost(member.index)
            if task_ids:
                text = f"{len(task_ids)} tasks of {member.name} go to others"
                self._note("requeued", text, process=member.name, tasks=task_ids)

    def _give_up(self, member: Member, words: str, now: float) -> None:
        """Take a process as lost that cannot be reached, and end it, wherever it is."""
        handle = ProcessHandle(member.role, member.index, member.handle)
        self._lose(member, Exited(handle, ExitReason.UNKNOWN, None), words, now)
        if handle.ref and not member.has_exited:
            self._actions.append(StopProcess(handle))

    def _lose(self, member: Member, exited: Exited, last_words: str, now: float) -> None:
        """A process is lost: take back what it held, and decide what to do about it."""
        how = relaunch.describe(exited.reason, exited.code)
        text = f"{member.name} {how}" + (f": {last_words}" if last_words else "")
        was_ready = self.places.is_ready(member) if member.role is Role.PS else member.is_alive
        self.members.lose(member, how)
        self._take_back(member, now)
        if self.has_ended:
            return
        is_needed = member.role is Role.PS or self._needs_workers
        is_expected = member.is_stopping or not is_needed
        self._note(
            "left" if is_expected else "lost",
            text,
            is_warning=not is_expected,
            process=member.name,
            reason=str(exited.reason),
        )
        if not is_expected:
            done = self.ledger.done_by_worker.get(member.index, 0)
            ended = relaunch.Ended(member.role, exited.reason, exited.code, was_ready, done)
            verdict = relaunch.decide(ended, self._counts(member, last_words))
            self._carry_out(verdict, member, text, now)
            if last_words:
                self._last_words = [*self._last_words[-_LAST_WORDS_KEPT:], last_words]

    def _counts(self, member: Member, last_words: str) -> relaunch.Counts:
        return relaunch.Counts(
            failures=self.course.failures,
            max_relaunches=self.config.cluster.max_relaunches,
            job_tasks_done=self.ledger.num_done,
            same_message_before=last_words in self._last_words,
            others_present=sum(not m.is_stopping for m in self.members.present(member.role)),
        )

    def _carry_out(self, verdict: relaunch.Verdict, member: Member, text: str, now: float) -> None:
        if verdict.is_failure:
            self.course.process_failed()
        match verdict.decision:
            case relaunch.Decision.RELAUNCH:
                # A ps replica's index is its place in the model; a worker's is never used again.
                self._plan(member.role, now, member.index if member.role is Role.PS else None)
            case relaunch.Decision.GIVE_UP:
                self._note("not replaced", f"{member.name} is not replaced: {verdict.why}")
            case relaunch.Decision.FAIL_JOB:
                self._fail(f"{text} ({verdict.why})", now)

    def _note(self, event: str, text: str, is_warning: bool = False, **fields: Any) -> None:
        self._actions.append(Note(event, text, fields, is_warning))

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "course": self.course.snapshot(),
            "ledger": self.ledger.snapshot(),
            "members": self.members.snapshot(),
            "evaluations": self.evaluations.snapshot(),
            "checkpoints": self.checkpoints.snapshot(),
            "meter": self.meter.snapshot(),
            "places": self.places.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self.course.restore(snapshot["course"])
        self.ledger.restore(snapshot["ledger"])
        self.members.restore(snapshot["members"])
        self.evaluations.restore(snapshot["evaluations"])
        self.checkpoints.restore(snapshot["checkpoints"])
        self.meter.restore(snapshot["meter"])
        self.places.restore(snapshot["places"])
