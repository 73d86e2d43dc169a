"""When a job need not wait any longer for the last few workers (`--finish_rate`)."""

from __future__ import annotations

from collections.abc import Collection

_TIMES = 2.0
"""A worker is a straggler that has held its task for so many times what a task takes."""
_NEWEST_WEIGHT = 0.1  # of the newest task in what one takes


class Stragglers:
    """How long tasks take. It knows no clock, and nothing that another master must know."""

    def __init__(self, finish_rate: float) -> None:
        """Begin with nothing known.

        Args:
            finish_rate: Which part of the workers must have nothing left; 1: all.
        """
        self._finish_rate = finish_rate
        self._began: dict[int, float] = {}
        self._seconds: float | None = None  # that a task takes

    @property
    def are_awaited(self) -> bool:
        """Whether the job waits for all workers."""
        return self._finish_rate >= 1.0

    def leased(self, task_id: int, now: float) -> None:
        """A training task was leased."""
        self._began[task_id] = now

    def ended(self, task_id: int, now: float, is_done: bool) -> None:
        """A lease of a training task has ended."""
        began = self._began.pop(task_id, None)
        if began is None or not is_done:
            return
        taken = now - began
        before = taken if self._seconds is None else self._seconds
        self._seconds = before + _NEWEST_WEIGHT * (taken - before)

    def may_be_left(
        self, num_workers: int, num_busy: int, held: Collection[int], now: float
    ) -> bool:
        """Whether the tasks that are still held may be left, if no other is to be done.

        Args:
            num_workers: Those that are there.
            num_busy: Those of them that hold a task.
            held: The tasks that they hold.
            now: The time.
        """
        if self.are_awaited or not held or self._seconds is None:
            return False
        if num_workers - num_busy < self._finish_rate * num_workers:
            return False
        began = [self._began.setdefault(task_id, now) for task_id in held]
        return now - max(began) >= _TIMES * self._seconds
