"""What the computing thread of a worker is at, second by second.

While it computes, that is known. While it waits, those before it in the pipeline say for what: the
thread that prepares for parameters; else the one that feeds, for data, or for a task.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from elasticdl.job import Label, TaskKind
from elasticdl.observe.labels import LabelClock

_LABELS = {
    TaskKind.TRAINING: Label.TRAIN,
    TaskKind.EVALUATION: Label.EVALUATE,
    TaskKind.PREDICTION: Label.EVALUATE,
    TaskKind.METRICS: Label.EVALUATE,
    TaskKind.EXPORT: Label.CHECKPOINT,
    TaskKind.CALLBACKS: Label.TRAIN,
}


class Activity:
    """Labels the time of a worker. Each method is for the thread that it names."""

    def __init__(self, labels: LabelClock) -> None:
        """Label the time on a clock."""
        self._labels = labels
        self._lock = threading.Lock()
        # What each thread is at. None: it waits for the one before it.
        self._compute: Label | None = labels.label
        self._kind: TaskKind | None = None
        self._label_of_kind: Label | None = None
        self._prepare: Label | None = None
        self._feed = Label.IDLE
        self._num_lookups = 0
        self._is_recovering = self._is_forming = False
        self._preparing_thread = 0

    # --- the computing thread --------------------------------------------------------------------

    def compute(self, kind: TaskKind) -> None:
        """It computes for a task of this kind."""
        if kind is not self._kind:  # to look a label up takes longer than all else here
            self._kind, self._label_of_kind = kind, _LABELS[kind]
        self._set_compute(self._label_of_kind)

    def hand_over(self) -> None:
        """It has computed, and waits until the gradients before are on their way."""
        self._set_compute(Label.WAIT_FOR_PARAMETERS)

    def wait(self) -> None:
        """It waits for the next minibatch."""
        self._set_compute(None)

    def end(self) -> None:
        """It has nothing more to do."""
        self._set_compute(Label.IDLE)

    @contextlib.contextmanager
    def waiting_for_parameters(self) -> Iterator[None]:
        """Within the block it waits for whoever holds the parameters."""
        before = self._compute
        self._set_compute(Label.WAIT_FOR_PARAMETERS)
        try:
            yield
        finally:
            self._set_compute(before)

    def _set_compute(self, label: Label | None) -> None:
        with self._lock:
            self._compute = label
            self._settle()

    # --- the others ------------------------------------------------------------------------------

    def prepare_here(self) -> None:
        """The calling thread is the one that prepares."""
        self._preparing_thread = threading.get_ident()

    def prepare(self, label: Label | None) -> None:
        """The preparing thread is at this; None: it waits for the one that feeds."""
        self._prepare = label
        self._upstream_changed()

    def feed(self, label: Label) -> None:
        """The feeding thread is at this."""
        self._feed = label
        self._upstream_changed()

    def _upstream_changed(self) -> None:
        # Whoever begins to wait at this moment reads what was set before.
        if self._compute is None:
            with self._lock:
                self._settle()

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
        label = self._compute or self._prepare or self._feed
        if self._num_lookups and self._compute is not None:
            label = Label.WAIT_FOR_PARAMETERS
        if label is Label.WAIT_FOR_PARAMETERS and self._is_recovering:
            label = Label.RECOVER
        elif label is Label.WAIT_FOR_PARAMETERS and self._is_forming:
            label = Label.RE_FORM
        self._labels.enter(label)
