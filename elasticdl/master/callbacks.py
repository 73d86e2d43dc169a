"""The user's callbacks: when they are due, what they remember, and what they have decided.

Only workers have the framework, and none of them lives as long as the job. So a CALLBACKS task has
whichever worker leases it make the callbacks anew, give them back what they remembered, and call
them; what they remember then is a fact of the journal.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.checkpoints.versions import Begun
from elasticdl.job import CallbackCall, CallbackResult, Moment, MomentKind
from elasticdl.master.actions import Action, Note
from elasticdl.master.evaluation import Evaluations
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.phases import Phase
from elasticdl.master.progress import Meter
from elasticdl.master.tasks import JobTasks
from elasticdl.observe.kinds import BegunWith, LearningRateSet, TrainingStopped
from elasticdl.state.base import Snapshot


class Callbacks:
    """One CALLBACKS task at a time, in the order of what happened."""

    def __init__(
        self,
        journal: Journal,
        tasks: JobTasks,
        ledger: Ledger,
        evaluations: Evaluations,
        meter: Meter,
        act: Callable[[Action], None],
    ) -> None:
        self._journal = journal
        self._tasks = tasks
        self._ledger = ledger
        self._evaluations = evaluations
        self._meter = meter
        self._act = act
        self._due: list[tuple[int, Moment]] = []  # by task id; the first one is queued
        self._state = ""
        self._has_begun = self._has_ended = False
        self.epochs_ended = 0
        """Of how many epochs callbacks are told, or were."""
        self.is_declared = False
        self.learning_rate: float | None = None
        self._stop_reason = ""
        journal.handle("learning rate", self._apply_rate)
        journal.handle("callbacks", self._apply_declared)
        journal.handle("callbacks due", self._apply_due)
        journal.handle("callbacks ran", self._apply_ran)
        journal.handle("callbacks dropped", self._apply_dropped)

    # --- events ----------------------------------------------------------------------------------

    def begin_with(self, begun: Begun, given_rate: float | None) -> None:
        """The job begins with a checkpoint: go on with the rate that a callback had set.

        Args:
            begun: The checkpoint.
            given_rate: `--learning_rate`, which is stronger.
        """
        of_checkpoint = begun.learning_rate
        rate = of_checkpoint if given_rate is None else None
        text = "parameters and the state of the optimizer"
        if rate is not None:
            self._journal.record("learning rate", rate)
            text += f", and the learning rate {rate:.6g} that a callback had set"
        elif of_checkpoint is not None:
            text += (
                f"; not the learning rate {of_checkpoint:.6g} that a callback had set, since "
                f"--learning_rate={given_rate:.6g} is given"
            )
        self._act(
            Note(
                BegunWith(begun.version, rate),
                f"the job begins with {begun.folder}: {text}. Updates count on from "
                f"{begun.version}, epochs from 0, and callbacks begin anew",
            )
        )

    def declare(self) -> None:
        """A worker says that the model file has callbacks."""
        if not self.is_declared:
            self._journal.record("callbacks")

    def advance(self, phase: Phase, is_training_over: bool) -> None:
        """Have callbacks told of what has happened since.

        Args:
            phase: The phase of the job.
            is_training_over: Whether no training and no evaluation follows.
        """
        if not self.is_declared:
            return
        if phase is Phase.TRAINING and not self._has_begun:
            self._tell(Moment(MomentKind.TRAIN_BEGIN))
        while (epoch := self._complete_epoch()) is not None:
            self._tell(Moment(MomentKind.EPOCH_END, epoch, self._logs(epoch)))
        if is_training_over and self._has_begun and not self._has_ended:
            self._tell(Moment(MomentKind.TRAIN_END, logs=self._logs(self._ledger.epoch)))

    def evaluated(self, evaluation_id: int) -> None:
        """An evaluation has its metrics."""
        if self.is_declared:
            logs = self._logs(self._ledger.epoch)
            self._tell(Moment(MomentKind.EVALUATION, evaluation_id, logs))

    def ran(self, result: CallbackResult, phase: Phase) -> None:
        """The callbacks were called: take over what they have decided."""
        rate_before = self.learning_rate
        self._journal.record("callbacks ran", result.state, result.learning_rate, result.stop)
        self._queue_first()
        if result.learning_rate not in (None, rate_before):
            text = f"a callback sets the learning rate to {result.learning_rate:.6g}"
            self._act(Note(LearningRateSet(result.learning_rate), text))
        if result.stop and not self._ledger.is_stopped and phase is Phase.TRAINING:
            self._ledger.stop_training()
            self._act(Note(TrainingStopped(), f"{result.stop} stops training"))

    def drop(self) -> None:
        """Call no callback any more: one of them has failed too often."""
        self._journal.record("callbacks dropped")

    # --- questions -------------------------------------------------------------------------------

    @property
    def are_under_way(self) -> bool:
        """Whether they are to be told of something that has happened."""
        return bool(self._due)

    def call(self) -> CallbackCall:
        """Return what a worker needs for the task that is under way."""
        moment = self._due[0][1]
        return CallbackCall(self._state, self.learning_rate, moment, self._tasks.num_epochs)

    @property
    def stopped(self) -> str:
        """Say which callback stopped training, and after how much; "" if none did."""
        if not self._stop_reason:
            return ""
        total = self._tasks.training.num_records * self._tasks.num_epochs - self._ledger.num_missing
        done = self._ledger.training_records_done
        return f"{self._stop_reason} stopped training after {done:,} of {total:,} records"

    # --- parts -----------------------------------------------------------------------------------

    def _tell(self, moment: Moment) -> None:
        logs = {name: float(value) for name, value in moment.logs.items()}
        task_id = self._tasks.callbacks_id(moment)
        self._journal.record("callbacks due", task_id, str(moment.kind), moment.number, logs)
        if len(self._due) == 1:
            self._queue_first()

    def _queue_first(self) -> None:
        if self._due:
            task_id, _ = self._due[0]
            self._ledger.queue(range(task_id, task_id + 1))

    def _complete_epoch(self) -> int | None:
        """Return the epoch whose end callbacks are to be told of next, if it is complete."""
        epoch, settled = self.epochs_ended, self._ledger.training_settled
        is_complete = epoch < len(settled) and settled[epoch] >= self._tasks.per_epoch
        if self._evaluations.follows_epochs and epoch >= self._evaluations.num_epochs:
            return None  # its evaluation is told with it
        return epoch if is_complete else None

    def _logs(self, epoch: int) -> dict[str, float]:
        """Return the mean loss of an epoch's records, and the newest evaluation."""
        loss = self._meter.epoch_loss(epoch)
        newest = {f"val_{name}": value for name, value in self._evaluations.metrics.items()}
        return {**({} if loss is None else {"loss": loss}), **newest}

    # --- facts -----------------------------------------------------------------------------------

    def _apply_declared(self) -> None:
        self.is_declared = True

    def _apply_rate(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def _apply_due(self, task_id: int, kind: str, number: int, logs: dict[str, float]) -> None:
        moment = Moment(MomentKind(kind), number, logs)
        self._due.append((task_id, moment))
        match moment.kind:
            case MomentKind.TRAIN_BEGIN:
                self._has_begun = True
            case MomentKind.EPOCH_END:
                self.epochs_ended += 1
            case MomentKind.TRAIN_END:
                self._has_ended = True
            case MomentKind.EVALUATION:
                pass

    def _apply_ran(self, state: str, learning_rate: float | None, stop: str) -> None:
        self._due.pop(0)
        self._state = state
        self.learning_rate = learning_rate
        self._stop_reason = self._stop_reason or stop

    def _apply_dropped(self) -> None:
        self._due = []
        self.is_declared = self._has_begun = False

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "declared": self.is_declared,
            "due": [[task_id, str(m.kind), m.number, m.logs] for task_id, m in self._due],
            "state": self._state,
            "has": [self._has_begun, self._has_ended],
            "epochs_ended": self.epochs_ended,
            "learning_rate": self.learning_rate,
            "stop_reason": self._stop_reason,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self.is_declared = snapshot["declared"]
        self._due = [
            (task_id, Moment(MomentKind(kind), number, logs))
            for task_id, kind, number, logs in snapshot["due"]
        ]
        self._state = snapshot["state"]
        self._has_begun, self._has_ended = snapshot["has"]
        self.epochs_ended = snapshot["epochs_ended"]
        self.learning_rate = snapshot["learning_rate"]
        self._stop_reason = snapshot["stop_reason"]
