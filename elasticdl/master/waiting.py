"""The tasks that wait to be leased, and which of them is the next one."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterator

from elasticdl.data.updates import UpdateOrder
from elasticdl.master.order import InArrival, TaskCursor
from elasticdl.master.replays import Replays
from elasticdl.master.suspects import Suspects
from elasticdl.master.tasks import JobTasks
from elasticdl.state.base import Snapshot


class LeaseRules:
    """Rules of other parts about leases. They are asked each time; no answer is journalled."""

    def may_begin(self, num_tasks: int) -> int:
        """Return how many of `num_tasks` training tasks may be begun by now."""
        return num_tasks

    def may_lease(self, task_id: int) -> bool:
        """Whether a task may be leased beside those that are leased now."""
        return True


class WaitingTasks:
    """The tasks that wait to be leased.

    Tasks to replay are leased first. Then come queued tasks (evaluation, prediction, metrics,
    export), then training tasks that came back, then the next task of the order. Queued tasks wait
    until no task is replayed any more. An epoch begins when all tasks of the epoch before are
    handed out; they need not be done.

    In a deterministic job the next training task is the first waiting task in the order of the
    job. No update is made before all of its tasks are there. A job that keeps the order of its
    shards takes the first waiting task, too.

    Attributes:
        handed: The cursor in the order of the training tasks. All before it were leased once.
        replays: Training tasks that are to be done again.
        returned: Training tasks that came back.
        suspects: Tasks of which a worker may have died.
        keeps_order: Whether updates of a shard are made in the order of its tasks.
        is_stopped: Whether no training task is begun any more.
    """

    def __init__(
        self,
        tasks: JobTasks,
        rules: LeaseRules,
        seed: int,
        shuffle: bool,
        updates: UpdateOrder | None = None,
    ) -> None:
        self._tasks, self._rules, self._updates = tasks, rules, updates
        self.handed: TaskCursor | InArrival = (
            InArrival(lambda: tasks.epoch_ids(0))
            if tasks.growing is not None
            else TaskCursor(tasks.per_epoch, seed, shuffle)
        )
        self.keeps_order = tasks.growing is not None and tasks.growing.keeps_order
        # Gives the place by which waiting tasks are sorted; None: they wait as they came.
        self._place_of = updates.place_of if updates else None
        if self.keeps_order:
            self._place_of = self.handed.place_of
        self.returned: deque[int] = deque()
        self._queued: deque[int] = deque()  # all tasks but training
        self.replays = Replays(self._place_of)
        self.suspects = Suspects()
        self.is_stopped = False

    # --- the next task ---------------------------------------------------------------------------

    def next_for(self, held: Collection[int], is_proven: bool) -> int | None:
        """Return the task that would be leased now.

        A suspect goes to a worker that has done another task since it started. A process that
        dies of its first task looks like a process that dies of itself. If only suspects are
        left, any worker that holds nothing else gets one.

        Args:
            held: The tasks that the worker holds.
            is_proven: Whether the worker has done a task.
        """
        if self._updates is not None:
            return self._next_in_order(self._updates.place_of)
        # A worker with a suspect gets no second task: if it dies, the cause is certain.
        if any(task_id in self.suspects for task_id in held):
            return None
        if self.keeps_order:
            # The tasks before the first waiting one are leased, so nobody waits for ever.
            first = self._next_in_order(self.handed.place_of)
            if first is None or not self._rules.may_lease(first):
                return None
            return None if held and first in self.suspects else first
        suspect, usual = self._next_suspect(), self._next_usual()
        if suspect is None or not (is_proven or usual is None):
            return usual
        return None if held else suspect

    def _next_in_order(self, place_of: Callable[[int], int]) -> int | None:
        """Return the next task of a deterministic job, or of one that keeps an order.

        In a deterministic job a worker asks when it has nothing to compute. The gradients of other
        tasks that it holds are computed, and wait for the update. So a suspect need not wait for an
        idle worker.
        """
        num_training = self._tasks.num_training
        others = [task_id for task_id in self.suspects.waiting if task_id >= num_training]
        others += self._queued
        if others and self.replays.is_over:
            return others[0]
        waiting = [task_id for task_id in self.suspects.waiting if task_id < num_training]
        if (replay := self.replays.next_id) is not None:
            waiting.append(replay)
        if self.returned:
            waiting.append(self.returned[0])
        if self._begins:
            waiting.append(self.handed.next_id)
        return min(waiting, key=place_of, default=None)

    def _next_suspect(self) -> int | None:
        for task_id in self.suspects.waiting:
            if task_id < self._tasks.num_training or self.replays.is_over:
                return task_id
        return None

    def _next_usual(self) -> int | None:
        if self.replays:
            return self.replays.next_id
        if self._queued and self.replays.is_over:
            return self._queued[0]
        if self.returned:
            return self.returned[0]
        return self.handed.next_id if self._begins else None

    @property
    def _begins(self) -> bool:
        """Whether a training task may be begun now."""
        # `num_known` grows while a stream is cut into tasks.
        count, num_known = self.handed.count, self._tasks.num_known
        if self.is_stopped or count >= num_known:
            return False
        return count < self._rules.may_begin(num_known)

    # --- questions -------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of tasks that wait, over all epochs."""
        fresh = 0 if self.is_stopped else self._tasks.num_known - self.handed.count
        lines = (self.replays, self.returned, self._queued, self.suspects.waiting)
        return fresh + sum(len(line) for line in lines)

    @property
    def has_fresh(self) -> bool:
        """Whether there are training tasks that were never leased."""
        return self.handed.count < self._tasks.num_known

    @property
    def num_begun_whole(self) -> int:
        """The number of training tasks of all updates that have begun."""
        count = self.handed.count
        return count if self._updates is None else self._updates.whole(count)

    def begun(self) -> Iterator[int]:
        """Iterate over the waiting tasks that are neither queued nor fresh: they were begun."""
        replays = (range(first, stop) for first, stop in self.replays.waiting().tolist())
        return itertools.chain(self.returned, self.suspects.waiting, *replays)

    # --- facts -----------------------------------------------------------------------------------

    def take(self, task_id: int) -> None:
        """Take a task out of its line: it is leased."""
        if task_id in self.suspects:
            self.suspects.waiting.remove(task_id)
        elif self.replays.next_id == task_id:
            self.replays.take()
        elif self._queued and self._queued[0] == task_id:
            self._queued.popleft()
        elif self.returned and self.returned[0] == task_id:
            self.returned.popleft()
        elif task_id == self.handed.next_id:
            self.handed.hand_out()
        else:
            # Only a journal that does not fit this version's order of tasks leads here.
            raise ValueError(f"task {task_id} was not the next one")

    def put_back(self, task_id: int, first: bool) -> None:
        """Have a task wait to be leased again, as the first or the last one of its line."""
        is_training = task_id < self._tasks.num_training
        if task_id in self.suspects:
            line = self.suspects.waiting
        elif self.replays.is_out(task_id):
            self.replays.put_back(task_id, first)
            return
        elif self._place_of is not None and is_training:
            insort(self.returned, task_id, key=self._place_of)
            return
        else:
            line = self.returned if is_training else self._queued
        if first:
            line.appendleft(task_id)
        else:
            line.append(task_id)

    def end(self, task_id: int) -> None:
        """Note that a task is done or set aside, so it is no suspect and no replay any more."""
        self.replays.end(task_id)
        self.suspects.clear(task_id)

    def queue(self, first: int, stop: int) -> None:
        """Add tasks other than training."""
        self._queued.extend(range(first, stop))

    def drop(self, first: int, stop: int) -> None:
        """Forget tasks that were queued."""
        self._queued = deque(id for id in self._queued if not first <= id < stop)
        self.suspects.drop(first, stop)

    def drop_others(self, is_dropped: Callable[[int], bool]) -> None:
        """Forget queued tasks and suspects by a rule."""
        self._queued = deque(id for id in self._queued if not is_dropped(id))
        self.suspects.keep(lambda task_id: not is_dropped(task_id))

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "cursor": self.handed.count,
            "returned": list(self.returned),
            "queued": list(self._queued),
            "replays": self.replays.snapshot(),
            "is_stopped": self.is_stopped,
            **self.suspects.snapshot(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.handed.restore(snapshot["cursor"])
        self.returned = deque(snapshot["returned"])
        self._queued = deque(snapshot["queued"])
        self.replays.restore(snapshot["replays"])
        self.is_stopped = snapshot["is_stopped"]
        self.suspects.restore(snapshot)
