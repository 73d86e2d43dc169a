"""What follows from the reports of tasks, for what the job measures and for the job itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from elasticdl.config import TrainingSection
from elasticdl.errors import ModelError
from elasticdl.job import Outcome, Task, TaskKind, TaskReport
from elasticdl.master.actions import Action, Note
from elasticdl.master.callbacks import Callbacks
from elasticdl.master.evaluation import Evaluations
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.phases import Phase
from elasticdl.master.progress import Meter
from elasticdl.master.tasks import JobTasks
from elasticdl.master.training_metrics import TrainingMetrics
from elasticdl.observe import kinds
from elasticdl.observe.kinds import Kind


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the job fails. after_checkpoint: What has been trained is written first."""

    words: str
    after_checkpoint: bool = False


class TaskResults:
    """Hands what tasks came to on to whoever waits for it; says when the job fails of one."""

    def __init__(
        self,
        training: TrainingSection,
        tasks: JobTasks,
        ledger: Ledger,
        meter: Meter,
        evaluations: Evaluations,
        callbacks: Callbacks,
        training_metrics: TrainingMetrics,
        act: Callable[[Action], None],
    ) -> None:
        self._training = training
        self._tasks = tasks
        self._ledger = ledger
        self._meter = meter
        self._evaluations = evaluations
        self._callbacks = callbacks
        self._training_metrics = training_metrics
        self._act = act
        self._failures: dict[int, str] = {}  # task -> what was told of its last failure

    def checked(self, task: Task, report: TaskReport) -> TaskReport:
        """Return the report, as a failure if its metric states do not fit the others'."""
        if task.kind is not TaskKind.EVALUATION or report.outcome is not Outcome.DONE:
            return report
        try:
            self._evaluations.check(task.evaluation_id, report.metric_states)
        except ModelError as error:
            return replace(report, outcome=Outcome.FAILED, message=str(error))
        return report

    def measured(self, report: TaskReport) -> bool:
        """Take in the numbers of the metrics of training; return whether they were waited for."""
        is_new = self._training_metrics.answered(report)
        if is_new:
            of = self._training_metrics.measured
            text = ", ".join(f"{name} {value:.6g}" for name, value in sorted(of.metrics.items()))
            self._note(
                kinds.TrainingMetricsMeasured(
                    epoch=of.epoch,
                    loss=self._meter.epoch_loss(of.epoch),
                    recent_loss=self._meter.loss,
                    metrics=of.metrics,
                    recent_metrics=of.recent,
                    num_records=of.num_records,
                ),
                f"epoch {of.epoch + 1}, {of.num_records} records: {text}",
            )
        elif report.outcome is Outcome.FAILED:
            self._note(kinds.TrainingMetricsFailed(), report.message, is_warning=True)
        return is_new

    def settle(
        self, task: Task, report: TaskReport, settled: Settled, phase: Phase
    ) -> Failure | None:
        """Take in what the end of a lease did; return a failure if the job fails of it."""
        if report.fatal:
            return Failure(report.message, after_checkpoint=True)
        if settled is Settled.QUARANTINED:
            self._failures.pop(task.id, None)
            return self._set_aside(task, report.message)
        if settled is Settled.DONE:
            self._failures.pop(task.id, None)
            self._done(task, report, phase)
        elif settled is Settled.REQUEUED and report.outcome is Outcome.FAILED:
            is_news = self._failures.get(task.id) != report.message  # each try may say the same
            self._failures[task.id] = report.message
            if is_news:
                self._note(kinds.TaskFailed(task.id), report.message, is_warning=True)
        return None

    def _done(self, task: Task, report: TaskReport, phase: Phase) -> None:
        match task.kind:
            case TaskKind.TRAINING:
                self._training_metrics.trained(task, report)
            case TaskKind.EVALUATION:
                if self._evaluations.evaluated(
                    task.evaluation_id, report.metric_states, report.num_records
                ):
                    metrics_id = self._tasks.metrics_id(task.evaluation_id)
                    self._ledger.queue(range(metrics_id, metrics_id + 1))
            case TaskKind.METRICS:
                self._evaluations.finish(task.evaluation_id, report.metrics, self._of_training())
                text = ", ".join(f"{name} {value:.6g}" for name, value in report.metrics.items())
                self._note(kinds.Evaluated(report.metrics), f"evaluation: {text}")
                self._callbacks.evaluated(task.evaluation_id)
            case TaskKind.CALLBACKS:
                assert report.callbacks is not None
                self._callbacks.ran(report.callbacks, phase)

    def _of_training(self) -> dict[str, float]:
        """Return what is known of the epoch of which an evaluation is: under way, or just over."""
        epoch = self._ledger.epoch
        if self._evaluations.follows_epochs:
            epoch = max(0, self._ledger.num_epochs_complete - 1)
        loss, measured = self._meter.epoch_loss(epoch), self._training_metrics.measured
        metrics = measured.metrics if measured.epoch == epoch else {}
        return metrics if loss is None else {"loss": loss, **metrics}

    def _set_aside(self, task: Task, message: str) -> Failure | None:
        self._note(kinds.TaskSetAside(task.id), message, is_warning=True)
        if self._ledger.num_done == 0:
            tries = self._ledger.tries(task.id)
            often = f" {tries} times" if tries > 1 else ""
            return Failure(f"no task succeeded, and one failed{often}: {message}")
        if task.kind is TaskKind.TRAINING and self._training.deterministic:
            return Failure(f"--deterministic: an update cannot be made without its task: {message}")
        if task.kind is TaskKind.CALLBACKS:
            self._callbacks.drop()
        elif task.evaluation_id >= 0 and task.evaluation_id == self._evaluations.running_id:
            self._evaluations.abandon()
            self._ledger.drop(self._tasks.evaluation_ids(task.evaluation_id))
        return None

    def _note(self, kind: Kind, text: str, is_warning: bool = False) -> None:
        self._act(Note(kind, text, is_warning))
