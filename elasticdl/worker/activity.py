"""Labels each second of a worker with what its computing thread does.

While the thread computes, the label is the task's. While it waits, the stages before it give the
reason: the preparing thread waits for parameters, or the feeding thread waits for data or for a
task.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from enum import IntEnum

from elasticdl.job import Label, TaskKind
from elasticdl.observe.labels import LabelClock

LABELS = {
    TaskKind.TRAINING: Label.TRAIN,
    TaskKind.EVALUATION: Label.EVALUATE,
    TaskKind.PREDICTION: Label.EVALUATE,
    TaskKind.METRICS: Label.EVALUATE,
    TaskKind.EXPORT: Label.CHECKPOINT,
    TaskKind.CALLBACKS: Label.TRAIN,
}
"""The label of a worker that computes for a task of this kind."""


class Thread(IntEnum):
    """The threads whose waiting has a label, from the last stage of the pipeline to the first."""

    COMPUTE = 0
    PREPARE = 1
    FEED = 2


class Activity:
    """Labels the time of a worker by what each of its threads does."""

    def __init__(self, labels: LabelClock) -> None:
        """Label the time on a clock."""
        self._labels = labels
        self._lock = threading.Lock()
        # By thread. None: the thread waits for the stage before it.
        self._at: list[Label | None] = [labels.label, None, Label.IDLE]
        self._num_lookups = 0
        self._is_recovering = self._is_forming = False
        self._preparing_thread = 0

    def at(self, thread: Thread, label: Label | None) -> None:
        """Note what a thread does from now on; None: it waits for the stage before it.

        COMPUTE waits for parameters too while what it has computed cannot be handed over, and is
        idle when it has nothing more to do.
        """
        at = self._at
        if at[thread] is label:
            return
        at[thread] = label
        # The value is set before the lock is taken: a thread that begins to wait now reads the new
        # value. So the lock is taken only where the label of the computing thread can change.
        if thread is Thread.COMPUTE or at[Thread.COMPUTE] is None:
            with self._lock:
                self._settle()

    @contextlib.contextmanager
    def waiting_for_parameters(self) -> Iterator[None]:
        """Within the block the computing thread waits for whoever holds the parameters."""
        before = self._at[Thread.COMPUTE]
        self.at(Thread.COMPUTE, Label.WAIT_FOR_PARAMETERS)
        try:
            yield
        finally:
            self.at(Thread.COMPUTE, before)

    def prepare_here(self) -> None:
        """The calling thread is the one that prepares."""
        self._preparing_thread = threading.get_ident()

    @contextlib.contextmanager
    def looking_up(self) -> Iterator[None]:
        """Within the block rows are looked up in the middle of a computation; for any thread.

        A framework may call back from threads of its own. The preparing thread looks up for a
        minibatch that is not computed yet.
        """
        if threading.get_ident() == self._preparing_thread:
            yield
            return
        self._count_lookups(+1)
        try:
            yield
        finally:
            self._count_lookups(-1)

    def _count_lookups(self, more: int) -> None:
        with self._lock:
            self._num_lookups += more
            self._settle()

    def recover(self, is_recovering: bool) -> None:
        """The heartbeat's thread has heard whether parameters are lost and not yet restored."""
        with self._lock:
            self._is_recovering = is_recovering
            self._settle()

    def form(self, is_forming: bool) -> None:
        """The ring's thread is without a world, until it has parameters in another one."""
        with self._lock:
            self._is_forming = is_forming
            self._settle()

    def _settle(self) -> None:
        """Enter the label of the computing thread; the lock is held."""
        compute, prepare, feed = self._at
        label = compute or prepare or feed or Label.IDLE
        if self._num_lookups and compute is not None:
            label = Label.WAIT_FOR_PARAMETERS
        if label is Label.WAIT_FOR_PARAMETERS and self._is_recovering:
            label = Label.RECOVER
        elif label is Label.WAIT_FOR_PARAMETERS and self._is_forming:
            label = Label.RE_FORM
        if label is not self._labels.label:
            self._labels.enter(label)
