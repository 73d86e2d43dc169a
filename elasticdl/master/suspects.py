"""The tasks of which a worker may have died."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from elasticdl.state.base import Snapshot


class Suspects:
    """Tasks of which a worker may have died, until they are done or set aside.

    One silence of a worker may be a machine out of reach. Only the second one makes its task a
    suspect.

    Attributes:
        waiting: The suspects that are not leased, of any kind.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._ids: set[int] = set()
        self.waiting: deque[int] = deque()
        self._silences: set[int] = set()  # tasks whose worker fell silent

    def __contains__(self, task_id: int) -> bool:
        """Whether a worker may have died of a task."""
        return task_id in self._ids

    def add(self, task_id: int) -> None:
        """Suspect a task that is leased."""
        self._ids.add(task_id)

    def silence(self, task_id: int) -> None:
        """Note that the worker of a task fell silent."""
        self._silences.add(task_id)

    def was_silent(self, task_id: int) -> bool:
        """Whether a worker of a task fell silent before."""
        return task_id in self._silences

    def clear(self, task_id: int) -> None:
        """Suspect a task no longer: it is done, or set aside."""
        self._ids.discard(task_id)
        self._silences.discard(task_id)

    def drop(self, first: int, stop: int) -> None:
        """Forget tasks that wait."""
        for task_id in [id for id in self.waiting if first <= id < stop]:
            self.waiting.remove(task_id)
            self._ids.discard(task_id)

    def keep(self, is_kept: Callable[[int], bool]) -> None:
        """Let only some of those that wait go on waiting."""
        self.waiting = deque(filter(is_kept, self.waiting))

    def forget(self, first: int) -> None:
        """Forget the tasks before one, which are done for good."""
        self._silences.difference_update([task for task in self._silences if task < first])

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "suspects": sorted(self._ids),
            "silences": sorted(self._silences),
            "waiting_suspects": list(self.waiting),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._ids = set(snapshot["suspects"])
        self._silences = set(snapshot["silences"])
        self.waiting = deque(snapshot["waiting_suspects"])
