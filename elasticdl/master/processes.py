"""The processes of the job: planned, taken up, lost and replaced."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.config import ClusterSection
from elasticdl.errors import ElasticdlError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master import relaunch
from elasticdl.master.actions import Action, AdoptProcess, Note, StartProcess, StopProcess
from elasticdl.master.history import JobHistory
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Member, Membership
from elasticdl.master.parameters.holder import Holder
from elasticdl.master.phases import CLOSING
from elasticdl.master.progress import Meter


class Processes:
    """Decides which processes the job has. Its state is that of the parts it is given."""

    def __init__(
        self,
        settings: ClusterSection,
        members: Membership,
        ledger: Ledger,
        meter: Meter,
        history: JobHistory,
        holder: Holder,
        act: Callable[[Action], None],
    ) -> None:
        self._settings = settings
        self._members = members
        self._ledger = ledger
        self._meter = meter
        self._history = history
        self._holder = holder
        self._act = act

    @property
    def are_workers_needed(self) -> bool:
        """Whether there may still be tasks: updates that are lost at the very end make some."""
        is_open = self._history.phase not in CLOSING or self._holder.can_lose_updates
        return is_open and not self._history.has_ended

    # --- events ----------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Plan the processes of a new job."""
        for index in range(self._holder.num_processes):
            self._plan(Role.PS, now, index)
        for _ in range(self._settings.num_workers):
            self._plan(Role.WORKER, now)

    def resume(self) -> None:
        """Watch what an earlier master has started, and start what it had only planned."""
        for member in list(self._members):
            if member.handle and not member.has_exited:
                handle = ProcessHandle(member.role, member.index, member.handle)
                self._act(AdoptProcess(handle))
            elif not (member.handle or member.session or member.gone or self._history.has_ended):
                self._act(StartProcess(member.role, member.index))

    def set_num_workers(self, num_workers: int, now: float) -> None:
        """Go on with so many workers.

        Workers above the number finish what they hold and get no more; they are the youngest.

        Raises:
            ElasticdlError: The number is not positive, or the job needs no workers any more.
        """
        if num_workers < 1:
            raise ElasticdlError(f"expected at least one worker, found {num_workers}")
        if not self.are_workers_needed:
            phase = self._history.phase
            raise ElasticdlError(f"the job is {phase}, it needs no workers any more")
        present = [m for m in self._members.present(Role.WORKER) if not m.is_stopping]
        for _ in range(num_workers - len(present)):
            self._plan(Role.WORKER, now)
        for member in present[num_workers:]:
            self._members.stopping(member)
            text = f"{member.name} is to leave"
            self._act(Note("stopping", text, {"process": member.name}))

    def replaced(self, member: Member, now: float) -> None:
        """Another process registers at the index of one that was not known to be lost."""
        self._take_back(member, now)

    def lose(self, member: Member, exited: Exited, last_words: str, now: float) -> str:
        """A process is lost: take back what it held, and decide what to do about it.

        Returns:
            Why the job fails because of that; "" if it goes on.
        """
        how = relaunch.describe(exited.reason, exited.code)
        text = f"{member.name} {how}" + (f": {last_words}" if last_words else "")
        was_ready = self._holder.is_ready(member)
        self._members.lose(member, how)
        self._take_back(member, now)
        if self._history.has_ended:
            return ""
        is_needed = member.role is Role.PS or self.are_workers_needed
        is_expected = member.is_stopping or not is_needed
        fields = {"process": member.name, "reason": str(exited.reason)}
        if is_expected:
            self._act(Note("left", text, fields))
            return ""
        self._act(Note("lost", text, fields, is_warning=True))
        done = self._ledger.done_by_worker.get(member.index, 0)
        ended = relaunch.Ended(member.role, exited.reason, exited.code, was_ready, done)
        verdict = relaunch.decide(ended, self._counts(member, last_words))
        self._history.heard_last_words(last_words)
        return self._carry_out(verdict, member, text, now)

    def give_up(self, member: Member, words: str, now: float) -> str:
        """Take a process as lost that cannot be reached, and end it; returns as `lose` does."""
        handle = ProcessHandle(member.role, member.index, member.handle)
        failure = self.lose(member, Exited(handle, ExitReason.UNKNOWN, None), words, now)
        if handle.ref and not member.has_exited:
            self._act(StopProcess(handle))
        return failure

    # --- decisions -------------------------------------------------------------------------------

    def _plan(self, role: Role, now: float, index: int | None = None) -> None:
        member = self._members.plan(role, now, index)
        self._act(StartProcess(role, member.index))

    def _take_back(self, member: Member, now: float) -> None:
        self._holder.lost(member, now)
        if member.role is not Role.WORKER:
            return
        task_ids = self._ledger.worker_lost(member.index)
        self._meter.lost(member.index)
        if task_ids:
            text = f"{len(task_ids)} tasks of {member.name} go to others"
            self._act(Note("requeued", text, {"process": member.name, "tasks": task_ids}))

    def _counts(self, member: Member, last_words: str) -> relaunch.Counts:
        return relaunch.Counts(
            failures=self._history.failures,
            max_relaunches=self._settings.max_relaunches,
            job_tasks_done=self._ledger.num_done,
            same_message_before=self._history.has_heard(last_words),
            others_present=sum(not m.is_stopping for m in self._members.present(member.role)),
        )

    def _carry_out(self, verdict: relaunch.Verdict, member: Member, text: str, now: float) -> str:
        if verdict.is_failure:
            self._history.process_failed()
        match verdict.decision:
            case relaunch.Decision.RELAUNCH:
                # A ps replica's index is its place in the model; a worker's is never used again.
                self._plan(member.role, now, member.index if member.role is Role.PS else None)
            case relaunch.Decision.GIVE_UP:
                note = f"{member.name} is not replaced: {verdict.why}"
                self._act(Note("not replaced", note))
            case relaunch.Decision.FAIL_JOB:
                return f"{text} ({verdict.why})"
        return ""
