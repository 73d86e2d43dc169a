"""Decides when a job stops waiting for the last few workers (`--finish_rate`)."""

from __future__ import annotations

from collections.abc import Collection

from elasticdl.job import Role, Task, TaskReport
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.ledger import Settled
from elasticdl.master.phases import Phase
from elasticdl.observe import kinds

_TIMES = 2.0
"""A worker is a straggler if it holds its task for so many times the mean time of a task."""
_NEWEST_WEIGHT = 0.1  # weight of the newest task in the mean time of a task


class Stragglers:
    """How long tasks take. It knows no clock, and nothing that another master must know."""

    def __init__(self, finish_rate: float) -> None:
        """Begin with nothing known.

        Args:
            finish_rate: The share of the workers that must have nothing left; 1: all.
        """
        self._finish_rate = finish_rate
        self._began: dict[int, float] = {}
        self._seconds: float | None = None  # mean time of a task

    @property
    def are_awaited(self) -> bool:
        """Whether the job waits for all workers."""
        return self._finish_rate >= 1.0

    def leased(self, task_id: int, now: float) -> None:
        """A training task was leased."""
        self._began[task_id] = now

    def ended(self, task_id: int, now: float, is_done: bool) -> None:
        """A lease of a training task has ended."""
        began = self._began.pop(task_id, None)
        if began is None or not is_done:
            return
        taken = now - began
        before = taken if self._seconds is None else self._seconds
        self._seconds = before + _NEWEST_WEIGHT * (taken - before)

    def may_be_left(
        self, num_workers: int, num_busy: int, held: Collection[int], now: float
    ) -> bool:
        """Whether the tasks that are still held may be left, if no other is to be done.

        Args:
            num_workers: The present workers.
            num_busy: The present workers that hold a task.
            held: The tasks that they hold.
            now: The time.
        """
        if self.are_awaited or not held or self._seconds is None:
            return False
        if num_workers - num_busy < self._finish_rate * num_workers:
            return False
        # Another master does not know when these tasks began, so it counts from now.
        began = [self._began.setdefault(task_id, now) for task_id in held]
        return now - max(began) >= _TIMES * self._seconds


class LeftStragglers(JobFeature):
    """Leaves the last tasks of a job to the workers that are slow with them, and ends those."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self._times = Stragglers(job.config.training.finish_rate)

    def leased(self, task: Task, now: float) -> None:
        """Note when a task begins."""
        self._times.leased(task.id, now)

    def ended(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        """Note how long a task took."""
        self._times.ended(task.id, now, settled is Settled.DONE)

    def advance(self, now: float) -> None:
        """Wait no longer for the last tasks, if enough workers have nothing left."""
        ledger, members = self._job.ledger, self._job.members
        is_training = self._job.history.phase is Phase.TRAINING
        if self._times.are_awaited or not is_training or ledger.num_todo:
            return
        held = ledger.held_in_training
        busy, num_workers = set(held.values()), members.num_alive(Role.WORKER)
        if not self._times.may_be_left(num_workers, len(busy), held, now):
            return
        # The tasks are left first: otherwise the end of their workers would return them.
        ledger.leave(held)
        for member in members.present(Role.WORKER):
            if member.index in busy:
                self._job.processes.end(member, "the job does not wait for it")
        kind = kinds.LeftToStragglers(sorted(held))
        self._job.note(kind, ledger.aside.left_words(), is_warning=True)

    def holds(self, phase: Phase) -> bool:
        """Whether a worker whose task was left is still there: it may have a step to push."""
        is_left = phase is Phase.TRAINING and bool(self._job.ledger.aside.left)
        workers = self._job.members.present(Role.WORKER) if is_left else ()
        return any(member.is_stopping for member in workers)
