"""The life of a lease in a worker, as a state machine: events go in, decisions come out.

Nothing here starts a thread, reads a clock, opens a socket or knows a framework; `worker/loop.py`
has the threads. It tells what happened and does what is decided, one event at a time.

A lease begins in feed. Its minibatches pass through prepare, compute and commit in their order, and
its end passes behind them, so whatever is reported comes after all that it speaks of. A lease that
is **over** (it failed, was given back, or somebody else has its task) has minibatches on their way
still; each stage that meets one drops it.

A **suspect** task may have killed the worker that held it before. The master hands it to a worker
that holds nothing else. Its minibatches go through the pipeline one by one, so that what is
announced last is what is done when the worker dies.
"""

from __future__ import annotations

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
from elasticdl.job import Lease, Outcome, TaskKind, TaskReport
from elasticdl.worker.running import Running

Pull = TypeVar("Pull")


class Stage(Enum):
    """Where in the pipeline an error came up."""

    FEED = "feed"
    PREPARE = "prepare"
    COMPUTE = "compute"
    PUSH_FROM_COMPUTE = "push from compute"  # synchronous training
    COMMIT = "commit"


class Ruling(Enum):
    """What an error means."""

    FAIL = "the task fails"  # the user's code or data; the master tries again or sets it aside
    RETURN = "the lease is given back"  # the next lease goes on where the holders stand
    LOST = "somebody else has the task"  # nothing is to be said
    RECOMPUTE = "the step is computed again, on newer parameters"
    COMMIT_DECIDES = "commit meets the error again, in its order"
    END_WORKER = "the worker ends"  # the task is not at fault


_NOT_THE_TASKS_FAULT = (StoreError, UnavailableError, AuthenticationError)

# The first line that fits counts.
_RULINGS: dict[Stage, tuple[tuple[tuple[type[Exception], ...], Ruling], ...]] = {
    Stage.FEED: (
        ((StaleLeaseError,), Ruling.LOST),
        # Of the holders, who are asked where to begin.
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
        # A replica came back without the minibatches before; or the pull was given up when its
        # connection broke, and what follows is pulled already. The next lease begins there.
        ((GapError, StaleParametersError), Ruling.RETURN),
        # A replica that was restored lacks rows that this pull found before.
        ((MemoryLimitError,), Ruling.FAIL),
        ((Exception,), Ruling.END_WORKER),
    ),
}


def rule(stage: Stage, error: Exception) -> Ruling:
    """Say what an error means that came up in a stage."""
    return next(ruling for kinds, ruling in _RULINGS[stage] if isinstance(error, kinds))


class Arrival(Enum):
    """What compute does with what reaches it."""

    STEP = "compute the minibatch"
    FINISH = "do what the lease needs after its last minibatch"
    PASS = "pass the end of the lease on"
    DROP = "drop the minibatch"


class LeaseProtocol(Generic[Pull]):
    """The leases of one worker.

    With `push_steps` commit keeps minibatches back until so many can be pushed together, or the
    lease ends.

    `may_feed`, `fed`, `may_pull`, `allow`, `landed` and `ends` are called under one lock; all else
    reads or sets one flag.

    A training step is **in flight** from before its pull until its push is acknowledged or it is
    dropped. `pending` is the pull that waits for room; with one step in flight at the most, the
    push that makes room may bring back what it asks for.
    """

    def __init__(self, max_in_flight: int, is_synchronous: bool, push_steps: int = 1) -> None:
        self._max_in_flight = max_in_flight
        self._push_steps = push_steps
        self._is_synchronous = is_synchronous
        self._in_flight: set[tuple[int, int, int]] = set()
        self.pending: Pull | None = None

    @property
    def num_in_flight(self) -> int:
        """How many training steps are in flight."""
        return len(self._in_flight)

    # --- feed ------------------------------------------------------------------------------------

    def asks_where_to_begin(self, lease: Lease) -> bool:
        """Whether the holders of the parameters are asked for the minibatch to begin with.

        A first lease has nothing to go on from, but in synchronous training others wait for it.
        """
        is_training = lease.task.kind is TaskKind.TRAINING
        return is_training and (lease.number > 1 or self._is_synchronous)

    def may_feed(self, running: Running) -> bool:
        """Whether the next minibatch of a lease may be fed, beside those that are on their way."""
        return not (running.lease.is_suspect and running.num_on_the_way)

    def fed(self, running: Running) -> None:
        """A minibatch of a suspect is on its way; of others nobody counts."""
        running.num_on_the_way += 1

    def goes_on(self, running: Running) -> bool:
        """Whether minibatches of a lease are still wanted: to be fed, pulled or handed in."""
        return not running.is_over

    # --- prepare ---------------------------------------------------------------------------------

    def may_pull(self, running: Running, index: int, pending: Pull | None = None) -> bool:
        """Take a training step into flight, if there is room; else its pull is pending.

        Args:
            running: Its lease.
            index: Its minibatch.
            pending: What the push before it may bring back; None: nothing may.
        """
        # Those that wait for others of their push are in flight, and nothing makes room for them.
        waiting = self.steps_of_push(running) - 1
        if len(self._in_flight) >= self._max_in_flight + waiting:
            self.pending = pending
            return False
        self.pending = None
        self._in_flight.add(_step(running, index))
        return True

    def allow(self, max_in_flight: int) -> None:
        """Have so many training steps in flight at the most from here on."""
        self._max_in_flight = max_in_flight

    # --- compute ---------------------------------------------------------------------------------

    def arrives(self, running: Running, report: TaskReport | None) -> Arrival:
        """Decide about what reaches compute: a minibatch, or the end of a lease (`report`)."""
        if report is None:
            return Arrival.DROP if running.is_over else Arrival.STEP
        is_to_finish = report.outcome is Outcome.DONE and not running.is_over
        return Arrival.FINISH if is_to_finish else Arrival.PASS

    def pushes_from_compute(self, running: Running) -> bool:
        """Whether compute pushes: it alone can compute again what came too late for its round."""
        return self._is_synchronous and not running.is_over

    # --- commit ----------------------------------------------------------------------------------

    def steps_of_push(self, running: Running) -> int:
        """Return how many minibatches of a lease are pushed together.

        A first lease alone pushes several. A later one begins where the replica stands that has
        applied the least, and another may have applied half of what would come together.
        """
        is_by_itself = running.lease.number > 1 or running.lease.is_suspect
        return 1 if is_by_itself else self._push_steps

    def landed(self, running: Running, index: int) -> None:
        """A minibatch is through: computed and pushed, or dropped, or failed. There is room."""
        if running.lease.is_suspect:
            running.num_on_the_way -= 1
        self._in_flight.discard(_step(running, index))

    def ends(self, running: Running, report: TaskReport) -> bool:
        """A lease has come to its end; return whether the master is to be told.

        It is told once. That a lease was worked off is not said of one that was over before: then
        somebody else has the task, or its failure or return was reported.
        """
        if running.is_reported or (running.is_over and report.outcome is Outcome.DONE):
            return False
        running.is_over = running.is_reported = True
        return True

    # --- failures --------------------------------------------------------------------------------

    def failed(self, stage: Stage, running: Running, error: Exception) -> Ruling:
        """Something was raised in a stage while it worked on a lease."""
        ruling = rule(stage, error)
        # What feed gave out before it failed is worked off: it is as good as any other.
        if stage is not Stage.FEED and ruling in (Ruling.FAIL, Ruling.RETURN, Ruling.LOST):
            running.is_over = True
        return ruling


def _step(running: Running, index: int) -> tuple[int, int, int]:
    return running.lease.task.id, running.lease.number, index
