"""The processes of the job: planned, taken up, lost and replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.job import Position, Role
from elasticdl.launchers.base import Exited, ExitReason, PendingProcess, ProcessHandle, Started
from elasticdl.master import relaunch
from elasticdl.master.actions import Action, AdoptProcess, Note, StartProcess, StopProcess
from elasticdl.master.history import JobHistory
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.membership import Member, Membership
from elasticdl.master.parameters.pair import JobParameters
from elasticdl.master.phases import CLOSING
from elasticdl.master.progress import Meter
from elasticdl.master.room import Room
from elasticdl.observe import kinds
from elasticdl.settings.cluster import MOST_WORKERS


@dataclass(frozen=True, slots=True)
class ProcessLoss:
    """The consequences of the loss of a process.

    failure: the reason why the job fails because of the loss; "" if the job goes on.
    task_id: the task of which the process died, if that is certain. Its lease is `settled`, and
        `message` says why.
    """

    failure: str = ""
    task_id: int | None = None
    settled: Settled = Settled.STALE
    message: str = ""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The last duties of a process that was asked to end.

    is_awaited: It gives back the tasks that it holds, or hands over. hands_over: It writes the
    parameters that it holds.
    """

    is_awaited: bool
    hands_over: bool


class Processes:
    """Decides which processes the job has. Its state is that of the parts it is given.

    It also keeps the positions that workers announced: in a suspect task, or where they are stuck.
    The positions are not journalled. If a worker dies while there is no master, nobody learns the
    cause. A worker that dies soon after held only its suspect task, so that cause is still known.
    """

    def __init__(
        self,
        config: JobConfig,
        journal: Journal,
        members: Membership,
        ledger: Ledger,
        meter: Meter,
        history: JobHistory,
        parameters: JobParameters,
        looks_at_data: Callable[[int], bool],
        act: Callable[[Action], None],
    ) -> None:
        self._settings = config.cluster
        self._num_ps = config.num_ps
        self._others = config.other_processes
        self._members = members
        self.room = Room(journal, members, keeps_one=config.has_worlds)
        self._ledger = ledger
        self._meter = meter
        self._history = history
        self._parameters = parameters
        self._looks_at_data = looks_at_data  # whether a worker does, before its first task
        self._act = act
        self._positions: dict[int, Position] = {}
        self._interval_seconds = config.cluster.heartbeat_seconds  # of heartbeats, as was told last

    @property
    def are_workers_needed(self) -> bool:
        """Whether there may still be tasks; updates that are lost at the end bring tasks back."""
        is_open = self._history.phase not in CLOSING or self._parameters.can_lose_updates
        return is_open and not self._history.has_ended

    # --- events ----------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Plan the processes of a new job."""
        for index in range(self._num_ps):
            self._plan(Role.PS, now, index)
        self._fill_others(now)
        self._plan_workers(self._settings.num_workers, now)

    def resume(self) -> None:
        """Watch what an earlier master has started, and start what it had only planned.

        The earlier master may have died before it ended what it had given up. Such a process is
        asked to end again: it would go on for ever, and hold what waits for it.
        """
        for member in list(self._members):
            if member.before and member.before != member.handle:
                self._adopt(ProcessHandle(member.role, member.index, member.before), True)
            handle = ProcessHandle(member.role, member.index, member.handle)
            if member.handle and not member.has_exited:
                is_to_end = bool(member.gone) or (member.is_stopping and member.role is Role.PS)
                self._adopt(handle, is_to_end)
            elif not (member.handle or member.session or member.gone or self._history.has_ended):
                self._act(StartProcess(member.role, member.index))

    def _adopt(self, handle: ProcessHandle, is_to_end: bool) -> None:
        """Watch a process of an earlier master; a launcher ends only those that it watches."""
        self._act(AdoptProcess(handle))
        if is_to_end:
            self._act(StopProcess(handle))

    def complete(self, now: float) -> None:
        """Plan the processes that a reopened job lacks, compared with its begin."""
        self.fill_places(now)
        self._fill_others(now)
        self.room.withhold(0)
        present = [m for m in self._members.present(Role.WORKER) if not m.is_departing]
        self._plan_workers(self._settings.num_workers - len(present), now)

    def set_num_workers(self, num_workers: int, now: float) -> None:
        """Go on with this number of workers.

        Workers above the number finish the tasks that they hold, and get no more. Pending workers
        are chosen first, because they have not started. The youngest workers come next.

        Raises:
            ElasticdlError: The number is out of range, or the job needs no workers any more.
        """
        if num_workers < 1:
            raise ElasticdlError(f"expected at least one worker, found {num_workers}")
        if num_workers > MOST_WORKERS:
            raise ElasticdlError(
                f"expected {MOST_WORKERS:,} workers at most, found {num_workers:,}"
            )
        if not self.are_workers_needed:
            phase = self._history.phase
            raise ElasticdlError(f"the job is {phase}, it needs no workers any more")
        present = [m for m in self._members.present(Role.WORKER) if not m.is_departing]
        # The list is cut after `num_workers`: pending workers and high indexes come last.
        present.sort(key=lambda member: (bool(member.pending), member.index))
        num_more = max(0, num_workers - len(present))
        if self.room.num_withheld:
            # New workers would take the room that replicas wait for.
            self.room.withhold(num_more)
        else:
            self._plan_workers(num_more, now)
        for member in present[num_workers:]:
            self._members.stopping(member)
            text = f"{member.name} is to leave"
            self._act(Note(kinds.ProcessStopping(member.name), text))
            if member.pending or (member.handle and not member.session):
                # It holds nothing yet. One without a handle ends when it has registered.
                self._act(StopProcess(ProcessHandle(member.role, member.index, member.handle)))

    def end(self, member: Member, why: str) -> None:
        """Have a worker end, whatever it is at; no other takes its place."""
        self._members.stopping(member)
        self._act(Note(kinds.ProcessStopping(member.name), f"{member.name} is to end: {why}"))
        if member.handle:
            self._act(StopProcess(ProcessHandle(member.role, member.index, member.handle)))

    def make_room(self, now: float) -> None:
        """End workers whose places the replicas need; plan them again when these have places."""
        if not self.are_workers_needed:
            return
        if not self._can_train:
            for member in self.room.give_way(now):
                names = ", ".join(each.name for each in self.room.waiting())
                self.end(member, f"its place is for {names}, without which nobody trains")
        if self.room.num_withheld and self.room.is_enough:
            number = self.room.num_withheld
            self.room.withhold(0)
            self._plan_workers(number, now)

    def fill_places(self, now: float) -> None:
        """Plan the ps replicas that are not there, and end those that have no part of the model."""
        if self._parameters.replicas is None:
            return
        moves = self._parameters.replicas.moves
        for index in range(moves.num_places):
            member = self._members.find(Role.PS, index)
            if member is None or member.gone:
                self._plan(Role.PS, now, index)
        self.end_superfluous()

    def end_superfluous(self) -> None:
        """End the ps replicas that have no part of the model, and will have none."""
        replicas = self._parameters.replicas
        for member in [] if replicas is None else replicas.moves.superfluous():
            self._members.stopping(member)
            text = f"{member.name} is to leave"
            self._act(Note(kinds.ProcessStopping(member.name), text))
            self._act(StopProcess(ProcessHandle(member.role, member.index, member.handle)))

    def replaced(self, member: Member, now: float) -> None:
        """Another process registers at the index of one that was not known to be lost."""
        self._take_back(member, now)

    def started(self, handle: ProcessHandle, now: float) -> None:
        """The launcher has taken a planned process on."""
        self._members.started(handle.role, handle.index, handle.ref, now)
        if handle.role is Role.PS:
            self.end_superfluous()  # a move that it was for may have been called off

    def waits(self, said: PendingProcess, now: float) -> None:
        """A process waits to be started."""
        member = self.member_of(said.handle)
        if member is None:
            return
        if member.pending != said.why:
            text = f"{member.name} is pending: {said.why}"
            self._act(Note(kinds.ProcessPending(member.name, said.why), text))
        self._members.pending(member, said.why, said.lacks_room, now)

    def runs(self, started: Started, now: float) -> None:
        """A process runs."""
        member = self.member_of(started.handle)
        if member is None:
            return
        if member.pending:
            self._act(Note(kinds.ProcessRuns(member.name), f"{member.name} runs"))
        self._members.runs(member, now)

    def leaves(self, member: Member, now: float) -> None:
        """A process was asked to end by others. Another one is started in place of a worker."""
        if member.is_leaving:
            return
        self._members.leaving(member)
        self._act(Note(kinds.ProcessLeaving(member.name), f"{member.name} is asked to end"))
        # A new worker starts while this one ends, so that the job loses less time. The successor
        # of a ps replica must wait, since the replica still has its place.
        if member.role is Role.WORKER and self.are_workers_needed and not member.is_stopping:
            self._plan(Role.WORKER, now)

    def announced(self, worker_id: int, session: str, position: Position, now: float) -> None:
        """A worker says where in a task it is."""
        member = self._members.heard(Role.WORKER, worker_id, session, now)
        is_its = self._ledger.is_current(worker_id, position.task_id, position.lease)
        if member is None or not is_its:
            return
        if not position.seconds or position.is_overdue:
            self._positions[member.index] = position
        else:  # the worker is slow, which does not mean that it will die
            there = position.of(self._ledger.task(position.task_id))
            text = f"{member.name} has been at {there} for {position.seconds:.0f} s"
            kind = kinds.Slow(member.name, **asdict(position))
            self._act(Note(kind, text, is_warning=True))

    def lose(
        self,
        member: Member,
        exited: Exited,
        now: float,
        was_silent: bool = False,
    ) -> ProcessLoss:
        """A process is lost: take back what it held, and decide what to do about it.

        Args:
            member: The process.
            exited: The launcher's report of its end.
            now: The time.
            was_silent: It may live, but cannot be reached.
        """
        if member.is_leaving:  # whatever its exit code
            exited = replace(exited, reason=ExitReason.PREEMPTED)
        last_words = exited.last_words
        was_watched = exited.reason is not ExitReason.UNKNOWN or member.is_up or was_silent
        how = relaunch.describe(exited.reason, exited.code)
        is_of_look = self._is_of_look(member, exited)
        doing = " at its look at the data, which no other takes" if is_of_look else ""
        text = f"{member.name} {how}{doing}" + (f": {last_words}" if last_words else "")
        if not was_watched:
            text = f"{member.name} has ended while no master watched"
        # These questions come before `lose`, which makes the member a lost one.
        was_ready = self._parameters.is_ready(member)
        if member.role in self._others:
            was_ready = bool(member.session)  # it registers when workers may ask it
        position = self._announced(member)
        is_of_task = self._is_of_task(member, exited, position, was_silent)
        self._members.lose(member, how)
        loss = ProcessLoss()
        if is_of_task:
            cause = "fell silent" if was_silent else how
            loss = self._blame(member, position, f"{member.name} {cause}")
        self._take_back(member, now, is_of_task and loss.task_id is None, was_silent)
        if self._history.has_ended:
            return loss
        is_needed = member.role is Role.PS or self.are_workers_needed
        is_replaced = member.is_leaving and member.role is Role.WORKER
        is_expected = member.is_stopping or is_replaced or not is_needed
        if is_expected:
            self._act(Note(kinds.ProcessLeft(member.name, str(exited.reason)), text))
            if member.role is Role.PS:
                self.fill_places(now)  # it may be wanted again by now
            return loss
        kind = kinds.ProcessLost(member.name, str(exited.reason))
        self._act(Note(kind, text, is_warning=was_watched))
        done = self._ledger.done_by_worker.get(member.index, 0)
        ended = relaunch.EndedProcess(
            member.role,
            exited.reason,
            exited.code,
            was_ready,
            done,
            is_of_task=is_of_task,
            is_of_look=is_of_look,
            was_watched=was_watched,
        )
        # The words are noted after the verdict, which asks whether another process said the same.
        verdict = relaunch.decide(ended, self._counts(member, last_words))
        self._history.heard_last_words(last_words)
        if is_of_task:
            self._history.worker_died_of_task()
        return replace(loss, failure=self._carry_out(verdict, member, text, now))

    def give_up(self, member: Member, words: str, now: float) -> ProcessLoss:
        """Treat an unreachable process as lost, and end it; return what `lose` returns."""
        handle = ProcessHandle(member.role, member.index, member.handle)
        exited = Exited(handle, ExitReason.UNKNOWN, None, words)
        loss = self.lose(member, exited, now, was_silent=True)
        # A process that is only out of reach would go on and use its place, so it is ended.
        if handle.ref and not member.has_exited:
            self._act(StopProcess(handle))
        return loss

    def tell_interval(self) -> None:
        """Say so when processes are told another interval for their heartbeats."""
        interval = self._members.interval_seconds
        if interval != self._interval_seconds:
            self._interval_seconds = interval
            count = sum(self._members.num_alive(role) for role in Role)
            text = f"{count} processes send a heartbeat each {interval:.3g} s"
            self._act(Note(kinds.HeartbeatInterval(interval, count), text))

    def member_of(self, handle: ProcessHandle) -> Member | None:
        """Return the member of a process; None if the member is another process, or has ended."""
        member = self._members.find(handle.role, handle.index)
        is_it = member is not None and member.is_process(handle.ref) and not member.has_exited
        return member if is_it else None

    # --- decisions -------------------------------------------------------------------------------

    @property
    def _can_train(self) -> bool:
        return self._parameters.is_complete and all(map(self._members.num_alive, self._others))

    def _plan_workers(self, number: int, now: float) -> None:
        for _ in range(number):
            self._plan(Role.WORKER, now)

    def _fill_others(self, now: float) -> None:
        """Plan the processes of packages that are not there."""
        for role, number in self._others.items():
            for index in range(number):
                member = self._members.find(role, index)
                if member is None or member.gone:
                    self._plan(role, now, index)

    def _plan(self, role: Role, now: float, index: int | None = None) -> None:
        member = self._members.plan(role, now, index)
        self._act(StartProcess(role, member.index))

    def _announced(self, member: Member) -> Position | None:
        """Return the position that a lost worker has announced; None if it has not."""
        position = self._positions.get(member.index)
        if position is None or member.role is not Role.WORKER:
            return None
        is_current = self._ledger.is_current(member.index, position.task_id, position.lease)
        return position if is_current else None

    def _is_of_task(
        self, member: Member, exited: Exited, position: Position | None, was_silent: bool
    ) -> bool:
        """Whether a worker may have died of a task that it held.

        Silence may come from a machine that is out of reach. It counts only if the worker has
        announced a position in the user's code. Workers do so in suspects, and when they are stuck.
        """
        if member.role is not Role.WORKER or not self._ledger.held_by(member.index):
            return False
        if member.is_leaving:
            return False  # it was killed because it had not ended in time
        if was_silent:
            return position is not None and position.is_in_model_file
        return relaunch.may_be_of_task(exited.reason, exited.code)

    def _is_of_look(self, member: Member, exited: Exited) -> bool:
        """Whether a worker may have died of a record that it saw before the first task."""
        is_looking = member.role is Role.WORKER and self._looks_at_data(member.index)
        return is_looking and relaunch.may_be_of_task(exited.reason, exited.code)

    def _blame(self, member: Member, position: Position | None, how: str) -> ProcessLoss:
        """End the lease of the task of which a worker died, if the task is certain."""
        held = list(self._ledger.held_by(member.index))
        if position is not None:
            task_id, where = position.task_id, position.of(self._ledger.task(position.task_id))
        elif len(held) == 1:
            (task_id,) = held
            where = str(self._ledger.task(task_id))
        else:
            return ProcessLoss()
        message = f"{how} in {where}"
        settled = self._ledger.blame(task_id, message)
        return ProcessLoss(task_id=task_id, settled=settled, message=message)

    def _take_back(
        self,
        member: Member,
        now: float,
        are_suspects: bool = False,
        was_silent: bool = False,
    ) -> None:
        self._parameters.lost(member, now)
        if member.role is not Role.WORKER:
            return
        self._positions.pop(member.index, None)
        task_ids = self._ledger.worker_lost(member.index, are_suspects, was_silent)
        self._meter.lost(member.index)
        if task_ids:
            text = f"{len(task_ids)} tasks of {member.name} go to others"
            if are_suspects:
                text += ", one at a time: it may have died of one of them"
            self._act(Note(kinds.Requeued(member.name, task_ids), text))

    def _counts(self, member: Member, last_words: str) -> relaunch.Counts:
        return relaunch.Counts(
            failures=self._history.failures,
            max_relaunches=self._settings.max_relaunches,
            job_tasks_done=self._ledger.num_done,
            deaths_of_tasks=self._history.deaths_of_tasks,
            same_message_before=self._history.has_heard(last_words),
            others_present=sum(not m.is_departing for m in self._members.present(member.role)),
        )

    def _carry_out(
        self, verdict: relaunch.RelaunchVerdict, member: Member, text: str, now: float
    ) -> str:
        # A process at such an index is for a move that has not happened yet.
        replicas = self._parameters.replicas
        if replicas and member.role is Role.PS and member.index >= replicas.moves.number:
            if verdict.is_failure and replicas.moves.place_failed():
                self._parameters.stays(text)
            self.fill_places(now)
            return ""  # it had no part of the model so far: the job lacks nothing
        if verdict.is_failure:
            self._history.process_failed()
        match verdict.decision:
            case relaunch.Decision.RELAUNCH:
                # A ps replica's index is its place in the model; a worker's is never used again.
                is_worker = member.role is Role.WORKER
                self._plan(member.role, now, None if is_worker else member.index)
            case relaunch.Decision.GIVE_UP:
                note = f"{member.name} is not replaced: {verdict.why}"
                self._act(Note(kinds.NotReplaced(), note))
            case relaunch.Decision.FAIL_JOB:
                return f"{text} ({verdict.why})"
        return ""
