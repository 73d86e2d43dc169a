"""The user's callbacks: when they are due, what they remember, and what they have decided.

Only workers have the framework, and none of them lives as long as the job. So a CALLBACKS task has
whichever worker leases it make the callbacks anew, give them back what they remembered, and call
them; what they remember then is a fact of the journal.
"""

from __future__ import annotations

from typing import Any

from elasticdl.job import CallbackCall, CallbackResult, Moment, MomentKind, Task
from elasticdl.master.journal import Journal


class Callbacks:
    """One CALLBACKS task at a time, in the order of what happened."""

    def __init__(self, journal: Journal, num_epochs: int) -> None:
        self._journal = journal
        self._num_epochs = num_epochs
        self._due: list[tuple[int, Moment]] = []  # by task id; the first one is queued
        self._state = ""
        self._has_begun = self._has_ended = False
        self._epochs_ended = 0
        self._sums = [[0.0, 0.0] for _ in range(num_epochs)]  # records and their summed loss
        self.is_declared = False
        self.learning_rate: float | None = None
        self.stop_reason = ""
        journal.handle("callbacks", self._apply_declared)
        journal.handle("callbacks due", self._apply_due)
        journal.handle("callbacks ran", self._apply_ran)
        journal.handle("callbacks dropped", self._apply_dropped)
        journal.handle("epoch loss", self._apply_epoch_loss)

    # --- events ----------------------------------------------------------------------------------

    def declare(self) -> None:
        """A worker says that the model file has callbacks."""
        if not self.is_declared:
            self._journal.record("callbacks")

    def trained(self, task: Task, num_records: int, loss_sum: float) -> None:
        """Take in the end of a lease of a training task."""
        if self.is_declared and num_records:
            self._journal.record("epoch loss", task.epoch, int(num_records), float(loss_sum))

    def happened(self, task_id: int, moment: Moment) -> bool:
        """Something that callbacks are called for has happened; return whether to queue its task.

        Args:
            task_id: The CALLBACKS task of that moment.
            moment: What it was.
        """
        if not self.is_declared:
            return False
        logs = {name: float(value) for name, value in moment.logs.items()}
        self._journal.record("callbacks due", task_id, str(moment.kind), moment.number, logs)
        return len(self._due) == 1

    def ran(self, result: CallbackResult) -> int | None:
        """The callbacks were called; return the task to queue next, if there is one."""
        self._journal.record("callbacks ran", result.state, result.learning_rate, result.stop)
        return self._due[0][0] if self._due else None

    def drop(self) -> None:
        """Call no callback any more: one of them has failed too often."""
        self._journal.record("callbacks dropped")

    # --- questions -------------------------------------------------------------------------------

    def next_epoch(self, settled: list[int], per_epoch: int) -> int | None:
        """Return the epoch whose end callbacks are to be told of, if one is complete."""
        epoch = self._epochs_ended
        is_complete = epoch < self._num_epochs and settled[epoch] >= per_epoch
        return epoch if self.is_declared and is_complete else None

    @property
    def begins(self) -> bool:
        """Whether callbacks are still to be told that training begins."""
        return self.is_declared and not self._has_begun

    @property
    def ends(self) -> bool:
        """Whether callbacks are still to be told that training has ended."""
        return self._has_begun and not self._has_ended

    def loss_of(self, epoch: int) -> dict[str, float]:
        """Return the mean loss of an epoch's records, as logs have it."""
        records, loss = self._sums[epoch]
        return {"loss": loss / records} if records else {}

    def call(self) -> CallbackCall:
        """Return what a worker needs for the task that is under way."""
        moment = self._due[0][1]
        return CallbackCall(self._state, self.learning_rate, moment, self._num_epochs)

    # --- facts -----------------------------------------------------------------------------------

    def _apply_declared(self) -> None:
        self.is_declared = True

    def _apply_due(self, task_id: int, kind: str, number: int, logs: dict[str, float]) -> None:
        moment = Moment(MomentKind(kind), number, logs)
        self._due.append((task_id, moment))
        match moment.kind:
            case MomentKind.TRAIN_BEGIN:
                self._has_begun = True
            case MomentKind.EPOCH_END:
                self._epochs_ended += 1
            case MomentKind.TRAIN_END:
                self._has_ended = True
            case MomentKind.EVALUATION:
                pass

    def _apply_ran(self, state: str, learning_rate: float | None, stop: str) -> None:
        self._due.pop(0)
        self._state = state
        self.learning_rate = learning_rate
        self.stop_reason = self.stop_reason or stop

    def _apply_dropped(self) -> None:
        self._due = []
        self.is_declared = self._has_begun = False

    def _apply_epoch_loss(self, epoch: int, num_records: int, loss_sum: float) -> None:
        self._sums[epoch][0] += num_records
        self._sums[epoch][1] += loss_sum

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "declared": self.is_declared,
            "due": [[task_id, str(m.kind), m.number, m.logs] for task_id, m in self._due],
            "state": self._state,
            "has": [self._has_begun, self._has_ended],
            "epochs_ended": self._epochs_ended,
            "sums": self._sums,
            "learning_rate": self.learning_rate,
            "stop_reason": self.stop_reason,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""
        self.is_declared = snapshot["declared"]
        self._due = [
            (task_id, Moment(MomentKind(kind), number, logs))
            for task_id, kind, number, logs in snapshot["due"]
        ]
        self._state = snapshot["state"]
        self._has_begun, self._has_ended = snapshot["has"]
        self._epochs_ended = snapshot["epochs_ended"]
        self._sums = [list(sums) for sums in snapshot["sums"]]
        self.learning_rate = snapshot["learning_rate"]
        self.stop_reason = snapshot["stop_reason"]
