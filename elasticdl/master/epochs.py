"""How far the epochs of a job are."""

from __future__ import annotations

from collections.abc import Sequence


class Epochs:
    """Counts the training tasks that are settled: done, or set aside.

    Attributes:
        settled: Their number by epoch.
        num_settled: Their number over all epochs.
    """

    def __init__(self, num_epochs: int, per_epoch: int) -> None:
        """Begin with no task settled."""
        self._per_epoch = per_epoch
        self.settled = [0] * num_epochs
        self.num_settled = 0
        self._first_open = 0  # all epochs before it are complete

    def settle(self, task_id: int) -> None:
        """Count a task that is done or set aside; its epoch must not wait for it."""
        self.settled[task_id // self._per_epoch] += 1
        self.num_settled += 1

    def reopen(self, task_id: int) -> None:
        """Count a task no longer that is tried again."""
        self.settled[task_id // self._per_epoch] -= 1
        self.num_settled -= 1
        self._first_open = 0  # earlier epochs may have open tasks again

    def take_back(self, first_epoch: int, counts: Sequence[int]) -> None:
        """Count tasks no longer that are to be done again, so many of each epoch."""
        for epoch, count in enumerate(counts, start=first_epoch):
            self.settled[epoch] -= count
        self._first_open = min(self._first_open, first_epoch)
        self.num_settled -= sum(counts)

    @property
    def num_complete(self) -> int:
        """How many epochs are complete, one after the other."""
        first = self.first_open
        return first + (self.settled[first : first + 1] == [self._per_epoch])

    @property
    def first_open(self) -> int:
        """The first epoch that is not complete; the last one when all are."""
        last = max(len(self.settled) - 1, 0)
        while self._first_open < last and self.settled[self._first_open] == self._per_epoch:
            self._first_open += 1
        return self._first_open

    def restore(self, settled: Sequence[int]) -> None:
        """Take over the numbers of a snapshot."""
        self.settled = list(settled)
        self.num_settled, self._first_open = sum(self.settled), 0
