"""The job as one state machine: events and the time go in, answers and actions come out.

Nothing here reads a clock, a socket or a file. `elasticdl.master.durable` writes the facts of an
event to the journal before the answer and the actions leave. So the next master goes on from the
journal as if nothing had happened.

The core has what every job needs. Features have what only some jobs need. The core calls the
features in turn, and knows none of them by name (`elasticdl.master.features.base`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from elasticdl.config import JobConfig
from elasticdl.data.sources import is_stream
from elasticdl.data.updates import UpdateOrder
from elasticdl.errors import ElasticdlError
from elasticdl.job import (
    Attendance,
    Finished,
    Lease,
    Outcome,
    Progress,
    Role,
    Task,
    TaskKind,
    TaskReport,
    Usage,
    Wait,
)
from elasticdl.launchers.base import Exited
from elasticdl.master.actions import Action, Note
from elasticdl.master.counters import Counters
from elasticdl.master.ending import JobEnding
from elasticdl.master.evaluation import Evaluations
from elasticdl.master.features import features_of
from elasticdl.master.features.base import Features, JobFeature, JobParts
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.leasing import Leasing
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.membership import Member, Membership
from elasticdl.master.missing_records import Missing
from elasticdl.master.moves.messages import MoveFailed, MoveTold
from elasticdl.master.parameters.answers import (
    Answer,
    Audited,
    RendezvousAnswer,
)
from elasticdl.master.parameters.pair import JobParameters
from elasticdl.master.phase_plan import PhasePlan
from elasticdl.master.phases import Phase
from elasticdl.master.processes import Leaving, Processes, ProcessLoss
from elasticdl.master.progress import Meter
from elasticdl.master.results import TaskResults
from elasticdl.master.tasks import JobTasks, draws_order
from elasticdl.observe import kinds
from elasticdl.observe.kind import Kind
from elasticdl.state.base import Snapshot

_MADE_ANEW = frozenset({TaskKind.EVALUATION, TaskKind.METRICS, TaskKind.EXPORT})  # by their phases
_LATE_SECONDS = 5.0  # of which a word is said


class JobCore:
    """Decides for the whole job. Most methods that take `now` are events; the others are questions.

    `now` is the time in seconds since the job began; it never goes back. After each event
    somebody takes the facts (`journal.take`) and the actions (`take_actions`), in this order.

    Decisions depend on facts of the journal. Heartbeats are the exception: the times and the
    progress that they tell are not journalled, because a living process tells them again.
    """

    def __init__(
        self,
        config: JobConfig,
        tasks: JobTasks,
        make_features: Callable[[JobParts], Sequence[JobFeature]] = features_of,
    ) -> None:
        self.config = config
        self.tasks = tasks
        self._actions: list[Action] = []
        self._next_tick = math.inf  # not journalled: a master that begins is not late
        self.journal = journal = Journal()
        self.features = features = Features()
        self.history = history = JobHistory(journal)
        self.ledger = ledger = Ledger(
            tasks,
            journal,
            seed=config.training.seed,
            shuffle=draws_order(config) and not is_stream(config),
            max_retries=config.training.max_task_retries,
            minibatch_size=config.training.minibatch_size,
            updates=UpdateOrder.of(config.training, tasks.per_epoch),
            rules=features,
        )
        self.members = members = Membership(
            journal,
            config.cluster.heartbeat_timeout_seconds,
            self._forget_worker,
            config.cluster.heartbeat_seconds,
        )
        every, num_tasks = config.evaluation.evaluation_steps, len(tasks.validation)
        self.evaluations = evaluations = Evaluations(journal, num_tasks, every)
        self.meter = meter = Meter(journal, tasks.per_epoch, tasks.training.num_records)
        self.counters = Counters(journal)
        journal.handle("reopened", self._apply_reopened)
        self.results = TaskResults(config.training, ledger, self._act)
        self.parameters = parameters = JobParameters(
            config,
            tasks,
            journal,
            history,
            members,
            ledger,
            meter,
            lambda: features.event_seconds,
            self._act,
        )
        self.plan = plan = PhasePlan(
            config, history, ledger, members, evaluations, parameters, features.holds
        )
        self.processes = processes = Processes(
            config,
            journal,
            members,
            ledger,
            meter,
            history,
            parameters,
            features.is_looked_at_by,
            self._act,
        )
        self.ending = ending = JobEnding(
            config, history, ledger, members, parameters, plan, features.final_words, self._act
        )
        parts = JobParts(
            config,
            tasks,
            journal,
            history,
            ledger,
            members,
            evaluations,
            meter,
            parameters,
            plan,
            processes,
            self._act,
            ending.fail,
            ending.fail_after_checkpoint,
            self._advance,
        )
        features.add(make_features(parts))
        self.leasing = Leasing(parts, features)

    @property
    def phase(self) -> Phase:
        """The phase that the job is in."""
        return self.history.phase

    @property
    def message(self) -> str:
        """The message that users see about the job now, or about its end."""
        return self.history.message

    def take_actions(self) -> list[Action]:
        """Return the actions that events have asked for since the last call."""
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
        # No process could speak while there was no master: nobody was silent.
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
        for feature in self.features:
            feature.resumed(now)
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
        if not self.has_ended:
            self.ending.stop(reason, now)
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

        `interval_seconds` is what it keeps now; 0: as the job is set up. A ps replica that has
        lost its place gets an `ElasticdlError`.
        """
        member = self.members.heard(role, index, session, now)
        if member is None:
            return self.members.tell_other(role, index, session)
        member.usage = usage or member.usage
        if progress is not None:
            for feature in self.features.overriding(JobFeature.heard):
                feature.heard(member, progress)
            self.meter.heard(index, progress, now)
            self._advance(now)
        return self.members.tell_interval(member, interval_seconds)

    def leave(self, role: Role, index: int, session: str, now: float) -> Leaving:
        """A process was asked to end, by others; it may say so again."""
        member = self.members.heard(role, index, session, now)
        if member is None or self.has_ended:
            return Leaving(is_awaited=False, hands_over=False)
        self.processes.leaves(member, now)
        hands_over = self.parameters.wants_hand_over(member)
        return Leaving(role is Role.WORKER or hands_over, hands_over)

    def process_exited(self, exited: Exited, now: float) -> None:
        """A process has ended, or could not be started (its handle has no `ref` then)."""
        member = self.processes.member_of(exited.handle)
        if member is None:
            return  # known already, or the one before this member
        self.members.exited(member)
        if not member.gone:
            self._carry_out(member, self.processes.lose(member, exited, now), now)
            self._advance(now)

    def attend(
        self, worker_id: int, session: str, said: Attendance, now: float
    ) -> RendezvousAnswer:
        """A worker comes to the rendezvous of an all-reduce job."""
        member = self.members.heard(Role.WORKER, worker_id, session, now)
        if member is None or self.has_ended:
            return Finished()
        seating = self.parameters.worlds_with(member).attend(member, said, now)
        self._advance(now)
        return seating

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

    def answered(self, answer: Answer, now: float) -> None:
        """The holders of the parameters have answered a request, or could not."""
        if isinstance(answer, Audited) and not self.has_ended:
            self.counters.of_replicas(answer.tally)
        verdict = self.parameters.answered(answer, now)
        if self.has_ended:
            return
        if isinstance(answer, MoveTold | MoveFailed):
            # The number of places may be another one now: replicas are ended or planned.
            self.processes.fill_places(now)
        if verdict.lost is not None:
            self._give_up(verdict.lost, verdict.words, now)
        if verdict.failure:
            self.ending.fail(verdict.failure, now)
        elif not verdict.is_phase_over:
            self._advance(now)
        elif not self.history.failing:
            self._enter(self.plan.after(self.phase), now)
        elif not self.features.spares(now):
            self.ending.fail(self.history.failing, now)

    # --- tasks -----------------------------------------------------------------------------------

    def lease(
        self, worker_id: int, session: str, request: int, now: float, goes_on: bool = False
    ) -> Lease | Wait | Finished:
        """A worker asks for a task; `request` is the same for all attempts at one call.

        Args:
            worker_id: The worker that asks.
            session: The session of that worker.
            request: The worker's number of the call.
            now: The time.
            goes_on: An earlier attempt was to wait, and its answer was held back: see `awaits`.

        Raises:
            ElasticdlError: No worker of that number and session has registered.
        """
        return self.leasing.lease(worker_id, session, request, now, goes_on)

    def report(self, worker_id: int, session: str, report: TaskReport, now: float) -> bool:
        """A worker ends a lease; return whether that was still its lease."""
        member = self.members.heard(Role.WORKER, worker_id, session, now)
        if self.has_ended:
            return False
        if report.task_id < 0:  # of no task of the ledger
            is_new = member is not None and self.features.errand_ended(report)
            self._advance(now)
            return is_new
        is_its = self.ledger.is_current(worker_id, report.task_id, report.lease)
        if member is None or not is_its:
            self.counters.refused_report()
            return False
        task = self.tasks.task(report.task_id)
        report = self.features.checked(task, report)
        was_done = self.ledger.is_replayed(task.id)  # asked before the report ends the replay
        settled = self.ledger.report(
            worker_id,
            task.id,
            report.lease,
            self.features.outcome(task, report, now),
            report.message,
            report.end_index,
            report.num_examples,
            Missing(report.num_missing, report.num_unreadable, report.num_late, report.num_gone),
            is_last_try=report.is_certain or (report.may_pass and report.outcome is Outcome.FAILED),
        )
        if task.kind is TaskKind.TRAINING:
            self.meter.reported(worker_id, report, now, was_done, settled is Settled.DONE)
            if settled is Settled.DONE:
                self.counters.finished(report)
        self._settle(task, report, settled, now)
        self._advance(now)
        return True

    def _settle(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        for feature in self.features.overriding(JobFeature.ended):
            feature.ended(task, report, settled, now)
        failure = self.results.settle(task, report, settled)
        failure = failure or self.features.settled(task, report, settled)
        if failure is None:
            return
        if failure.after_checkpoint:
            self.ending.fail_after_checkpoint(failure.words, now)
        else:
            self.ending.fail(failure.words, now)

    def _give_up(self, member: Member, words: str, now: float) -> None:
        self._carry_out(member, self.processes.give_up(member, words, now), now)

    def _carry_out(self, member: Member, loss: ProcessLoss, now: float) -> None:
        """Carry out the consequences that the loss of a process has for tasks and for the job."""
        if member.role is Role.WORKER:
            for feature in self.features:
                feature.worker_lost(member.index)
        if loss.task_id is not None and not self.has_ended:
            task = self.tasks.task(loss.task_id)
            report = TaskReport(task.id, 0, Outcome.FAILED, loss.message)
            self._settle(task, report, loss.settled, now)
        # If no worker is left, ps replicas may still have the parameters, which are worth saving.
        if loss.failure and member.role is Role.WORKER and self.ledger.num_done:
            self.ending.fail_after_checkpoint(loss.failure, now)
        elif loss.failure and not self.has_ended:
            self.ending.fail(loss.failure, now)

    # --- phases ----------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Go on to the next phase, if this one has nothing left; start what is due."""
        if self.has_ended:
            return
        for feature in self.features.overriding(JobFeature.advance):
            feature.advance(now)
        self.parameters.ask_what_is_due(now)
        # Features come first: they may queue tasks that belong to this phase.
        is_over = not self.history.is_stopping and self.plan.is_over(self.phase)
        for feature in self.features.overriding(JobFeature.passing):
            feature.passing(is_over and self.phase is Phase.TRAINING)
        if is_over:
            self._enter(self.plan.after(self.phase), now)

    def _enter(self, phase: Phase, now: float) -> None:
        if phase is Phase.FINISHED:
            self.ending.finish(now)
            return
        self.history.enter(phase, now)
        self._note(kinds.PhaseBegan(str(phase)), f"the job is {phase}")
        match phase:
            case Phase.TRAINING:
                self.meter.begin(now)
            case Phase.PREDICTING:
                self.ledger.queue(self.tasks.prediction_ids)
            case Phase.EXPORTING:
                self.ledger.queue(range(self.tasks.export_id, self.tasks.export_id + 1))
        for feature in self.features:
            feature.entered(phase, now)
        self._advance(now)

    def _apply_reopened(self) -> None:
        self.history.reopened()
        self.ledger.reopened(
            lambda task_id: self.tasks.task(task_id).kind in _MADE_ANEW,
            tries_again=not self.history.model_change,  # the other model is to try what failed
        )
        self.evaluations.reopened()
        self.parameters.schedule.reopened()
        for feature in self.features:
            feature.reopened()

    def _forget_worker(self, worker_id: int) -> None:
        """Keep only the sums of a worker that has long been dead; a part of a fact."""
        self.ledger.forget_worker(worker_id)
        self.meter.forget_worker(worker_id)

    def _act(self, action: Action) -> None:
        self._actions.append(action)

    def _note(self, kind: Kind, text: str, is_warning: bool = False) -> None:
        self._act(Note(kind, text, is_warning))

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "history": self.history.snapshot(),
            "ledger": self.ledger.snapshot(),
            "members": self.members.snapshot(),
            "withheld": self.processes.room.num_withheld,
            "evaluations": self.evaluations.snapshot(),
            "meter": self.meter.snapshot(),
            "holder": self.parameters.snapshot(),
            "counters": self.counters.snapshot(),
            **self.features.snapshot(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.history.restore(snapshot["history"])
        for feature in self.features:
            feature.restore(snapshot)
        self.ledger.restore(snapshot["ledger"])
        self.members.restore(snapshot["members"])
        self.processes.room.num_withheld = snapshot.get("withheld", 0)
        self.evaluations.restore(snapshot["evaluations"])
        self.meter.restore(snapshot["meter"])
        self.parameters.restore(snapshot["holder"])
        self.counters.restore(snapshot["counters"])
