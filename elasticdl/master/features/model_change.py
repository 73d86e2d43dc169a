"""Another model goes on with a job: the one before first does the tasks that are begun."""

from __future__ import annotations

from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.history import BEGUN_FIRST
from elasticdl.master.phases import Phase


class ModelChange(JobFeature):
    """Brings a job whose model changes to rest, with what it has trained in a checkpoint.

    The first minibatches of a task that is begun are those of the model before, which decides the
    order of its records. `elasticdl.master.durable` says when a model changes.
    """

    def __init__(self, job: JobParts) -> None:
        self._job = job
        job.journal.handle("model changes", self._apply_model_changes)

    def resumed(self, now: float) -> None:
        """Another master goes on: if no task is begun, the other model may begin at once."""
        history = self._job.history
        if history.model_change == BEGUN_FIRST and not self._job.ledger.num_begun:
            history.model_is_at_rest()

    def advance(self, now: float) -> None:
        """Have the job come to rest, once no task is begun."""
        history = self._job.history
        if not history.model_change or history.is_stopping or history.phase is Phase.PENDING:
            return
        if self._job.parameters.is_complete and self._job.ledger.is_at_rest:
            history.come_to_rest()

    def spares(self, now: float) -> bool:
        """Whether the last checkpoint was written for the other model, and not for a failure."""
        history = self._job.history
        if not history.comes_to_rest:
            return False
        if self._job.ledger.is_at_rest:
            history.model_is_at_rest()
        else:  # parameters were lost meanwhile
            self._job.journal.record("model changes", BEGUN_FIRST)
            self._job.advance(now)
        return True

    def may_begin(self, num_tasks: int) -> int:
        """Allow only the tasks of updates that have begun."""
        changes = bool(self._job.history.model_change)
        return self._job.ledger.num_begun_whole if changes else num_tasks

    def _apply_model_changes(self, how: str) -> None:
        self._job.history.model_changes(how)
        self._job.parameters.schedule.reopened()
        if not how:
            self._job.ledger.reopened(lambda task_id: False)
