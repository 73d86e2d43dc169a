"""The ledger: which tasks are still to do, who holds which, and what is done.

It holds only what differs from "every task of the order before the cursor is done": the leases,
the tasks that came back, and those set aside. So its snapshot does not grow with the data, and of
its memory only the order of one epoch does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from elasticdl.job import Lease, MetricStates, Outcome
from elasticdl.master.journal import Journal
from elasticdl.master.tasks import JobTasks


@dataclass(slots=True)
class Held:
    """A lease that has not ended. `request` is the worker's number of the call that it answers."""

    worker_id: int
    number: int
    request: int


class Settled(Enum):
    """What a report did."""

    DONE = "done"
    REQUEUED = "requeued"  # to be leased again
    QUARANTINED = "quarantined"  # failed too often: set aside, the job will fail
    STALE = "stale"  # of a lease that had ended before: nothing


class Ledger:
    """Hands out tasks and takes them back. Each call takes constant time.

    What is leased next: queued tasks (evaluation, prediction, metrics, export), then training
    tasks that came back, then the next one of the order. An epoch does not wait for the one
    before to be complete, only for it to be handed out.
    """

    def __init__(
        self, tasks: JobTasks, journal: Journal, seed: int, shuffle: bool, max_retries: int
    ) -> None:
        self._tasks = tasks
        self._num_training, self._per_epoch = tasks.num_training, tasks.per_epoch
        self._journal = journal
        self._seed = seed
        self._shuffle = shuffle
        self._max_retries = max_retries
        self._cursor = 0  # training tasks handed out at least once, over all epochs
        self._order: Sequence[int] = ()  # of the epoch at the cursor,
        self._order_start = 0  # which began there
        self._returned: deque[int] = deque()  # training tasks that came back
        self._queued: deque[int] = deque()  # all other tasks, not leased
        self._doing: dict[int, Held] = {}
        self._held: dict[int, set[int]] = {}  # worker -> tasks
        # Only of tasks that came back: the number of the last lease, and how often it failed.
        self._numbers: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        self.quarantined: dict[int, str] = {}
        self.num_done = 0  # tasks of any kind
        self.done_by_worker: dict[int, int] = {}
        self.training_settled = [0] * tasks.num_epochs  # tasks done or set aside, by epoch
        self.training_records_done = 0
        self.other_records_done = 0  # evaluation and prediction
        appliers: dict[str, Callable[..., None]] = {
            "lease": self._apply_lease,
            "done": self._apply_done,
            "return": self._apply_return,
            "retry": self._apply_retry,
            "quarantine": self._apply_quarantine,
            "queue": self._apply_queue,
            "drop": self._apply_drop,
        }
        for name, apply in appliers.items():
            journal.handle(name, apply)

    # --- events ----------------------------------------------------------------------------------

    def lease(self, worker_id: int, request: int, states: MetricStates | None = None) -> Lease:
        """Lease the next task; there must be one (`next_id`).

        Args:
            worker_id: Who will hold it.
            request: The worker's number of this call.
            states: For a METRICS task.
        """
        task_id = self.next_id()
        assert task_id is not None
        number = self._numbers.get(task_id, 0) + 1
        self._journal.record("lease", task_id, worker_id, number, request)
        task = self._tasks.task(task_id)
        return Lease(task, number, states) if states else Lease(task, number)

    def lease_of_request(self, worker_id: int, request: int) -> tuple[int, int] | None:
        """Return (task id, lease number) that an earlier attempt at the same call was given."""
        for task_id in self._held.get(worker_id, ()):
            held = self._doing[task_id]
            if held.request == request:
                return task_id, held.number
        return None

    def report(
        self, worker_id: int, task_id: int, number: int, outcome: Outcome, message: str = ""
    ) -> Settled:
        """End a lease."""
        if not self.is_current(worker_id, task_id, number):
            return Settled.STALE
        if outcome is Outcome.DONE:
            self._journal.record("done", task_id)
            return Settled.DONE
        if outcome is Outcome.RETURNED:
            self._journal.record("return", task_id)
            return Settled.REQUEUED
        if self._failures.get(task_id, 0) < self._max_retries:
            self._journal.record("retry", task_id)
            return Settled.REQUEUED
        self._journal.record("quarantine", task_id, message)
        return Settled.QUARANTINED

    def worker_lost(self, worker_id: int) -> list[int]:
        """Take back what a worker holds, to be leased next; return the task ids."""
        tasks = sorted(self._held.get(worker_id, ()), reverse=True)
        for task_id in tasks:  # each to the front, so the lowest ends up first
            self._journal.record("return", task_id)
        return tasks[::-1]

    def queue(self, task_ids: range) -> None:
        """Add tasks other than training, to be leased before any of those."""
        if task_ids:
            self._journal.record("queue", task_ids.start, task_ids.stop)

    def drop(self, task_ids: range) -> None:
        """Forget tasks that were queued; those under lease are forgotten when they end."""
        self._journal.record("drop", task_ids.start, task_ids.stop)

    # --- questions -------------------------------------------------------------------------------

    def next_id(self) -> int | None:
        """Return the id of the task that would be leased now."""
        if self._queued:
            return self._queued[0]
        if self._returned:
            return self._returned[0]
        if self._cursor == self._num_training:
            return None
        return self._at_cursor()

    def is_current(self, worker_id: int, task_id: int, number: int) -> bool:
        """Whether a worker holds a task under this lease."""
        held = self._doing.get(task_id)
        return held is not None and held.number == number and held.worker_id == worker_id

    def leases(self) -> Iterator[tuple[int, Held]]:
        """Iterate over what is leased now: task id, and who holds it."""
        return iter(self._doing.items())

    @property
    def num_doing(self) -> int:
        """How many tasks are leased now."""
        return len(self._doing)

    @property
    def num_todo(self) -> int:
        """How many tasks wait to be leased, over all epochs."""
        fresh = self._num_training - self._cursor
        return fresh + len(self._returned) + len(self._queued)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is leased, and nothing waits."""
        return not self._doing and not self.num_todo

    @property
    def is_trained(self) -> bool:
        """Whether every training task is done or set aside."""
        return sum(self.training_settled) == self._num_training

    @property
    def epoch(self) -> int:
        """The first epoch that is not complete; the last one when all are."""
        for epoch, settled in enumerate(self.training_settled):
            if settled < self._per_epoch:
                return epoch
        return max(self._tasks.num_epochs - 1, 0)

    # --- facts -----------------------------------------------------------------------------------

    def _apply_lease(self, task_id: int, worker_id: int, number: int, request: int) -> None:
        if self._queued and self._queued[0] == task_id:
            self._queued.popleft()
        elif self._returned and self._returned[0] == task_id:
            self._returned.popleft()
        elif task_id == self._at_cursor():
            self._cursor += 1
        else:
            raise ValueError(f"task {task_id} was not the next one")
        self._doing[task_id] = Held(worker_id, number, request)
        held = self._held.get(worker_id)
        if held is None:
            held = self._held[worker_id] = set()
        held.add(task_id)

    def _apply_done(self, task_id: int) -> None:
        worker_id = self._end(task_id).worker_id
        self._failures.pop(task_id, None)
        self.num_done += 1
        self.done_by_worker[worker_id] = self.done_by_worker.get(worker_id, 0) + 1
        if task_id < self._num_training:
            epoch, number = divmod(task_id, self._per_epoch)
            self.training_settled[epoch] += 1
            self.training_records_done += self._tasks.training.num_records_of(number)
        else:
            self.other_records_done += self._tasks.task(task_id).shard.num_records

    def _apply_return(self, task_id: int) -> None:
        self._numbers[task_id] = self._end(task_id).number
        self._line(task_id).appendleft(task_id)

    def _apply_retry(self, task_id: int) -> None:
        self._numbers[task_id] = self._end(task_id).number
        self._failures[task_id] = self._failures.get(task_id, 0) + 1
        self._line(task_id).append(task_id)

    def _apply_quarantine(self, task_id: int, message: str) -> None:
        self._numbers[task_id] = self._end(task_id).number
        self.quarantined[task_id] = message
        if task_id < self._num_training:
            self.training_settled[task_id // self._per_epoch] += 1

    def _apply_queue(self, first: int, stop: int) -> None:
        self._queued.extend(range(first, stop))

    def _apply_drop(self, first: int, stop: int) -> None:
        self._queued = deque(id for id in self._queued if not first <= id < stop)

    def _end(self, task_id: int) -> Held:
        held = self._doing.pop(task_id)
        self._held[held.worker_id].discard(task_id)
        return held

    def _line(self, task_id: int) -> deque[int]:
        return self._returned if task_id < self._num_training else self._queued

    # --- order and snapshot ----------------------------------------------------------------------

    def _at_cursor(self) -> int:
        position = self._cursor - self._order_start
        if not 0 <= position < len(self._order):
            epoch, position = divmod(self._cursor, self._per_epoch)
            self._order_start = self._cursor - position
            self._order = self._ids_in_order(epoch)
        return self._order[position]

    def _ids_in_order(self, epoch: int) -> Sequence[int]:
        ids = self._tasks.epoch_ids(epoch)
        if not self._shuffle:
            return ids
        generator = np.random.default_rng([self._seed, epoch])
        order: list[int] = (ids.start + generator.permutation(len(ids))).tolist()
        return order

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "cursor": self._cursor,
            "returned": list(self._returned),
            "queued": list(self._queued),
            "doing": [[i, h.worker_id, h.number, h.request] for i, h in self._doing.items()],
            "numbers": [list(item) for item in self._numbers.items()],
            "failures": [list(item) for item in self._failures.items()],
            "quarantined": [list(item) for item in self.quarantined.items()],
            "num_done": self.num_done,
            "done_by_worker": [list(item) for item in self.done_by_worker.items()],
            "training_settled": list(self.training_settled),
            "training_records_done": self.training_records_done,
            "other_records_done": self.other_records_done,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self._cursor = snapshot["cursor"]
        self._returned = deque(snapshot["returned"])
        self._queued = deque(snapshot["queued"])
        self._doing = {i: Held(*held) for i, *held in snapshot["doing"]}
        self._held = {}
        for task_id, held in self._doing.items():
            self._held.setdefault(held.worker_id, set()).add(task_id)
        self._numbers = dict(snapshot["numbers"])
        self._failures = dict(snapshot["failures"])
        self.quarantined = dict(snapshot["quarantined"])
        self.num_done = snapshot["num_done"]
        self.done_by_worker = dict(snapshot["done_by_worker"])
        self.training_settled = list(snapshot["training_settled"])
        self.training_records_done = snapshot["training_records_done"]
        self.other_records_done = snapshot["other_records_done"]
