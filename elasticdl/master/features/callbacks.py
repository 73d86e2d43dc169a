"""The user's callbacks: their times, their memory, and their decisions.

Only workers have the framework, and a worker may end before the job does. So any worker can do a
CALLBACKS task: it makes the callbacks anew, gives them their memory back, and calls them. Their new
memory becomes a fact of the journal.
"""

from __future__ import annotations

from dataclasses import replace

from elasticdl.checkpoints.versions import Begun
from elasticdl.data.sources import is_stream
from elasticdl.job import (
    CallbackCall,
    CallbackResult,
    Lease,
    Moment,
    MomentKind,
    Task,
    TaskKind,
    TaskReport,
)
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.ledger import Settled
from elasticdl.master.phases import Phase
from elasticdl.master.results import Failure
from elasticdl.observe.kinds import BegunWith, LearningRateSet, TrainingStopped
from elasticdl.state.base import Snapshot


class Callbacks(JobFeature):
    """One CALLBACKS task at a time, in the order of what happened."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self._journal = journal = job.journal
        self._tasks = job.tasks
        self._ledger = job.ledger
        self._evaluations = job.evaluations
        self._due: list[tuple[int, Moment]] = []  # by task id; the first one is queued
        self._state = ""
        self._has_begun = self._has_ended = False
        self.epochs_ended = 0
        """The number of epochs of whose end callbacks have been told, or will be."""
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
        self._job.note(
            BegunWith(begun.version, rate),
            f"the job begins with {begun.folder}: {text}. Updates count on from "
            f"{begun.version}, epochs from 0, and callbacks begin anew",
        )

    def declare(self, now: float) -> None:
        """A worker says that the model file has callbacks."""
        if self._job.config.command != "train" or self._job.history.has_ended:
            return
        if not self.is_declared:
            self._journal.record("callbacks")
        self._job.advance(now)

    def advance(self, now: float) -> None:
        """Have callbacks told of what has happened since."""
        history, plan = self._job.history, self._job.plan
        phase = history.phase
        if not self.is_declared or history.is_stopping:
            return
        is_last = phase is Phase.EVALUATING or not plan.needs(Phase.EVALUATING)
        is_training_over = is_last and plan.is_over(phase)  # and no evaluation follows
        if phase is Phase.TRAINING and not self._has_begun:
            self._tell(Moment(MomentKind.TRAIN_BEGIN))
        while (epoch := self._complete_epoch()) is not None:
            self._tell(Moment(MomentKind.EPOCH_END, epoch, self._logs(epoch)))
        if is_training_over and self._has_begun and not self._has_ended:
            self._tell(
                Moment(MomentKind.TRAIN_END, logs=self._logs(self._ledger.epochs.first_open))
            )

    def settled(self, task: Task, report: TaskReport, settled: Settled) -> Failure | None:
        """Take in what callbacks have decided, and tell them of an evaluation."""
        match task.kind, settled:
            case TaskKind.METRICS, Settled.DONE:
                self._evaluated(task.evaluation_id)
            case TaskKind.CALLBACKS, Settled.DONE:
                assert report.callbacks is not None
                self._ran(report.callbacks)
            case TaskKind.CALLBACKS, Settled.QUARANTINED:  # one has failed too often
                self._journal.record("callbacks dropped")
        return None

    def _evaluated(self, evaluation_id: int) -> None:
        if self.is_declared:
            logs = self._logs(self._ledger.epochs.first_open)
            self._tell(Moment(MomentKind.EVALUATION, evaluation_id, logs))

    def _ran(self, result: CallbackResult) -> None:
        rate_before = self.learning_rate
        self._journal.record("callbacks ran", result.state, result.learning_rate, result.stop)
        self._queue_first()
        if result.learning_rate not in (None, rate_before):
            text = f"a callback sets the learning rate to {result.learning_rate:.6g}"
            self._job.note(LearningRateSet(result.learning_rate), text)
        is_training = self._job.history.phase is Phase.TRAINING
        if result.stop and not self._ledger.is_stopped and is_training:
            self._ledger.stop_training()
            self._job.note(TrainingStopped(), f"{result.stop} stops training")

    # --- questions -------------------------------------------------------------------------------

    def may_begin(self, num_tasks: int) -> int:
        """Have an epoch wait for the evaluation of the one before, and for what follows from it.

        In one process it waits for callbacks without an evaluation, too, as in Keras. The tasks
        that are left where the model changes wait for nothing.
        """
        if self._job.history.model_change:
            return num_tasks
        if self._evaluations.follows_epochs:
            num_ended = self._evaluations.num_epochs
        elif self._job.config.is_local and self.is_declared and not is_stream(self._job.config):
            num_ended = self.epochs_ended
        else:
            return num_tasks
        is_busy = bool(self._due) or self._job.parameters.schedule.is_best_due
        return min((num_ended + (not is_busy)) * self._tasks.per_epoch, num_tasks)

    def completed(self, lease: Lease) -> Lease:
        """Give a worker what callbacks remember, or the rate that they have set."""
        if lease.task.kind is TaskKind.CALLBACKS:
            moment = self._due[0][1]
            call = CallbackCall(self._state, self.learning_rate, moment, self._tasks.num_epochs)
            return replace(lease, callbacks=call)
        if lease.task.kind is TaskKind.TRAINING and self.learning_rate is not None:
            return replace(lease, learning_rate=self.learning_rate)
        return lease

    def final_words(self) -> str:
        """Say which callback stopped training, and after how much; "" if none did."""
        if not self._stop_reason:
            return ""
        total = (
            self._tasks.training.num_records * self._tasks.num_epochs
            - self._ledger.missing.num_positions
        )
        done = self._ledger.training_records_done
        return f"{self._stop_reason} stopped training after {done:,} of {total:,} records"

    # --- parts -----------------------------------------------------------------------------------

    def _tell(self, moment: Moment) -> None:
        logs = {name: float(value) for name, value in moment.logs.items()}
        task_id = self._tasks.callbacks_id(moment)
        self._journal.record("callbacks due", task_id, str(moment.kind), moment.number, logs)
        # A call needs the memory that the call before has left, so one task is queued at a time.
        if len(self._due) == 1:
            self._queue_first()

    def _queue_first(self) -> None:
        if self._due:
            task_id, _ = self._due[0]
            self._ledger.queue(range(task_id, task_id + 1))

    def _complete_epoch(self) -> int | None:
        """Return the epoch whose end callbacks are to be told of next, if it is complete."""
        epoch, settled = self.epochs_ended, self._ledger.epochs.settled
        is_complete = epoch < len(settled) and settled[epoch] >= self._tasks.per_epoch
        if self._evaluations.follows_epochs and epoch >= self._evaluations.num_epochs:
            return None  # callbacks hear of the epoch together with its evaluation
        return epoch if is_complete else None

    def _logs(self, epoch: int) -> dict[str, float]:
        """Return the mean loss of an epoch's records, and the newest evaluation."""
        loss = self._job.meter.epoch_loss(epoch)
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
        found = {
            "declared": self.is_declared,
            "due": [[task_id, str(m.kind), m.number, m.logs] for task_id, m in self._due],
            "state": self._state,
            "has": [self._has_begun, self._has_ended],
            "epochs_ended": self.epochs_ended,
            "learning_rate": self.learning_rate,
            "stop_reason": self._stop_reason,
        }
        return {"callbacks": found}

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        snapshot = snapshot["callbacks"]
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
