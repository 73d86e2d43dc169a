"""Metrics of the minibatches that were trained: merged here, turned into numbers by a worker.

A worker measures a part of the minibatches that it trains, and sends the sums with the report of
their task. So a minibatch counts at most once for each time that it was trained. The sums of a task
are lost with a worker that never reports it. A task that is trained again for a restored ps replica
counts again. The number of measured records is shown beside the metrics.

This is for displays: the sums are not in the journal, where they would be a hundred times the facts
of a task. A restarted master begins anew, and the number of records says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elasticdl.job import Lease, MetricStates, Outcome, Shard, Task, TaskKind, TaskReport
from elasticdl.job.status import JobStatus
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.ledger import Settled
from elasticdl.master.metric_sums import add
from elasticdl.master.phases import Phase
from elasticdl.master.results import Failure
from elasticdl.observe import kinds

TASK_ID = -1
WINDOW_RECORDS = 20_000
_PERIOD_SECONDS = 10.0
_EPOCH, _WINDOW, _OVER = "epoch", "window", "over"


@dataclass(frozen=True, slots=True)
class Measured:
    """The metrics of one epoch so far, and of its records that were trained last, as numbers."""

    epoch: int = 0
    num_records: int = 0  # of this epoch that were measured
    metrics: dict[str, float] = field(default_factory=dict)
    recent: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    num_trained: int
    states: MetricStates


class ScoredWindows:
    """Other sums of training of which metrics are wanted, in windows; this class has none.

    is_given_up: Whether the metrics of this job fail, so that nothing is asked.
    """

    def __init__(self) -> None:
        self.is_given_up = False

    @property
    def is_behind(self) -> bool:
        """Whether there are sums of which no metrics were made."""
        return False

    @property
    def is_urgent(self) -> bool:
        """Whether metrics are wanted before the next ones are due."""
        return False

    def ask(self) -> dict[str, MetricStates]:
        """Return the sums of which metrics are wanted, by window."""
        return {}

    def answered(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Take in the metrics that were asked for, by window."""


class TrainingMetrics:
    """Sums of the epoch under way and of its last tasks, and the numbers last made of them."""

    def __init__(self, windows: ScoredWindows | None = None) -> None:
        """Begin with nothing measured.

        Args:
            windows: Windows of event time; their metrics are asked for together with the others.
        """
        self.measured = Measured()
        self.by_epoch: dict[int, dict[str, float]] = {}
        """The metrics of epochs, the newest so far."""
        self._windows = windows or ScoredWindows()
        self._epoch = 0
        self._num_records = 0
        self._sums: MetricStates = {}
        self._over: dict[int, MetricStates] = {}  # sums of past epochs without numbers
        self._window: deque[_Part] = deque()
        self._window_records = 0
        self._number = 0  # number of the last lease
        self._asked_at: float | None = None  # None: no worker is to answer
        self._asked = -1  # the worker that is to answer
        self._asked_of = Measured()
        self._asked_over: tuple[int, ...] = ()
        self._next = 0.0
        self._is_given_up = False

    # --- events ----------------------------------------------------------------------------------

    def trained(self, task: Task, report: TaskReport) -> None:
        """Add what was measured of a task that is done."""
        num_measured, states = report.num_measured, report.metric_states
        for window in report.windows:
            num_measured += window.num_measured
            states = add(states, window.metric_states)
        if task.epoch < self._epoch:
            return  # a late task of an earlier epoch belongs to numbers that are told already
        if task.epoch > self._epoch:
            if self._is_epoch_behind and not self._is_given_up:
                self._over[self._epoch] = self._sums
            self._epoch, self._num_records, self._sums = task.epoch, 0, {}
            self._window.clear()
            self._window_records = 0
        self._num_records += num_measured
        self._sums = add(self._sums, states)
        self._window.append(_Part(report.num_records, states))
        self._window_records += report.num_records
        while self._window_records - self._window[0].num_trained >= WINDOW_RECORDS:
            self._window_records -= self._window.popleft().num_trained

    def lease(self, worker_id: int, now: float) -> Lease:
        """Return a METRICS task for the worker that asks; it is time for one (`is_due`)."""
        self._asked_at, self._next = now, now + _PERIOD_SECONDS
        self._asked = worker_id
        self._asked_of = Measured(self._epoch, self._num_records)
        self._number += 1
        recent: MetricStates = {}
        for part in self._window:
            recent = add(recent, part.states)
        states = {f"{_EPOCH}/{name}": arrays for name, arrays in self._sums.items()}
        states |= {f"{_WINDOW}/{name}": arrays for name, arrays in recent.items()}
        for epoch, sums in self._over.items():
            states |= {f"{_OVER} {epoch}/{name}": arrays for name, arrays in sums.items()}
        self._asked_over = tuple(self._over)
        for number, sums in self._windows.ask().items():
            states |= {f"{number}/{name}": arrays for name, arrays in sums.items()}
        task = Task(TASK_ID, TaskKind.METRICS, Shard("", 0, 0), self._epoch)
        return Lease(task, self._number, metric_states=states)

    def lost(self, worker_id: int) -> None:
        """A worker is lost: if it was to answer, nobody waits for it."""
        if worker_id == self._asked:
            self._asked_at = None

    def answered(self, report: TaskReport) -> bool:
        """Take in the numbers; return whether they are new."""
        # Only the last lease counts: the sums may have gone to another worker meanwhile.
        if report.lease != self._number or self._asked_at is None:
            return False
        self._asked_at = None
        # Metrics that fail once fail each time. They are a display, so the job goes on without.
        if report.outcome is Outcome.FAILED:
            self._is_given_up = True
            self._over.clear()
            self._windows.is_given_up = True
            return False
        if report.outcome is not Outcome.DONE:
            return False
        self.measured = Measured(
            self._asked_of.epoch,
            self._asked_of.num_records,
            _scope(_EPOCH, report.metrics),
            _scope(_WINDOW, report.metrics),
        )
        if self.measured.metrics:
            self.by_epoch[self.measured.epoch] = self.measured.metrics
        for epoch in self._asked_over:
            self.by_epoch[epoch] = _scope(f"{_OVER} {epoch}", report.metrics)
            self._over.pop(epoch, None)
        self._windows.answered(_by_window(report.metrics))
        return True

    # --- questions -------------------------------------------------------------------------------

    def is_due(self, now: float, is_last: bool) -> bool:
        """Whether it is time for a METRICS task.

        Args:
            now: The time.
            is_last: Nothing more will be trained: the numbers are wanted at once.
        """
        # A worker that is stuck does not keep the numbers back for ever: another one is asked.
        waits_for_answer = self._asked_at is not None and now - self._asked_at < _PERIOD_SECONDS
        is_time = is_last or self._windows.is_urgent or now >= self._next
        return self.is_behind and not waits_for_answer and is_time

    def shown(self, is_training: bool) -> Measured:
        """Return the numbers to show: after training those of the newest epoch, or none."""
        is_old = self.measured.epoch < self._epoch
        return Measured() if is_old and not is_training else self.measured

    @property
    def is_behind(self) -> bool:
        """Whether there are sums of which no numbers have been made."""
        is_behind = self._is_epoch_behind or self._windows.is_behind or bool(self._over)
        return not self._is_given_up and is_behind

    @property
    def _is_epoch_behind(self) -> bool:
        told = (self.measured.epoch, self.measured.num_records)
        return bool(self._sums) and told != (self._epoch, self._num_records)


class MeasuredTraining(JobFeature):
    """Has a worker make numbers of the sums now and then, and shows them."""

    def __init__(self, job: JobParts, metrics: TrainingMetrics) -> None:
        self._job = job
        self._metrics = metrics

    def settled(self, task: Task, report: TaskReport, settled: Settled) -> Failure | None:
        """Add what was measured of a task that is done."""
        if task.kind is TaskKind.TRAINING and settled is Settled.DONE:
            self._metrics.trained(task, report)
        return None

    def worker_lost(self, worker_id: int) -> None:
        """Wait no longer for a worker that is lost."""
        self._metrics.lost(worker_id)

    def has_errand(self, now: float) -> bool:
        """Whether it is time for somebody to compute the metrics of training."""
        history, evaluations = self._job.history, self._job.evaluations
        if history.phase is not Phase.TRAINING or history.failing:
            return False
        # The metrics are compared with the evaluation that training waits for, so they are wanted
        # now.
        is_wanted = evaluations.follows_epochs and evaluations.running_id is not None
        return self._metrics.is_due(now, self._job.plan.is_trained or is_wanted)

    def errand(self, worker_id: int, now: float) -> Lease:
        """Return a METRICS task."""
        return self._metrics.lease(worker_id, now)

    def errand_ended(self, report: TaskReport) -> bool:
        """Take in the numbers of the metrics of training; return whether they were waited for."""
        is_new = self._metrics.answered(report)
        if is_new:
            of, meter = self._metrics.measured, self._job.meter
            text = ", ".join(f"{name} {value:.6g}" for name, value in sorted(of.metrics.items()))
            self._job.note(
                kinds.TrainingMetricsMeasured(
                    epoch=of.epoch,
                    loss=meter.epoch_loss(of.epoch),
                    recent_loss=meter.loss,
                    metrics=of.metrics,
                    recent_metrics=of.recent,
                    num_records=of.num_records,
                ),
                f"epoch {of.epoch + 1}, {of.num_records} records: {text}",
            )
        elif report.outcome is Outcome.FAILED:
            self._job.note(kinds.TrainingMetricsFailed(), report.message, is_warning=True)
        return is_new

    def holds(self, phase: Phase) -> bool:
        """Whether there are sums of which no numbers have been made."""
        return phase is Phase.TRAINING and self._metrics.is_behind

    def show(self, status: JobStatus) -> JobStatus:
        """Show the numbers that were made last, and those of the epochs before."""
        measured = self._metrics.shown(self._job.history.phase is Phase.TRAINING)
        by_epoch = self._metrics.by_epoch
        return replace(
            status,
            train_metrics=measured.metrics,
            recent_train_metrics=measured.recent,
            train_metrics_epoch=measured.epoch,
            train_metrics_records=measured.num_records,
            history=tuple(
                replace(each, metrics=by_epoch.get(epoch, {}))
                for epoch, each in enumerate(status.history)
            ),
        )


def _scope(scope: str, metrics: dict[str, float]) -> dict[str, float]:
    prefix = f"{scope}/"
    return {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}


def _by_window(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        number, _, metric = name.partition("/")
        if number not in (_EPOCH, _WINDOW) and not number.startswith(_OVER):
            found.setdefault(number, {})[metric] = value
    return found
