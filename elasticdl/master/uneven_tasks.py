"""The training tasks of which `feed` made more or fewer examples than there are records."""

from __future__ import annotations

from elasticdl.master.missing_records import NONE_MISSING, Missing
from elasticdl.master.missing_tasks import Made
from elasticdl.master.tasks import JobTasks
from elasticdl.state.base import Snapshot


class UnevenTasks:
    """What `feed` made of tasks that are done.

    Attributes:
        minibatch_size: The size of minibatches.
        by_task: Only tasks of which it did not make one example of each record.
    """

    def __init__(self, tasks: JobTasks, minibatch_size: int) -> None:
        """Begin with none."""
        self._tasks, self.minibatch_size = tasks, minibatch_size
        self.by_task: dict[int, Made] = {}

    def fact_of(
        self, task_id: int, end_index: int, num_examples: int, missing: Missing
    ) -> list[int]:
        """Return what is to be remembered of a task that is done: nothing if it is as usual.

        Args:
            task_id: The task.
            end_index: Minibatches that it has, -1 if not known.
            num_examples: Examples in these, -1 if there are as many as records.
            missing: The differences between positions and records of the task.
        """
        if task_id >= self._tasks.num_training or end_index < 0:
            return []
        usual = self._usual(task_id)
        made = Made(end_index, num_examples if num_examples >= 0 else usual.examples)
        if missing != NONE_MISSING:
            return [made.minibatches, made.examples, *missing]
        return [] if made == usual else [made.minibatches, made.examples]

    def _usual(self, task_id: int) -> Made:
        """Return what `feed` makes of a task if it makes one example of each record."""
        num_records = self._tasks.training.num_records_of(task_id % self._tasks.per_epoch)
        return Made(-(-num_records // self.minibatch_size), num_records)

    def done(self, task_id: int, minibatches: int, examples: int) -> None:
        """Note what was made of a task, -1 of a task that is as usual."""
        self.by_task.pop(task_id, None)  # of an earlier time, before it was replayed
        if minibatches >= 0:
            self.by_task[task_id] = Made(minibatches, examples)

    def forget(self, first: int) -> None:
        """Forget the tasks before one."""
        self.by_task = {task: made for task, made in self.by_task.items() if task >= first}

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it, but for numbers as keys."""
        return {"uneven": dict(self.by_task)}

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.by_task = {int(i): Made(*made) for i, made in snapshot["uneven"].items()}
