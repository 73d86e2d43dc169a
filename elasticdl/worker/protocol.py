"""The life of a lease in a worker, as a state machine: events go in, decisions come out.

Nothing here starts a thread, reads a clock, opens a socket or knows a framework; `worker/loop.py`
has the threads. It tells what happened and does what is decided, one event at a time.

A lease begins in feed. Its minibatches pass through prepare, compute and commit in their order. The
end of the lease follows them, so a report comes after all minibatches that it counts. A lease is
**over** if it failed, was given back, or another worker has its task. Some of its minibatches are
still in the pipeline then; each stage that meets one drops it.

A **suspect** task may have killed the worker that held it before. The master gives it to a worker
that holds nothing else. Its minibatches go through the pipeline one by one. So when the worker
dies, the minibatch that was announced last is the one that it computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Generic, TypeVar

from elasticdl.errors import (
    AuthenticationError,
    GapError,
    MemoryLimitError,
    OutOfTurnError,
    StaleLeaseError,
    StaleParametersError,
    StoreError,
    UnavailableError,
)
from elasticdl.job import Finished, Lease, Outcome, TaskKind, TaskReport, Wait
from elasticdl.worker.running import Running

Pull = TypeVar("Pull")


class Stage(Enum):
    """The stage of the pipeline in which an error was raised."""

    FEED = "feed"
    PREPARE = "prepare"
    COMPUTE = "compute"
    PUSH_FROM_COMPUTE = "push from compute"  # synchronous training
    COMMIT = "commit"


class Ruling(Enum):
    """The meaning of an error."""

    FAIL = "the task fails"  # the user's code or data; the master tries again or sets it aside
    RETURN = "the lease is given back"  # the next lease goes on where the holders stand
    LOST = "somebody else has the task"  # nothing is to be said
    RECOMPUTE = "the step is computed again, on newer parameters"
    COMMIT_DECIDES = "commit meets the error again, in its order"
    END_WORKER = "the worker ends"  # the task is not at fault


# Errors of the holders of parameters. They say nothing about the task, so it must not be counted as
# failed.
_NOT_THE_TASKS_FAULT = (StoreError, UnavailableError, AuthenticationError)

# The first line that fits counts.
_RULINGS: dict[Stage, tuple[tuple[tuple[type[Exception], ...], Ruling], ...]] = {
    Stage.FEED: (
        ((StaleLeaseError,), Ruling.LOST),
        # The holders of parameters raise these when they are asked where to begin.
        ((GapError,), Ruling.RETURN),
        (_NOT_THE_TASKS_FAULT, Ruling.END_WORKER),
        ((Exception,), Ruling.FAIL),
    ),
    Stage.PREPARE: (
        ((OutOfTurnError,), Ruling.RETURN),
        ((MemoryLimitError,), Ruling.FAIL),
        (_NOT_THE_TASKS_FAULT, Ruling.END_WORKER),
        ((Exception,), Ruling.FAIL),
    ),
    Stage.COMPUTE: (
        ((OutOfTurnError,), Ruling.RETURN),
        (_NOT_THE_TASKS_FAULT, Ruling.END_WORKER),
        ((Exception,), Ruling.FAIL),
    ),
    Stage.PUSH_FROM_COMPUTE: (
        ((StaleParametersError,), Ruling.RECOMPUTE),
        ((StaleLeaseError,), Ruling.LOST),
        ((GapError,), Ruling.COMMIT_DECIDES),
        ((MemoryLimitError,), Ruling.FAIL),  # as in commit
        (_NOT_THE_TASKS_FAULT, Ruling.END_WORKER),
        ((Exception,), Ruling.FAIL),
    ),
    Stage.COMMIT: (
        ((StaleLeaseError,), Ruling.LOST),
        # A replica came back without the minibatches before. Or a pull was given up when its
        # connection broke, and later minibatches are pulled already. The next lease begins at the
        # lost minibatch.
        ((GapError, StaleParametersError), Ruling.RETURN),
        # A replica that was restored lacks rows that were there when this step pulled them.
        ((MemoryLimitError,), Ruling.FAIL),
        ((Exception,), Ruling.END_WORKER),
    ),
}


def rule(stage: Stage, error: Exception) -> Ruling:
    """Return the meaning of an error that was raised in a stage."""
    return next(ruling for kinds, ruling in _RULINGS[stage] if isinstance(error, kinds))


class Arrival(Enum):
    """The action of compute for an item that reaches it."""

    STEP = "compute the minibatch"
    FINISH = "do what the lease needs after its last minibatch"
    PASS = "pass the end of the lease on"
    DROP = "drop the minibatch"


class LeaseProtocol(Generic[Pull]):
    """The leases of one worker.

    With `push_steps`, commit keeps computed minibatches until it has this many, or the lease ends.
    It then pushes their sum. With `exchange_minibatches`, so many are pulled together, and pushed
    in one frame, each as an update of its own. A pull that waits for room has what is kept pushed
    as soon as that makes the room, so that it is made while the rest is computed.

    `may_feed`, `fed`, `may_pull`, `is_to_push`, `allow`, `landed`, `ends` and all that concerns the
    master are called under one lock; the others read or set one flag.

    A report that may wait is **kept** for the next request for a task, so that both are one call.
    None is kept while the worker asks or has nothing to feed: the next request may be far away.

    A training step is **in flight** from before its pull until its push is acknowledged or the step
    is dropped. `pending` is the pull that waits for room. With at most one step in flight, the push
    that makes room may bring back the parameters of `pending`.
    """

    def __init__(
        self,
        max_in_flight: int,
        is_synchronous: bool,
        push_steps: int = 1,
        exchange_minibatches: int = 1,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._push_steps = push_steps
        self._exchange_minibatches = exchange_minibatches
        self._num_waiting = 0  # steps of the pull that waits for room
        self._is_synchronous = is_synchronous
        self._in_flight: set[tuple[int, int, int]] = set()
        self._kept_reports: list[TaskReport] = []
        self._will_ask = False
        self.pending: Pull | None = None

    @property
    def num_in_flight(self) -> int:
        """Return the number of training steps in flight."""
        return len(self._in_flight)

    # --- the master ------------------------------------------------------------------------------

    def asks(self) -> list[TaskReport]:
        """Note that a task is asked for; return the reports that go with the request."""
        self._will_ask = False
        return self.take_kept()

    def answered(self, answer: Lease | Wait | Finished) -> None:
        """Note the answer. After a lease is fed, the worker asks again."""
        self._will_ask = isinstance(answer, Lease)

    def keeps(self, running: Running, report: TaskReport) -> bool:
        """Keep a report for the next request; return False if it must be told at once."""
        may_wait = running.lease.report_may_wait and report.outcome is Outcome.DONE
        if may_wait and self._will_ask:
            self._kept_reports.append(report)
            return True
        return False

    def take_kept(self) -> list[TaskReport]:
        """Return the reports that are kept, and keep them no longer."""
        kept, self._kept_reports = self._kept_reports, []
        return kept

    # --- feed ------------------------------------------------------------------------------------

    def asks_where_to_begin(self, lease: Lease) -> bool:
        """Return whether to ask the holders of the parameters at which minibatch to begin.

        A first lease begins at 0. In synchronous training it asks too, since that makes other
        workers wait for it.
        """
        is_training = lease.task.kind is TaskKind.TRAINING
        return is_training and (lease.number > 1 or self._is_synchronous)

    def may_feed(self, running: Running) -> bool:
        """Return whether the next minibatch of a lease may be fed, beside those in the pipeline."""
        return not (running.lease.is_suspect and running.num_on_the_way)

    def fed(self, running: Running) -> None:
        """Count a minibatch of a suspect task as in the pipeline; other tasks are not counted."""
        running.num_on_the_way += 1

    def goes_on(self, running: Running) -> bool:
        """Return whether minibatches of a lease are still fed, pulled and handed in."""
        return not running.is_over

    # --- prepare ---------------------------------------------------------------------------------

    def steps_of_pull(self, running: Running) -> int:
        """Return how many minibatches of a lease are pulled together at most."""
        is_alone = running.lease.is_suspect or not running.is_training
        return 1 if is_alone else self._exchange_minibatches

    def may_pull(
        self, running: Running, indices: Sequence[int], pending: Pull | None = None
    ) -> bool:
        """Take training steps into flight if there is room; else keep their pull as pending.

        Args:
            running: The lease of the steps.
            indices: The minibatches that are pulled together.
            pending: The pull that the push before may answer; None: there is none.
        """
        has_room = self._has_room(running, len(indices))
        self._num_waiting = 0 if has_room else len(indices)
        self.pending = None if has_room else pending
        if not has_room:
            return False
        self._in_flight.update(_step(running, index) for index in indices)
        return True

    def _has_room(self, running: Running, num_steps: int, num_kept: int = 0) -> bool:
        """Return whether steps may be pulled, once as many as are kept are pushed."""
        # Steps that commit keeps for a later push are in flight too. They free no place by
        # themselves, so the limit is raised by their number.
        limit = self._max_in_flight + self.steps_of_push(running) - 1
        return len(self._in_flight) - num_kept + num_steps <= limit

    def allow(self, max_in_flight: int) -> None:
        """Allow this many training steps in flight from now on."""
        self._max_in_flight = max_in_flight

    # --- compute ---------------------------------------------------------------------------------

    def arrives(self, running: Running, report: TaskReport | None) -> Arrival:
        """Decide what to do with a minibatch, or with the end of a lease (`report`), at compute."""
        if report is None:
            return Arrival.DROP if running.is_over else Arrival.STEP
        is_to_finish = report.outcome is Outcome.DONE and not running.is_over
        return Arrival.FINISH if is_to_finish else Arrival.PASS

    def pushes_from_compute(self, running: Running) -> bool:
        """Return whether compute pushes: it alone can compute a step again that came too late."""
        return self._is_synchronous and not running.is_over

    # --- commit ----------------------------------------------------------------------------------

    def steps_of_push(self, running: Running) -> int:
        """Return how many minibatches of a lease are pushed together.

        Only a first lease pushes a sum. A later lease begins at the replica that has applied the
        fewest minibatches. Another replica may have applied a part of the minibatches of one sum.
        """
        if running.lease.is_suspect:
            return 1
        sum_of = 1 if running.lease.number > 1 else self._push_steps
        return max(sum_of, self._exchange_minibatches)

    def is_to_push(self, running: Running, num_kept: int) -> bool:
        """Return whether commit pushes what it keeps of a lease."""
        most = self.steps_of_push(running)
        if num_kept >= most or not self.goes_on(running):
            return True
        if self._exchange_minibatches == 1:
            return False
        waiting = self._num_waiting
        is_waiting = waiting > 0 and not self._has_room(running, waiting)
        # Nothing that is in flight may wait for a pull that waits for it.
        lets_pull = is_waiting and self._has_room(running, waiting, num_kept)
        return lets_pull or num_kept == len(self._in_flight)

    def landed(self, running: Running, index: int) -> None:
        """Note that a minibatch was computed and pushed, was dropped, or failed: there is room."""
        if running.lease.is_suspect:
            running.num_on_the_way -= 1
        self._in_flight.discard(_step(running, index))

    def ends(self, running: Running, report: TaskReport) -> bool:
        """Note that a lease has ended; return whether the master must be told.

        The master is told once. A lease that was over before is not reported as done: another
        worker has the task, or the failure or return of the lease was reported.
        """
        if running.is_reported or (running.is_over and report.outcome is Outcome.DONE):
            return False
        running.is_over = running.is_reported = True
        return True

    # --- failures --------------------------------------------------------------------------------

    def failed(self, stage: Stage, running: Running, error: Exception) -> Ruling:
        """Decide what an error means that a stage raised while it worked on a lease."""
        ruling = rule(stage, error)
        # Minibatches that feed made before it failed are still trained: they are good.
        if stage is not Stage.FEED and ruling in (Ruling.FAIL, Ruling.RETURN, Ruling.LOST):
            running.is_over = True
        return ruling


def _step(running: Running, index: int) -> tuple[int, int, int]:
    return running.lease.task.id, running.lease.number, index
