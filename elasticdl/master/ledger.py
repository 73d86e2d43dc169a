"""The ledger: the tasks that are to do, their holders, and the tasks that are done.

The ledger assumes that every task before the cursor is done. It keeps only the exceptions: leases,
tasks that came back, and tasks that were set aside. So its snapshot does not grow with the data.
Its memory grows by a byte for each task of one epoch. No event walks all tasks; the question of a
ps replica that comes back (`lacks`) concerns all tasks, and is computed on arrays.

Parameters that were lost and restored lack tasks that were done. These tasks come back (`replay`)
and are leased before all others. Nothing is evaluated or exported before they are done again. See
docs/designs/ps-recovery.md.

A task of which a worker may have died is a **suspect** until it is done or set aside. A suspect is
leased to a worker that holds nothing else and gets nothing else. See docs/designs/ledger.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.updates import UpdateOrder
from elasticdl.job import Lease, MetricStates, Outcome, Task
from elasticdl.master.epochs import Epochs
from elasticdl.master.journal import Journal
from elasticdl.master.missing_records import NONE_MISSING, Missing, MissingRecords
from elasticdl.master.missing_tasks import Applied, MissingTasks, Uneven, lacks_of_epoch, to_edges
from elasticdl.master.set_aside import SetAside
from elasticdl.master.tasks import JobTasks
from elasticdl.master.uneven_tasks import UnevenTasks
from elasticdl.master.waiting import LeaseRules, WaitingTasks
from elasticdl.state.base import Snapshot


@dataclass(slots=True)
class Held:
    """A lease that has not ended. `request` is the worker's number of the call that it answers."""

    worker_id: int
    number: int
    request: int
    generation: int  # the ledger's, when it was handed out


class Settled(Enum):
    """The effect of a report."""

    DONE = "done"
    REQUEUED = "requeued"  # to be leased again
    QUARANTINED = "quarantined"  # failed too often: set aside, the job will fail
    STALE = "stale"  # of a lease that had ended before: nothing


class Ledger:
    """Hands out tasks and takes them back. A lease and a report take constant time.

    `WaitingTasks` has those that wait, and says which is next.

    generation: counts the calls of `replay`. A lease of an earlier generation cannot end as done,
        because its updates may have been lost since.
    """

    def __init__(
        self,
        tasks: JobTasks,
        journal: Journal,
        seed: int,
        shuffle: bool,
        max_retries: int,
        minibatch_size: int,
        updates: UpdateOrder | None = None,
        rules: LeaseRules | None = None,
    ) -> None:
        self._tasks = tasks
        self._num_training, self._per_epoch = tasks.num_training, tasks.per_epoch
        self._journal = journal
        self._max_retries = max_retries
        self.generation = 0
        self._waiting = WaitingTasks(tasks, rules or LeaseRules(), seed, shuffle, updates)
        self.keeps_order = self._waiting.keeps_order
        self.uneven = UnevenTasks(tasks, minibatch_size)
        self.missing = MissingRecords(lambda task_id: tasks.task(task_id).shard.name)
        self.aside = SetAside(tasks.task)
        self.epochs = Epochs(tasks.num_epochs, tasks.per_epoch)
        self._doing: dict[int, Held] = {}
        self._held: dict[int, set[int]] = {}  # worker -> tasks
        # Only of tasks that came back: the number of the last lease, less the times that it was
        # replayed.
        self._numbers: dict[int, int] = {}
        self._first_known = 0  # training tasks before it are forgotten
        self.num_done = 0  # tasks of any kind
        self.done_by_worker: dict[int, int] = {}
        self.training_records_done = 0
        self.other_records_done = 0  # evaluation and prediction
        appliers: dict[str, Callable[..., None]] = {
            "lease": self._apply_lease,
            "done": self._apply_done,
            "return": self._apply_return,
            "retry": self._apply_retry,
            "suspect": self._waiting.suspects.add,
            "silence": self._waiting.suspects.silence,
            "quarantine": self._apply_quarantine,
            "leave": self._apply_leave,
            "queue": self._waiting.queue,
            "drop": self._waiting.drop,
            "replay": self._apply_replay,
            "stop": self._apply_stop,
        }
        for name, apply in appliers.items():
            journal.handle(name, apply)

    # --- events ----------------------------------------------------------------------------------

    def lease(self, worker_id: int, request: int, states: MetricStates | None = None) -> Lease:
        """Lease the next task; there must be one (`next_id`).

        Args:
            worker_id: The worker that will hold it.
            request: The worker's number of this call.
            states: The sums that a METRICS task turns into numbers.
        """
        task_id = self.next_id(worker_id)
        assert task_id is not None
        number = self._number(task_id) + 1
        place = self.place_of(task_id)
        self._journal.record("lease", task_id, worker_id, number, request)
        task, is_suspect = self._tasks.task(task_id), self.is_suspect(task_id)
        return Lease(task, number, states or {}, is_suspect=is_suspect, place=place)

    def place_of(self, task_id: int) -> int:
        """Return the place of a training task in the order of all epochs; 0 of another task.

        A task that has grown has as many places as tasks that have not.
        """
        if task_id >= self._num_training:
            return 0
        return self._waiting.handed.place_of(task_id) * self._tasks.growth

    def lease_of_request(self, worker_id: int, request: int) -> tuple[int, int] | None:
        """Return (task id, lease number) that an earlier attempt at the same call was given."""
        # The answer to the earlier attempt may have been lost on its way. The worker would then
        # hold a task of which it does not know.
        for task_id in self._held.get(worker_id, ()):
            held = self._doing[task_id]
            if held.request == request:
                return task_id, held.number
        return None

    def report(
        self,
        worker_id: int,
        task_id: int,
        number: int,
        outcome: Outcome,
        message: str = "",
        end_index: int = -1,
        num_examples: int = -1,
        missing: Missing = NONE_MISSING,
        is_last_try: bool = False,
    ) -> Settled:
        """End a lease.

        Args:
            worker_id: The worker that held it.
            task_id: The task.
            number: The number of the lease.
            outcome: The way in which the lease ended.
            message: The message of a failure.
            end_index: Minibatches that the task has, -1 if not known.
            num_examples: Examples in these minibatches. -1: not known, so as many as records.
            missing: The differences between positions and records of the task.
            is_last_try: A failure sets the task aside, whatever tries are left.
        """
        if not self.is_current(worker_id, task_id, number):
            return Settled.STALE
        if outcome is Outcome.DONE and not self.is_void(task_id):
            self._journal.record(
                "done", task_id, *self.uneven.fact_of(task_id, end_index, num_examples, missing)
            )
            return Settled.DONE
        if outcome is Outcome.DONE:
            # A part of it may have been lost meanwhile; the next lease will find out.
            self._journal.record("return", task_id)
            return Settled.REQUEUED
        if outcome is Outcome.RETURNED:
            # The worker leaves, or has lost its parameters: no fault of the task, so no try.
            self._journal.record("return", task_id)
            return Settled.REQUEUED
        if self.aside.tries(task_id) <= self._max_retries and not is_last_try:
            self._journal.record("retry", task_id)
            return Settled.REQUEUED
        self._journal.record("quarantine", task_id, message)
        return Settled.QUARANTINED

    def worker_lost(
        self, worker_id: int, are_suspects: bool = False, was_silent: bool = False
    ) -> list[int]:
        """Take back what a worker holds, to be leased next; return the task ids.

        Args:
            worker_id: The worker that is lost.
            are_suspects: Whether the worker may have died of one of its tasks.
            was_silent: Whether it fell silent. The second time, a task is a suspect.
        """
        suspects = self._waiting.suspects
        tasks = sorted(self._held.get(worker_id, ()), reverse=True)
        for task_id in tasks:  # each goes to the front, so the lowest id ends up first
            is_suspect = are_suspects or (was_silent and suspects.was_silent(task_id))
            if was_silent and not is_suspect:
                self._journal.record("silence", task_id)
            if is_suspect and task_id not in suspects:
                self._journal.record("suspect", task_id)
            self._journal.record("return", task_id)
        return tasks[::-1]

    def blame(self, task_id: int, message: str) -> Settled:
        """End the lease of a task of which its worker died, as if it had reported a failure."""
        if not self.is_suspect(task_id):
            self._journal.record("suspect", task_id)
        held = self._doing[task_id]
        return self.report(held.worker_id, task_id, held.number, Outcome.FAILED, message)

    def queue(self, task_ids: range) -> None:
        """Add tasks other than training, to be leased before any of those."""
        if task_ids:
            self._journal.record("queue", task_ids.start, task_ids.stop)

    def drop(self, task_ids: range) -> None:
        """Forget tasks that were queued; those under lease are forgotten when they end."""
        self._journal.record("drop", task_ids.start, task_ids.stop)

    def lacks(self, applied: Applied | Mapping[int, int]) -> MissingTasks:
        """Return the training tasks that are done, but that restored parameters do not have.

        Args:
            applied: Minibatches that these have, by task.
        """
        found = applied if isinstance(applied, Applied) else Applied.of(applied)
        uneven, positions = Uneven(self.uneven.by_task), self._tasks.training.records_of_all()
        parts = []
        for epoch in range(self._waiting.handed.epoch + 1 if self.num_begun else 0):
            first = self._tasks.epoch_ids(epoch).start
            is_done = self.done_of_epoch(epoch)
            records = positions.copy()
            for task_id in self.missing.of_ranges(np.array([[first, first + len(records)]])):
                records[task_id - first] -= self.missing.by_task[task_id].positions
            parts.append(
                lacks_of_epoch(first, records, is_done, self.uneven.minibatch_size, found, uneven)
            )
        return MissingTasks.together(parts)

    def done_of_epoch(self, epoch: int) -> NDArray[np.bool_]:
        """Return which tasks of an epoch are done: handed out, not waiting, and not held."""
        waiting = self._waiting
        is_done = waiting.handed.of_epoch(epoch)
        first = self._tasks.epoch_ids(epoch).start
        stop = first + len(is_done)
        aside = self.aside.quarantined, self.aside.left
        for task_id in itertools.chain(
            self._doing, *aside, waiting.returned, waiting.suspects.waiting
        ):
            if first <= task_id < stop:
                is_done[task_id - first] = False
        again = waiting.replays.waiting()
        if not len(again):
            return is_done
        ranges = np.clip(again, first, stop) - first
        steps = np.zeros(len(is_done) + 1, np.int64)
        np.add.at(steps, ranges[:, 0], 1)
        np.add.at(steps, ranges[:, 1], -1)
        is_done[np.cumsum(steps[:-1]) > 0] = False
        return is_done

    def is_replayed(self, task_id: int) -> bool:
        """Whether a training task that is leased was done before, and is done again."""
        return self._waiting.replays.is_out(task_id)

    def replay(self, task_ids: Iterable[int]) -> None:
        """Go on with parameters that were lost and restored: these tasks are to be done again."""
        self._journal.record("replay", to_edges(task_ids))

    def stop_training(self) -> None:
        """Begin no training task any more; those that were begun are finished."""
        if not self.is_stopped:
            self._journal.record("stop")

    def leave(self, task_ids: Iterable[int]) -> None:
        """Wait no longer for training tasks that are leased; what is trained of them stays."""
        self._journal.record("leave", sorted(task_ids))

    # --- questions -------------------------------------------------------------------------------

    def next_id(self, worker_id: int | None = None) -> int | None:
        """Return the id of the task that would be leased now, to a worker or to any."""
        if worker_id is None:
            return self._waiting.next_for((), is_proven=True)
        is_proven = self.done_by_worker.get(worker_id, 0) > 0
        return self._waiting.next_for(self.held_by(worker_id), is_proven)

    def is_current(self, worker_id: int, task_id: int, number: int) -> bool:
        """Whether a worker holds a task under this lease."""
        held = self._doing.get(task_id)
        return held is not None and held.number == number and held.worker_id == worker_id

    def is_void(self, task_id: int) -> bool:
        """Whether the lease of a task is of an earlier generation, so it cannot end as done."""
        return self._doing[task_id].generation != self.generation

    def task(self, task_id: int) -> Task:
        """Return a task of the job."""
        return self._tasks.task(task_id)

    def is_suspect(self, task_id: int) -> bool:
        """Whether a worker may have died of a task."""
        return task_id in self._waiting.suspects

    def held_by(self, worker_id: int) -> Collection[int]:
        """Return the tasks that a worker holds."""
        return self._held.get(worker_id, ())

    def leases(self) -> Iterator[tuple[int, Held]]:
        """Iterate over what is leased now: task id, and who holds it."""
        return iter(self._doing.items())

    @property
    def per_epoch(self) -> int:
        """How many training tasks an epoch has."""
        return self._per_epoch

    def open_training(self) -> Iterator[int]:
        """Iterate over the training tasks that are neither done nor set aside.

        Only streams use it, since they have few such tasks at a time.
        """
        yield from self._open_begun()
        yield from range(self.num_begun, self._tasks.num_known)

    def _open_begun(self) -> Iterator[int]:
        for task_id in itertools.chain(self._doing, self._waiting.begun()):
            if task_id < self._num_training:
                yield task_id

    @property
    def num_begun_whole(self) -> int:
        """How many training tasks are begun when each update that has begun has all its tasks."""
        return self._waiting.num_begun_whole

    @property
    def is_at_rest(self) -> bool:
        """Whether each training task that is begun is done, and so are all tasks of its update."""
        is_whole = self.num_begun == self.num_begun_whole
        return is_whole and next(self._open_begun(), None) is None

    @property
    def is_stopped(self) -> bool:
        """Whether no training task is begun any more."""
        return self._waiting.is_stopped

    @property
    def num_doing(self) -> int:
        """How many tasks are leased now."""
        return len(self._doing)

    @property
    def num_todo(self) -> int:
        """How many tasks wait to be leased, over all epochs."""
        return len(self._waiting)

    @property
    def has_fresh(self) -> bool:
        """Whether there are training tasks that were never leased."""
        return self._waiting.has_fresh

    @property
    def is_idle(self) -> bool:
        """Whether nothing is leased, and nothing waits."""
        return not self._doing and not self.num_todo

    @property
    def is_whole(self) -> bool:
        """Whether nothing that was done has to be done again."""
        return self._waiting.replays.is_over

    @property
    def is_trained(self) -> bool:
        """Whether every training task is done or set aside, of those that are begun at all."""
        wanted = self.num_begun if self.is_stopped else self._num_training
        return self.epochs.num_settled == wanted

    def begun(self) -> Callable[[int], bool]:
        """Return a function: whether a training task was ever leased; for the proof at the end."""
        if self.num_begun == self._num_training:
            return lambda task_id: True
        return self._waiting.handed.teller()

    @property
    def held_in_training(self) -> dict[int, int]:
        """The training tasks that are leased, and who holds each."""
        held = self._doing.items()
        return {task: each.worker_id for task, each in held if task < self._num_training}

    @property
    def num_begun(self) -> int:
        """How many training tasks were begun."""
        return self._waiting.handed.count

    # --- facts -----------------------------------------------------------------------------------

    def _apply_lease(self, task_id: int, worker_id: int, number: int, request: int) -> None:
        self._waiting.take(task_id)
        self._doing[task_id] = Held(worker_id, number, request, self.generation)
        held = self._held.get(worker_id)
        if held is None:
            held = self._held[worker_id] = set()
        held.add(task_id)

    def _apply_done(
        self, task_id: int, minibatches: int = -1, examples: int = -1, *missing: int
    ) -> None:
        worker_id = self._end(task_id).worker_id
        self.aside.done(task_id)
        self._waiting.end(task_id)
        self.uneven.done(task_id, minibatches, examples)
        lacking = Missing(*missing)
        self.missing.add(task_id, lacking)
        self.num_done += 1
        self.done_by_worker[worker_id] = self.done_by_worker.get(worker_id, 0) + 1
        if task_id < self._num_training:
            self.epochs.settle(task_id)
            num_records = self._tasks.training.num_records_of(task_id % self._per_epoch)
            num_records -= lacking.positions
            self.training_records_done += num_records
        else:
            self.other_records_done += self._tasks.task(task_id).shard.num_records

    def _apply_return(self, task_id: int) -> None:
        self._come_back(task_id)
        self._waiting.put_back(task_id, first=True)

    def _apply_retry(self, task_id: int) -> None:
        self._come_back(task_id)
        self.aside.failed(task_id)
        # A task that failed goes to the end of its line, so that it holds no other task up.
        self._waiting.put_back(task_id, first=False)

    def _apply_quarantine(self, task_id: int, message: str) -> None:
        self._come_back(task_id)
        self._waiting.end(task_id)
        self.aside.quarantine(task_id, message)
        if task_id < self._num_training:
            self.epochs.settle(task_id)

    def _apply_leave(self, task_ids: Sequence[int]) -> None:
        for task_id in task_ids:
            self._come_back(task_id)
            self._waiting.end(task_id)
            self.aside.left.add(task_id)
            self.epochs.settle(task_id)

    def reopened(self, is_dropped: Callable[[int], bool], tries_again: bool = True) -> None:
        """Try what was set aside again, and end all leases: the processes are gone.

        A part of a fact. Tasks of a stream that are forgotten cannot be tried again: they stay set
        aside.

        Args:
            is_dropped: Whether a task that waits is forgotten: its phase begins anew.
            tries_again: Else what was set aside stays so.
        """
        for task_id in sorted(self._doing, reverse=True):
            self._come_back(task_id)
            self._waiting.put_back(task_id, first=True)
        self._waiting.drop_others(is_dropped)
        if not tries_again:
            return
        for task_id in self.aside.try_again(self._first_known):
            if task_id < self._num_training:
                self.epochs.reopen(task_id)
                self._waiting.put_back(task_id, first=False)

    def _apply_stop(self) -> None:
        self._waiting.is_stopped = True

    def _apply_replay(self, edges: list[int]) -> None:
        # The generation rises even if no task comes back: updates of leases under way may be
        # lost, so none of these leases may end as done.
        self.generation += 1
        ranges = np.array(edges, np.int64).reshape(-1, 2)
        # The lease that ended as done is one above the last that came back: see `_number`.
        self._waiting.replays.add(ranges)
        if not edges:
            return
        first_epoch, counts = self._tasks.count_by_epoch(ranges)
        self.epochs.take_back(first_epoch, counts)
        self.num_done -= sum(counts)
        self.training_records_done -= self._tasks.records_in(ranges) - self.missing.take_back(
            ranges
        )

    def _number(self, task_id: int) -> int:
        """Return the number of the last lease of a task, if it is not under lease now."""
        return self._numbers.get(task_id, 0) + self._waiting.replays.times(task_id)

    def _come_back(self, task_id: int) -> None:
        """End the lease of a task that is not done."""
        replayed = self._waiting.replays.times(task_id)
        self._numbers[task_id] = self._end(task_id).number - replayed

    def _end(self, task_id: int) -> Held:
        held = self._doing.pop(task_id)
        self._held[held.worker_id].discard(task_id)
        return held

    def forget_tasks(self, first: int) -> None:
        """Forget the training tasks before one, which are done for good; a part of a fact."""
        self._first_known = first
        self.aside.forget(first)
        self.missing.forget(first)
        self._waiting.replays.forget(first)
        self.uneven.forget(first)
        self._numbers = {task: n for task, n in self._numbers.items() if task >= first}
        self._waiting.suspects.forget(first)

    @property
    def first_open(self) -> int:
        """The first training task that is neither done nor set aside."""
        return min(self.open_training(), default=self._tasks.num_known)

    def forget_worker(self, worker_id: int) -> None:
        """Forget a worker that has long been dead and holds nothing; a part of a fact."""
        self.done_by_worker.pop(worker_id, None)
        if not self._held.get(worker_id):
            self._held.pop(worker_id, None)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it, but for numbers as keys, which it makes to strings.

        Copies only: with a million tasks the event loop waits some hundredths of a second for it.
        """
        return {
            **self._waiting.snapshot(),
            **self.uneven.snapshot(),
            **self.missing.snapshot(),
            "generation": self.generation,
            "doing": [
                [i, h.worker_id, h.number, h.request, h.generation] for i, h in self._doing.items()
            ],
            "numbers": dict(self._numbers),
            **self.aside.snapshot(),
            "first_known": self._first_known,
            "num_done": self.num_done,
            "done_by_worker": dict(self.done_by_worker),
            "training_settled": list(self.epochs.settled),
            "training_records_done": self.training_records_done,
            "other_records_done": self.other_records_done,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._waiting.restore(snapshot)
        self.uneven.restore(snapshot)
        self.missing.restore(snapshot)
        self.generation = snapshot["generation"]
        self._doing = {i: Held(*held) for i, *held in snapshot["doing"]}
        self._held = {}
        for task_id, held in self._doing.items():
            self._held.setdefault(held.worker_id, set()).add(task_id)
        self._numbers = dict(_by_number(snapshot["numbers"]))
        self.aside.restore(snapshot)
        self._first_known = snapshot.get("first_known", 0)
        self.num_done = snapshot["num_done"]
        self.done_by_worker = dict(_by_number(snapshot["done_by_worker"]))
        self.epochs.restore(snapshot["training_settled"])
        self.training_records_done = snapshot["training_records_done"]
        self.other_records_done = snapshot["other_records_done"]


T = TypeVar("T")


def _by_number(found: Mapping[str, T]) -> Iterator[tuple[int, T]]:
    """Iterate over what was kept by number; JSON has made strings of the numbers."""
    return ((int(number), value) for number, value in found.items())
