"""The check of the data before the first record, by one worker, and its findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elasticdl.job import DataCheckTurn, Role
from elasticdl.job.status import JobStatus
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.observe import kinds

_MOST_LINES = 40
_MOST_CHARACTERS = 1000  # of a line, which has names and values of the data


class DataCheck:
    """One worker looks for the whole job; the others wait for it.

    The check is not in the journal: a master that comes back has another worker look again, if
    nothing was trained.

    Attributes:
        worker_id: The worker that looks, or has looked; -1: no worker.
        lines: The findings.
    """

    def __init__(self) -> None:
        self.worker_id = -1
        self.lines: tuple[str, ...] = ()
        self._is_over = False

    def turn(self, worker_id: int, is_holder_alive: bool, has_begun: bool) -> DataCheckTurn:
        """Return whether a worker is to look.

        Args:
            worker_id: The worker that asks.
            is_holder_alive: Whether the worker that looks is alive. If it died of the look, no
                other worker looks.
            has_begun: Whether the job has done some work.
        """
        if self._is_over or has_begun:
            return DataCheckTurn.OVER
        if self.worker_id in (-1, worker_id):
            self.worker_id = worker_id
            return DataCheckTurn.YOURS
        self._is_over = not is_holder_alive
        return DataCheckTurn.OVER if self._is_over else DataCheckTurn.WAIT

    def is_looking(self, worker_id: int) -> bool:
        """Whether a worker looks just now, as far as the master knows."""
        return worker_id == self.worker_id and not self._is_over

    def done(self, worker_id: int, lines: Sequence[str]) -> bool:
        """Take what a worker found; return whether it was its turn."""
        if self._is_over or worker_id != self.worker_id:
            return False
        self._is_over = True
        self.lines = tuple(line[:_MOST_CHARACTERS] for line in lines[:_MOST_LINES])
        return True


class LookAtData(JobFeature):
    """Has one worker look at the data before the first task, and says what it found."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self._check = DataCheck()

    def turn(self, worker_id: int) -> DataCheckTurn:
        """Return whether a worker is to look at the data before it asks for tasks."""
        holder = self._job.members.find(Role.WORKER, self._check.worker_id)
        is_holder_alive = holder is not None and holder.is_alive
        has_begun = self._job.history.has_ended or self._job.ledger.num_done > 0
        return self._check.turn(worker_id, is_holder_alive, has_begun)

    def has_looked(self, worker_id: int, lines: Sequence[str], error: str, now: float) -> None:
        """A worker says what it found in the data; an error ends the job."""
        if self._job.history.has_ended or not self._check.done(worker_id, lines):
            return
        if lines:
            self._job.note(kinds.DataChecked(self._check.lines), "the data was looked at")
        if error:
            self._job.fail(error, now)

    def is_looked_at_by(self, worker_id: int) -> bool:
        """Whether a worker looks just now, as far as the master knows."""
        return self._check.is_looking(worker_id)

    def show(self, status: JobStatus) -> JobStatus:
        """Show what was found."""
        return replace(status, data_check=(*status.data_check, *self._check.lines))
