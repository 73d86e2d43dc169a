"""Evaluations of a job: started when they are due, and taken in as their tasks end."""

from __future__ import annotations

from dataclasses import replace

from elasticdl.errors import ModelError
from elasticdl.job import Lease, Outcome, Task, TaskKind, TaskReport
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.features.training_metrics import TrainingMetrics
from elasticdl.master.ledger import Settled
from elasticdl.master.phases import Phase
from elasticdl.master.results import Failure
from elasticdl.observe import kinds


class Evaluating(JobFeature):
    """Leads `Evaluations` through their tasks."""

    def __init__(self, job: JobParts, training_metrics: TrainingMetrics) -> None:
        self._job = job
        self._evaluations = job.evaluations
        self._training_metrics = training_metrics

    def advance(self, now: float) -> None:
        """Start an evaluation while training, if one is due."""
        history, ledger = self._job.history, self._job.ledger
        is_training = history.phase is Phase.TRAINING and not ledger.is_trained
        version, num_epochs = self._job.meter.model_version, ledger.epochs.num_complete
        is_open = is_training and not history.is_stopping
        if is_open and self._evaluations.is_due(version, num_epochs):
            self._start()

    def entered(self, phase: Phase, now: float) -> None:
        """Start the evaluation after training."""
        if phase is Phase.EVALUATING:
            self._start()

    def checked(self, task: Task, report: TaskReport) -> TaskReport:
        """Return the report, as a failure if its metric states do not fit the others'."""
        if task.kind is not TaskKind.EVALUATION or report.outcome is not Outcome.DONE:
            return report
        try:
            self._evaluations.check(task.evaluation_id, report.metric_states)
        except ModelError as error:
            return replace(report, outcome=Outcome.FAILED, message=str(error))
        return report

    def settled(self, task: Task, report: TaskReport, settled: Settled) -> Failure | None:
        """Add what a validation task gave, or keep the numbers that a worker has made of all."""
        if settled is Settled.QUARANTINED:
            self._set_aside(task)
        elif settled is Settled.DONE and task.kind is TaskKind.EVALUATION:
            states, num_records = report.metric_states, report.num_records
            if self._evaluations.evaluated(task.evaluation_id, states, num_records):
                metrics_id = self._job.tasks.metrics_id(task.evaluation_id)
                self._job.ledger.queue(range(metrics_id, metrics_id + 1))
        elif settled is Settled.DONE and task.kind is TaskKind.METRICS:
            self._evaluations.finish(task.evaluation_id, report.metrics, self._of_training())
            text = ", ".join(f"{name} {value:.6g}" for name, value in report.metrics.items())
            self._job.note(kinds.Evaluated(report.metrics), f"evaluation: {text}")
        return None

    def completed(self, lease: Lease) -> Lease:
        """Give the worker that makes numbers the sums."""
        if lease.task.kind is TaskKind.METRICS:
            return replace(lease, metric_states=self._evaluations.states)
        return lease

    def _start(self) -> None:
        version, num_epochs = self._job.meter.model_version, self._job.ledger.epochs.num_complete
        evaluation_id = self._evaluations.start(version, num_epochs)
        self._job.ledger.queue(self._job.tasks.evaluation_ids(evaluation_id))

    def _set_aside(self, task: Task) -> None:
        """Give the evaluation up of which a task has failed too often."""
        is_callback = task.kind is TaskKind.CALLBACKS
        is_running = task.evaluation_id == self._evaluations.running_id
        if task.evaluation_id >= 0 and is_running and not is_callback:
            self._evaluations.abandon()
            self._job.ledger.drop(self._job.tasks.evaluation_ids(task.evaluation_id))

    def _of_training(self) -> dict[str, float]:
        """Return metrics of the training epoch that the evaluation belongs to."""
        epoch = self._job.ledger.epochs.first_open
        if self._evaluations.follows_epochs:
            epoch = max(0, self._job.ledger.epochs.num_complete - 1)
        loss, measured = self._job.meter.epoch_loss(epoch), self._training_metrics.measured
        metrics = measured.metrics if measured.epoch == epoch else {}
        return metrics if loss is None else {"loss": loss, **metrics}
