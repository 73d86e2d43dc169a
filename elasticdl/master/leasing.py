"""The answer to a worker that asks for a task: a lease, a wait, or the end of the job."""

from __future__ import annotations

from dataclasses import replace

from elasticdl.errors import ElasticdlError
from elasticdl.job import Finished, Lease, Outcome, Role, TaskKind, Wait
from elasticdl.master.features.base import Features, JobFeature, JobParts
from elasticdl.master.membership import Member
from elasticdl.master.phases import Phase

_WAIT_SECONDS = 0.1
_WAIT_SECONDS_PER_WORKER = 0.002


class Leasing:
    """Answers requests for tasks, each of which may be sent several times."""

    def __init__(self, job: JobParts, features: Features) -> None:
        self._config = job.config
        self._tasks = job.tasks
        self._history = job.history
        self._ledger = job.ledger
        self._members = job.members
        self._parameters = job.parameters
        self._processes = job.processes
        self._features = features

    # --- events ----------------------------------------------------------------------------------

    def lease(
        self, worker_id: int, session: str, request: int, now: float, goes_on: bool = False
    ) -> Lease | Wait | Finished:
        """A worker asks for a task; see `JobCore.lease`."""
        member = self._members.heard(Role.WORKER, worker_id, session, now)
        if member is None:
            found = self._members.find(Role.WORKER, worker_id)
            is_known = found.session if found else self._members.has_been(Role.WORKER, worker_id)
            if not is_known:
                raise ElasticdlError(f"worker {worker_id} asks for a task, but has not registered")
            return Finished()  # given up, or replaced
        if not self._processes.are_workers_needed:
            return Finished()
        is_new = request > member.newest_request or (goes_on and _awaits(member, request))
        if request > member.newest_request:
            member.newest_request, member.is_told_to_wait = request, False
        # This comes before the look at `is_departing`: a worker that leaves must hear of the task
        # that it holds already, to give it back.
        again = self._ledger.lease_of_request(worker_id, request)
        if again is not None and self._ledger.is_void(again[0]):
            # Replicas that came back after it would refuse it. The worker asks anew: an earlier
            # attempt was answered with it, and that answer may be the one that is heard.
            self._ledger.report(worker_id, *again, Outcome.RETURNED)
            is_new = False
        elif again is not None:
            task_id, number = again
            is_suspect = self._ledger.is_suspect(task_id)
            task, place = self._tasks.task(task_id), self._ledger.place_of(task_id)
            return self._completed(Lease(task, number, is_suspect=is_suspect, place=place))
        if member.is_departing:
            return Finished()
        if not is_new:
            # This attempt comes late: the worker was told to wait, or has its task already. It
            # would never hear of a lease that it got now, and the job would wait for that task.
            member.is_told_to_wait = True  # so an earlier attempt is leased nothing either
            return Wait(_WAIT_SECONDS)
        if errands := self._features.errands(now):
            return errands[0].errand(worker_id, now)
        if not self._has_work(worker_id, now):
            return Wait(max(_WAIT_SECONDS, self.pace_seconds))
        self._history.begin(now)
        lease = self._ledger.lease(worker_id, request)
        for feature in self._features.overriding(JobFeature.leased):
            feature.leased(lease.task, now)
        return self._completed(lease)

    # --- questions -------------------------------------------------------------------------------

    def awaits(self, worker_id: int, session: str, request: int) -> bool:
        """Whether a worker still waits for the answer to an attempt that was not answered."""
        member = self._members.find(Role.WORKER, worker_id)
        return member is not None and member.session == session and _awaits(member, request)

    def has_word_for(self, worker_id: int, session: str, now: float) -> bool:
        """Whether a worker that asks for a task would be told something else than to wait."""
        member = self._members.find(Role.WORKER, worker_id)
        if member is None or member.session != session or member.gone or member.is_departing:
            return True
        is_needed = self._processes.are_workers_needed
        has_errand = bool(self._features.errands(now))
        return not is_needed or has_errand or self._has_work(worker_id, now)

    @property
    def lets_workers_wait(self) -> bool:
        """Whether a worker may be kept waiting for a task: it need not hear now that there is none.

        In a world each worker tells the others that it has nothing to do.
        """
        return not self._config.has_worlds

    @property
    def pace_seconds(self) -> float:
        """How long a worker that waits leaves the master alone: thousands may do so."""
        return _WAIT_SECONDS_PER_WORKER * self._members.num_alive(Role.WORKER)

    def _has_work(self, worker_id: int, now: float) -> bool:
        """Whether there is a task for a worker."""
        history = self._history
        is_open = history.phase is not Phase.PENDING and not history.is_stopping
        if not (is_open and self._parameters.is_complete):
            return False
        next_id = self._ledger.next_id(worker_id)
        asked = self._features.overriding(JobFeature.may_try)
        return next_id is not None and all(f.may_try(next_id, now) for f in asked)

    def _completed(self, lease: Lease) -> Lease:
        """Return a lease with all that its worker has to know."""
        # Where an order is kept, other workers wait for the end of this very task.
        may_wait = lease.task.kind is TaskKind.TRAINING and not self._ledger.keeps_order
        generation = self._parameters.generation
        lease = replace(lease, generation=generation, report_may_wait=may_wait)
        return self._features.completed(lease)


def _awaits(member: Member, request: int) -> bool:
    return request == member.newest_request and not member.is_told_to_wait
