"""Decides which training tasks make which update of a deterministic job."""

from __future__ import annotations

from functools import lru_cache

from elasticdl.config import TrainingSection
from elasticdl.data.order import Order


class UpdateOrder:
    """Updates of a fixed number of tasks, in the order in which an epoch gives tasks out.

    An update has tasks of one epoch only, so the last update of an epoch may have fewer. Master and
    workers compute the same order, so they need not exchange it.
    """

    def __init__(self, per_epoch: int, tasks_per_update: int, seed: int, shuffle: bool) -> None:
        """Order the tasks.

        Args:
            per_epoch: The number of tasks of an epoch.
            tasks_per_update: The number of tasks of an update.
            seed: The seed of the order.
            shuffle: Whether the order is drawn; else tasks follow their numbers.
        """
        self._per_epoch, self._per_update = per_epoch, tasks_per_update
        self._updates_per_epoch = -(-per_epoch // tasks_per_update)
        # At the border of two epochs, tasks of both are asked for in turn.
        self._order_of = lru_cache(2)(lambda epoch: Order(per_epoch, seed, epoch, shuffle))

    @classmethod
    def of(cls, training: TrainingSection, per_epoch: int) -> UpdateOrder | None:
        """Return the order of a job; None if it is not deterministic, or trains nothing."""
        per_update = training.tasks_per_update
        if not training.deterministic or per_update is None or not per_epoch:
            return None
        return cls(per_epoch, per_update, training.seed, training.shuffle_tasks)

    def place_of(self, task_id: int) -> int:
        """Return the place of a training task in the order of the whole job, from 0."""
        epoch, number = divmod(task_id, self._per_epoch)
        return epoch * self._per_epoch + self._order_of(epoch).place_of(number)

    def update_of(self, task_id: int) -> int:
        """Return the update that a training task is part of, from 0."""
        epoch, place = divmod(self.place_of(task_id), self._per_epoch)
        return epoch * self._updates_per_epoch + place // self._per_update

    def whole(self, count: int) -> int:
        """Return how many tasks the whole updates have that contain the first `count` tasks."""
        epoch, place = divmod(count, self._per_epoch)
        updates = -(-place // self._per_update)
        return epoch * self._per_epoch + min(updates * self._per_update, self._per_epoch)

    def tasks_of(self, update: int) -> list[int]:
        """Return the tasks of an update, in their order."""
        epoch, number = divmod(update, self._updates_per_epoch)
        first = number * self._per_update
        places = range(first, min(first + self._per_update, self._per_epoch))
        order = self._order_of(epoch)
        return [epoch * self._per_epoch + order.at(place) for place in places]
