"""The tasks that a job goes on without: they failed too often, or were left to stragglers."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.job import Task
from elasticdl.state.base import Snapshot

_MESSAGES_SHOWN = 3
_MESSAGES_KEPT = 100


class SetAside:
    """Counts failures of tasks, and keeps those that are set aside.

    Attributes:
        quarantined: The tasks that failed too often, and why; "" of those after the first hundred.
        left: The training tasks that were not waited for.
    """

    def __init__(self, task: Callable[[int], Task]) -> None:
        """Begin with nothing; `task` returns a task of the job."""
        self._task = task
        self.quarantined: dict[int, str] = {}
        self.left: set[int] = set()
        self._failures: dict[int, int] = {}
        self._num_before = 0  # quarantined tasks of a stream that are forgotten

    def failed(self, task_id: int) -> None:
        """Count a failure of a task that is tried again."""
        self._failures[task_id] = self._failures.get(task_id, 0) + 1

    def done(self, task_id: int) -> None:
        """Forget the failures of a task that is done."""
        self._failures.pop(task_id, None)

    def quarantine(self, task_id: int, message: str) -> None:
        """Set a task aside that failed too often."""
        self.quarantined[task_id] = message if len(self.quarantined) < _MESSAGES_KEPT else ""

    def tries(self, task_id: int) -> int:
        """Return how often a task was tried, with the try under way or the last one."""
        return self._failures.get(task_id, 0) + 1

    def try_again(self, first_known: int) -> list[int]:
        """Forget all failures; return the tasks that are tried again, in their order.

        Args:
            first_known: Tasks before it are forgotten, so they stay set aside.
        """
        gone = {task: why for task, why in self.quarantined.items() if task < first_known}
        again = sorted((self.quarantined.keys() - gone.keys()) | self.left)
        self.quarantined, self.left = gone, set()
        self._failures.clear()
        return again

    def forget(self, first: int) -> None:
        """Forget the tasks before one.

        A task that was set aside with a message stays known, because the job's failure repeats the
        message. The other tasks that were set aside are only counted.
        """
        lost = [task for task, why in self.quarantined.items() if task < first and not why]
        for task in lost:
            del self.quarantined[task]
        self._num_before += len(lost)
        self._failures = {task: n for task, n in self._failures.items() if task >= first}

    def words(self) -> str:
        """Say what became of the tasks that failed too often; "" if there are none."""
        count = len(self.quarantined) + self._num_before
        if not count:
            return ""
        shown = "; ".join(list(self.quarantined.values())[:_MESSAGES_SHOWN])
        more = count - _MESSAGES_SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        tries = sorted({self.tries(task_id) for task_id in self.quarantined})
        often = f"{tries[-1]} times each " if len(tries) == 1 and tries[0] > 1 else ""
        return f"{count} tasks failed {often}and were set aside: {shown}{rest}"

    def left_words(self) -> str:
        """Say which tasks were not waited for; "" if there are none."""
        shown = [str(self._task(task_id)) for task_id in sorted(self.left)]
        more = f" and {len(shown) - _MESSAGES_SHOWN} more" if len(shown) > _MESSAGES_SHOWN else ""
        names = ", ".join(shown[:_MESSAGES_SHOWN]) + more
        return f"{len(shown)} tasks were left to stragglers: {names}" if shown else ""

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it, but for numbers as keys."""
        return {
            "failures": dict(self._failures),
            "quarantined": dict(self.quarantined),
            "left": sorted(self.left),
            "num_quarantined_before": self._num_before,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._failures = {int(i): n for i, n in snapshot["failures"].items()}
        self.quarantined = {int(i): why for i, why in snapshot["quarantined"].items()}
        self.left = set(snapshot.get("left", ()))
        self._num_before = snapshot.get("num_quarantined_before", 0)
