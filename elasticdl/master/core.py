"""The job as one state machine: events and the time go in, answers and actions come out.

Nothing here reads a clock, a socket or a file. `elasticdl.master.durable` writes down the facts
that an event gave rise to, before its answer and its actions leave; so a master that was killed
goes on from its journal as if nothing had happened.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.job import (
    EpochLedger,
    Finished,
    Lease,
    Outcome,
    Progress,
    Role,
    Strategy,
    Task,
    TaskKind,
    TaskReport,
    Wait,
)
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master import relaunch
from elasticdl.master.actions import (
    Action,
    AdoptProcess,
    AskAudit,
    DeleteCheckpoints,
    Note,
    StartProcess,
    StopProcess,
    WriteCheckpoint,
)
from elasticdl.master.audit import Replicas, audit
from elasticdl.master.checkpoints import Checkpoints
from elasticdl.master.evaluation import Evaluations
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.membership import Member, Membership
from elasticdl.master.phases import ENDED, ORDER, WITH_WORKERS, Phase
from elasticdl.master.progress import Meter
from elasticdl.master.tasks import JobTasks

_WAIT_SECONDS = 0.1
_WAIT_SECONDS_PER_WORKER = 0.002  # so that a thousand waiting workers do not drown the master
_MESSAGES_SHOWN = 3
_LAST_WORDS_KEPT = 100


class JobCore:
    """Decides. Every method that takes `now` is an event; all others are questions.

    `now` is the time in seconds since the job began; it never goes back. After each event
    somebody takes the facts (`journal.take`) and the actions (`take_actions`), in this order.
    """

    def __init__(self, config: JobConfig, tasks: JobTasks) -> None:
        self.config = config
        self.tasks = tasks
        self.journal = Journal()
        training, checkpoint = config.training, config.checkpoint
        self.ledger = Ledger(
            tasks,
            self.journal,
            seed=training.seed,
            shuffle=training.shuffle_tasks,
            max_retries=training.max_task_retries,
        )
        self.members = Membership(self.journal, config.cluster.heartbeat_timeout_seconds)
        self.evaluations = Evaluations(
            self.journal, len(tasks.validation), config.evaluation.evaluation_steps
        )
        self.checkpoints = Checkpoints(self.journal, checkpoint.checkpoint_steps)
        self.meter = Meter(self.journal)
        self.phase = Phase.PENDING
        self.training_began: float | None = None  # the first lease, of whatever kind
        self.training_ended: float | None = None
        self.ended_seconds = 0.0
        self._failures = 0  # of processes
        self._last_words: list[str] = []  # of processes that failed
        self._problems: list[str] = []  # what will fail the job at its end
        self.message = ""
        self.ledger_lines: tuple[EpochLedger, ...] = ()
        self._last_checkpoint_waits = False  # for the one that is being written
        self._actions: list[Action] = []
        self.journal.handle("began", self._apply_began)
        self.journal.handle("phase", self._apply_phase)
        self.journal.handle("ended", self._apply_ended)
        self.journal.handle("failure", self._apply_failure)
        self.journal.handle("problem", self._apply_problem)
        self.journal.handle("audit", self._apply_audit)

    @property
    def num_ps(self) -> int:
        """How many ps replicas the job has."""
        if self.config.training.distribution_strategy is not Strategy.PARAMETER_SERVER:
            return 0
        # An exported model is whole in each worker.
        return 0 if self.config.checkpoint.saved_model else self.config.cluster.num_ps_pods

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
        if self.phase is Phase.CHECKPOINTING:
            self._write_checkpoint()
        elif self.phase is Phase.AUDITING:
            self._actions.append(AskAudit())
        self._advance(now)

    def tick(self, now: float) -> None:
        """Look for processes that have fallen silent; call it now and then."""
        for member in self.members.silent(now):
            handle = ProcessHandle(member.role, member.index, member.handle)
            words = f"nothing was heard of it for {now - member.last_heard:.0f} s"
            self._lose(member, Exited(handle, ExitReason.UNKNOWN, None), words, now)
            if handle.ref and not member.has_exited:
                self._actions.append(StopProcess(handle))
        self._advance(now)

    def stop(self, reason: str, now: float) -> None:
        """Cancel the job."""
        if not self.has_ended:
            self._fail(f"stopped: {reason}", now)

    @property
    def has_ended(self) -> bool:
        """Whether the job has finished or failed."""
        return self.phase in ENDED

    # --- workers and ps replicas -----------------------------------------------------------------

    def register_worker(self, worker_id: int, session: str, pid: int, now: float) -> None:
        """A worker announces itself. A new process at an old index takes nothing over."""
        member = self.members.find(Role.WORKER, worker_id)
        if member is not None and member.is_alive and member.session != session:
            self._take_back(member)
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
        self._advance(now)

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
        if self.phase not in WITH_WORKERS:
            return Finished()
        again = self.ledger.lease_of_request(worker_id, request)
        if again is not None:
            return self._with_states(Lease(self.tasks.task(again[0]), again[1]))
        if member.is_stopping:
            return Finished()
        if self.phase is Phase.PENDING or self.ledger.next_id() is None:
            return self._wait()
        if self.training_began is None:
            self.journal.record("began", now)
        return self._with_states(self.ledger.lease(worker_id, request))

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
            worker_id, task.id, report.lease, report.outcome, report.message
        )
        self._settle(task, report, settled, now)
        self._advance(now)
        return True

    def ps_addresses(self) -> list[str] | None:
        """Return the address of each ps replica, by index; None until all have registered."""
        members = [self.members.find(Role.PS, index) for index in range(self.num_ps)]
        addresses = [m.address for m in members if m is not None and m.is_alive]
        return addresses if len(addresses) == self.num_ps else None

    def set_num_workers(self, num_workers: int, now: float) -> None:
        """Go on with so many workers.

        Workers above the number finish what they hold and get no more; they are the youngest.

        Raises:
            ElasticdlError: The number is not positive, or the job needs no workers any more.
        """
        if num_workers < 1:
            raise ElasticdlError(f"expected at least one worker, found {num_workers}")
        if self.phase not in WITH_WORKERS:
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
        deleted = self.checkpoints.written(version, self.config.checkpoint.keep_checkpoint_max)
        self._note("checkpoint", f"checkpoint of version {version} is written", version=version)
        if deleted:
            self._actions.append(DeleteCheckpoints(tuple(deleted)))
        if not self.has_ended:
            self.message = ""
            self._after_checkpoint(now)

    def checkpoint_failed(self, version: int, message: str, now: float) -> None:
        """A checkpoint could not be written. The last one of a job must be there."""
        self.checkpoints.failed()
        text = f"checkpoint of version {version}: {message}"
        self._note("checkpoint failed", text, is_warning=True, version=version)
        if self.has_ended:
            return
        self.message = text
        if self.phase is Phase.CHECKPOINTING and not self._last_checkpoint_waits:
            self.journal.record("problem", self.message)
        self._after_checkpoint(now)

    def audited(self, replicas: Replicas, now: float) -> None:
        """The replicas have said what they have applied."""
        if self.phase is not Phase.AUDITING:
            return
        found = audit(self.tasks, self.config.training.minibatch_size, replicas, self.meter.skipped)
        lines = [
            [line.epoch, line.records, line.trained_once, line.repeated, line.lost]
            for line in found.ledger
        ]
        self.journal.record("audit", lines, found.note)
        if found.problem:
            self.journal.record("problem", f"ledger: {found.problem}")
        self._enter(self._phase_after(Phase.AUDITING), now)

    def audit_failed(self, message: str, now: float) -> None:
        """The replicas could not be asked, so nothing is proved."""
        if self.phase is Phase.AUDITING:
            self._fail(f"the ledger could not be proved: {message}", now)

    # --- phases ----------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Go on to the next phase, if this one has nothing left; start what is due."""
        if self.phase is Phase.TRAINING:
            self._start_what_is_due()
        if self._is_over(self.phase):
            self._enter(self._phase_after(self.phase), now)

    def _is_over(self, phase: Phase) -> bool:
        match phase:
            case Phase.PENDING:
                return self.ps_addresses() is not None and self.members.num_alive(Role.WORKER) > 0
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
                return command == "train" and checkpoint.output is not None and is_sound
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
        self.journal.record("phase", str(phase), now)
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
            case Phase.CHECKPOINTING if self.checkpoints.is_writing:
                self._last_checkpoint_waits = True
            case Phase.CHECKPOINTING:
                self._write_checkpoint()
            case Phase.AUDITING:
                self._actions.append(AskAudit())
        self._advance(now)

    def _start_what_is_due(self) -> None:
        if self.ledger.is_trained:
            return  # the last evaluation and the last checkpoint come by themselves
        version = self.meter.model_version
        if self.evaluations.is_due(version):
            self._start_evaluation()
        if self.config.checkpoint.checkpoint_dir is not None and self.checkpoints.is_due(version):
            self._write_checkpoint()

    def _start_evaluation(self) -> None:
        evaluation_id = self.evaluations.start(self.meter.model_version)
        self.ledger.queue(self.tasks.evaluation_ids(evaluation_id))

    def _write_checkpoint(self) -> None:
        version = self.meter.model_version
        self.checkpoints.begin(version)
        self._actions.append(WriteCheckpoint(version))

    def _after_checkpoint(self, now: float) -> None:
        if self.phase is not Phase.CHECKPOINTING:
            self._advance(now)
        elif self._last_checkpoint_waits:
            self._last_checkpoint_waits = False
            self._write_checkpoint()
        else:
            self._enter(self._phase_after(Phase.CHECKPOINTING), now)

    def _finish(self, now: float) -> None:
        shortcomings = self.shortcomings()
        if shortcomings:
            self._fail("; ".join(shortcomings), now)
        else:
            self.journal.record("ended", str(Phase.FINISHED), self.message, now)
            self._note("ended", "the job is finished", phase=str(Phase.FINISHED))

    def _fail(self, message: str, now: float) -> None:
        self.journal.record("ended", str(Phase.FAILED), message, now)
        self._note("ended", f"the job failed: {message}", is_warning=True, phase=str(Phase.FAILED))

    def shortcomings(self) -> list[str]:
        """Say what the job has not done, and will fail for."""
        found = list(self._problems)
        messages = list(self.ledger.quarantined.values())
        if messages:
            tries = self.config.training.max_task_retries + 1
            shown = "; ".join(messages[:_MESSAGES_SHOWN])
            more = len(messages) - _MESSAGES_SHOWN
            rest = f"; and {more} more" if more > 0 else ""
            found.append(
                f"{len(messages)} tasks failed {tries} times each and were set aside: {shown}{rest}"
            )
        return found

    # --- tasks -----------------------------------------------------------------------------------

    def _wait(self) -> Wait:
        num_workers = self.members.num_alive(Role.WORKER)
        return Wait(max(_WAIT_SECONDS, _WAIT_SECONDS_PER_WORKER * num_workers))

    def _with_states(self, lease: Lease) -> Lease:
        if lease.task.kind is not TaskKind.METRICS:
            return lease
        return replace(lease, metric_states=self.evaluations.states)

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
            self._fail(report.message, now)
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

    def _take_back(self, member: Member) -> None:
        if member.role is Role.WORKER:
            task_ids = self.ledger.worker_lost(member.index)
            self.meter.lost(member.index)
            if task_ids:
                text = f"{len(task_ids)} tasks of {member.name} go to others"
                self._note("requeued", text, process=member.name, tasks=task_ids)

    def _lose(self, member: Member, exited: Exited, last_words: str, now: float) -> None:
        """A process is lost: take back what it held, and decide what to do about it."""
        how = relaunch.describe(exited.reason, exited.code)
        text = f"{member.name} {how}" + (f": {last_words}" if last_words else "")
        was_ready = bool(member.session)
        self.members.lose(member, how)
        self._take_back(member)
        if self.has_ended:
            return
        is_expected = member.is_stopping or (
            member.role is Role.WORKER and self.phase not in WITH_WORKERS
        )
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
            failures=self._failures,
            max_relaunches=self.config.cluster.max_relaunches,
            job_tasks_done=self.ledger.num_done,
            same_message_before=last_words in self._last_words,
            others_present=sum(not m.is_stopping for m in self.members.present(member.role)),
        )

    def _carry_out(self, verdict: relaunch.Verdict, member: Member, text: str, now: float) -> None:
        if verdict.is_failure:
            self.journal.record("failure")
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

    # --- facts -----------------------------------------------------------------------------------

    def _apply_phase(self, phase: str, now: float) -> None:
        if self.training_began is not None and self.training_ended is None:
            self.training_ended = now
        self.phase = Phase(phase)

    def _apply_began(self, now: float) -> None:
        self.training_began = now

    def _apply_ended(self, phase: str, message: str, now: float) -> None:
        self.phase = Phase(phase)
        self.message = message
        self.ended_seconds = now
        if self.training_ended is None:
            self.training_ended = now

    def _apply_failure(self) -> None:
        self._failures += 1

    def _apply_problem(self, message: str) -> None:
        self._problems.append(message)

    def _apply_audit(self, lines: list[list[int]], note: str) -> None:
        self.ledger_lines = tuple(EpochLedger(*line) for line in lines)
        self.message = note

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "ledger": self.ledger.snapshot(),
            "members": self.members.snapshot(),
            "evaluations": self.evaluations.snapshot(),
            "checkpoints": self.checkpoints.snapshot(),
            "meter": self.meter.snapshot(),
            "phase": str(self.phase),
            "times": [self.training_began, self.training_ended, self.ended_seconds],
            "failures": self._failures,
            "problems": list(self._problems),
            "message": self.message,
            "audit": [
                [line.epoch, line.records, line.trained_once, line.repeated, line.lost]
                for line in self.ledger_lines
            ],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self.ledger.restore(snapshot["ledger"])
        self.members.restore(snapshot["members"])
        self.evaluations.restore(snapshot["evaluations"])
        self.checkpoints.restore(snapshot["checkpoints"])
        self.meter.restore(snapshot["meter"])
        self.phase = Phase(snapshot["phase"])
        self.training_began, self.training_ended, self.ended_seconds = snapshot["times"]
        self._failures = snapshot["failures"]
        self._problems = list(snapshot["problems"])
        self.message = snapshot["message"]
        self.ledger_lines = tuple(EpochLedger(*line) for line in snapshot["audit"])
