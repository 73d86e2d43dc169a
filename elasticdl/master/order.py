"""A cursor in the order of an epoch: it tells the leased tasks and the next task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.order import Order


class TaskCursor:
    """Keeps which training tasks were handed out at least once: all before a cursor in the order.

    The orders of all epochs follow each other. A byte for each task of one epoch tells whether the
    task was handed out, so that no question has to walk the order.
    """

    def __init__(self, per_epoch: int, seed: int, shuffle: bool) -> None:
        """Begin with none."""
        self._per_epoch, self._seed, self._shuffle = per_epoch, seed, shuffle
        self.count = 0
        """Tasks handed out, over all epochs."""
        self.epoch = 0
        """The epoch of the task handed out last."""
        self._handed = bytearray(per_epoch)  # a byte for each task of that epoch
        self._order: Order | None = None
        self._order_epoch = -1
        self._next: int | None = None  # once it was looked up

    @property
    def next_id(self) -> int:
        """The task at the cursor."""
        if self._next is None:
            epoch, place = divmod(self.count, self._per_epoch)
            if self._order is None or epoch != self._order_epoch:
                self._order, self._order_epoch = self._order_of(epoch), epoch
            self._next = epoch * self._per_epoch + self._order.at(place)
        return self._next

    def place_of(self, task_id: int) -> int:
        """Return the place of a task in the orders of all epochs."""
        if task_id == self._next:  # the usual case, which needs no search in the order
            return self.count
        epoch, number = divmod(task_id, self._per_epoch)
        return epoch * self._per_epoch + self._order_of(epoch).place_of(number)

    def hand_out(self) -> None:
        """Move the cursor on over the next task."""
        epoch, number = divmod(self.next_id, self._per_epoch)
        self.count += 1
        self._next = None
        if epoch != self.epoch:
            self.epoch, self._handed = epoch, bytearray(self._per_epoch)
        self._handed[number] = True

    def of_epoch(self, epoch: int) -> NDArray[np.bool_]:
        """Return which tasks of an epoch were handed out; the epoch is not after the cursor's."""
        # An epoch begins when all tasks of the one before are handed out, so only the last epoch
        # needs a byte for each task. The caller changes the array, so it gets a copy.
        if epoch == self.epoch:
            return np.frombuffer(self._handed, np.bool_).copy()
        return np.ones(self._per_epoch, np.bool_)

    def teller(self) -> Callable[[int], bool]:
        """Return what tells of a training task whether it was, up to now."""
        first, handed = self.epoch * self._per_epoch, bytes(self._handed)

        def was_handed_out(task_id: int) -> bool:
            number = task_id - first
            return number < 0 or (number < len(handed) and bool(handed[number]))

        return was_handed_out

    def restore(self, count: int) -> None:
        """Take over the cursor of another master."""
        self.count, self._next = count, None
        self.epoch, place = divmod(max(count - 1, 0), max(self._per_epoch, 1))
        handed = np.zeros(self._per_epoch, np.bool_)
        handed[self._order_of(self.epoch).first(place + 1 if count else 0)] = True
        self._handed = bytearray(handed.tobytes())

    def _order_of(self, epoch: int) -> Order:
        return Order(self._per_epoch, self._seed, epoch, self._shuffle)


class InArrival:
    """Does the work of `TaskCursor` for a stream, whose tasks come in order and never end."""

    epoch = 0

    def __init__(self, known: Callable[[], range]) -> None:
        """Begin with none; `known` says which tasks there are, of those not forgotten."""
        self._known = known
        self.count = 0
        """Tasks handed out."""

    @property
    def next_id(self) -> int:
        """The task at the cursor."""
        return self.count

    def place_of(self, task_id: int) -> int:
        """Return the place of a task."""
        return task_id

    def hand_out(self) -> None:
        """Move the cursor on over the next task."""
        self.count += 1

    def of_epoch(self, epoch: int) -> NDArray[np.bool_]:
        """Return which of the tasks that are known were handed out."""
        known = self._known()
        is_handed: NDArray[np.bool_] = np.arange(known.start, known.stop) < self.count
        return is_handed

    def teller(self) -> Callable[[int], bool]:
        """Return what tells of a training task whether it was, up to now."""
        count = self.count
        return lambda task_id: task_id < count

    def restore(self, count: int) -> None:
        """Take over the cursor of another master."""
        self.count = count
