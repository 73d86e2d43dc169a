"""Outputs of a job beside its checkpoints: results that wait for their storage, and programs."""

from __future__ import annotations

from elasticdl.job import Outcome, ServedProgram, Task, TaskKind, TaskReport
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.patience import Patience, told
from elasticdl.observe import kinds
from elasticdl.state.base import Snapshot

_WRITING = frozenset({TaskKind.EXPORT, TaskKind.PREDICTION})


class WaitsForStorage(JobFeature):
    """Has tasks tried again, with pauses, that failed of a disk that is full or a store away."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self.patience = Patience(job.journal, "results")

    def outcome(self, task: Task, report: TaskReport, outcome: Outcome, now: float) -> Outcome:
        """Take a task back, rather than count a failure that may pass."""
        may_pass = report.may_pass and report.outcome is Outcome.FAILED
        pause = self.patience.failed(now) if may_pass else None
        if pause is not None:
            what = "the export" if task.kind is TaskKind.EXPORT else "the task"
            text = told(report.message, pause, what)
            self._job.history.say(text)
            self._job.note(kinds.ResultsWait(task.id, pause), text, is_warning=True)
            return Outcome.RETURNED
        if task.kind in _WRITING and self.patience.is_waiting:
            self.patience.succeeded()
            self._job.history.say("")
        return outcome

    def may_try(self, task_id: int, now: float) -> bool:
        """Whether a task may be leased, as far as the place of its results is known to be well."""
        return self.patience.may_try(now) or self._job.tasks.task(task_id).kind not in _WRITING

    def reopened(self) -> None:
        """Begin anew."""
        self.patience.reset()

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {"patience": self.patience.snapshot()}

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.patience.restore(snapshot.get("patience"))


class WrittenPrograms(JobFeature):
    """Says which worker writes the program of the model; here none does, and a package may."""

    def is_needed(self, worker_id: int, key: str) -> bool:
        """Return whether a worker is to write its model's program.

        Args:
            worker_id: The worker.
            key: The identity of its model.
        """
        return False

    def written(self, key: str, program: ServedProgram, now: float) -> None:
        """A worker says that its model's program is written."""
