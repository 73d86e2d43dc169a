"""Whether training has diverged: its loss is far above what it began with. For displays."""

from __future__ import annotations

from dataclasses import replace

from elasticdl.job import FIRST_LOSS, OF_MODEL, Task, TaskKind, TaskReport
from elasticdl.job.status import JobStatus
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.ledger import Settled
from elasticdl.packages.advice.events import Anomaly

FACTOR = 100.0
"""A loss above this multiple of the first one is no loss of a model that learns."""

_LEAST = 1e-3  # of a first loss that is next to nothing
_ADVICE = "Try a smaller learning rate, and scale numeric features to be near 0."


class Divergence:
    """Compares the mean loss of each task with the first minibatch of the job.

    It is not in the journal: a restarted master compares with the first minibatch that it hears of.
    """

    def __init__(self) -> None:
        """Begin without a loss."""
        self._first: float | None = None
        self._last = 0.0
        self._is_told = False

    def trained(self, report: TaskReport) -> str:
        """Take in a task that is done; return what to say, when it diverges for the first time."""
        if self._first is None:
            self._first = report.metrics.get(FIRST_LOSS)
        if report.num_records:
            self._last = report.loss_sum / report.num_records
        if self._is_told or not self.words:
            return ""
        self._is_told = True
        return self.words

    @property
    def words(self) -> str:
        """Say that the last task's loss diverges, and what to do; "" if it does not diverge."""
        first = self._first
        if first is None or self._last <= FACTOR * max(abs(first), _LEAST):
            return ""
        return (
            f"training diverges: the loss began with {first:.5g} and is {self._last:.5g} now. "
            f"{_ADVICE}"
        )

    @property
    def advice(self) -> str:
        """Say what to do."""
        return _ADVICE


class DivergingLoss(JobFeature):
    """Says it when training diverges."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self._divergence = Divergence()

    def ended(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        """Compare the loss of a training task."""
        if task.kind is TaskKind.TRAINING and (words := self._divergence.trained(report)):
            kind = Anomaly("diverging loss", "", self._divergence.advice)
            self._job.note(kind, words, is_warning=True)

    def show(self, status: JobStatus) -> JobStatus:
        """Show it beside what was found in the data."""
        words = self._divergence.words
        found = (*status.data_check, f"{OF_MODEL}{words}") if words else status.data_check
        return replace(status, data_check=found)
