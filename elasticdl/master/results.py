"""Effects of the reports of tasks on the job's measures and on the job itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elasticdl.config import TrainingSection
from elasticdl.job import Outcome, Task, TaskKind, TaskReport
from elasticdl.master.actions import Action, Note
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.observe import kinds
from elasticdl.observe.kind import Kind


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why the job fails. after_checkpoint: A last checkpoint is written first."""

    words: str
    after_checkpoint: bool = False


class TaskResults:
    """Says how tasks have ended, and whether the job fails because of one."""

    def __init__(
        self, training: TrainingSection, ledger: Ledger, act: Callable[[Action], None]
    ) -> None:
        self._training = training
        self._ledger = ledger
        self._act = act
        self._failures: dict[int, str] = {}  # task -> what was told of its last failure

    def settle(self, task: Task, report: TaskReport, settled: Settled) -> Failure | None:
        """Say what the end of a lease has changed; return a failure if the job fails of it."""
        if report.fatal:
            return Failure(report.message, after_checkpoint=True)
        if settled is Settled.QUARANTINED:
            self._failures.pop(task.id, None)
            return self._set_aside(task, report.message)
        if settled is Settled.DONE:
            self._failures.pop(task.id, None)
        elif settled is Settled.REQUEUED and report.outcome is Outcome.FAILED:
            is_news = self._failures.get(task.id) != report.message  # each try may say the same
            self._failures[task.id] = report.message
            if is_news:
                self._note(kinds.TaskFailed(task.id), report.message, is_warning=True)
        return None

    def _set_aside(self, task: Task, message: str) -> Failure | None:
        self._note(kinds.TaskSetAside(task.id), message, is_warning=True)
        if self._ledger.num_done == 0:
            tries = self._ledger.aside.tries(task.id)
            often = f" {tries} times" if tries > 1 else ""
            return Failure(f"no task succeeded, and one failed{often}: {message}")
        if task.kind is TaskKind.TRAINING and self._training.deterministic:
            return Failure(f"--deterministic: an update cannot be made without its task: {message}")
        return None

    def _note(self, kind: Kind, text: str, is_warning: bool = False) -> None:
        self._act(Note(kind, text, is_warning))
