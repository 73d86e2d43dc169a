"""What a callback is told of a job, and what it may change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elasticdl.errors import ModelError


@dataclass(frozen=True, slots=True)
class LearningRateScheduler:
    """Sets the learning rate of each step, in place of the optimizer's own.

    Args:
        schedule: `schedule(version) -> learning rate`, where `version` counts the updates that
            the model has seen. Keras' callback of this name counts epochs, of which an elastic
            job has several under way at once.
    """

    schedule: Callable[[int], float]


class JobControl:
    """What callbacks may read and set of a job while they are called.

    Args:
        learning_rate: That steps are made with; None: it follows a schedule.
        num_epochs: The number of epochs of the job.

    Attributes:
        changed: The learning rate that one has set; None if none has.
        is_stopped: One has said that training is to stop.
    """

    def __init__(self, learning_rate: float | None, num_epochs: int) -> None:
        self._rate = learning_rate
        self.num_epochs = num_epochs
        self.changed: float | None = None
        self.is_stopped = False

    @property
    def learning_rate(self) -> float:
        """The rate that steps are made with; a number may be assigned."""
        if self._rate is None:
            raise ModelError("a callback reads the learning rate, which is a schedule")
        return self._rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        value = float(rate)
        if not (math.isfinite(value) and value >= 0):
            raise ModelError(f"a callback sets the learning rate to {value}")
        self._rate = self.changed = value


class Callback:
    """A callback of a model in PyTorch: derive from it, and override what you need.

    Workers come and go, so a callback is made anew for each call. Numbers, strings, arrays, lists,
    tuples and dicts that are its attributes are remembered from call to call. A worker may be lost
    in a call: then it is made again, with what was remembered before it.

    `logs` has `loss`, the mean over the records of the epoch so far, and `val_NAME`, the metric
    NAME of the newest evaluation.
    """

    _control: JobControl | None = None

    def on_train_begin(self) -> None:
        """Training begins."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Called with the first epoch (0), then when the last task of the one before is done."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """The last task of an epoch is done; the next epoch is under way by then."""

    def on_evaluation_end(self, evaluation: int, logs: Mapping[str, float]) -> None:
        """An evaluation of the job has its metrics; evaluations count from 0."""

    def on_train_end(self, logs: Mapping[str, float]) -> None:
        """No training and no evaluation follows."""

    @property
    def learning_rate(self) -> float:
        """The rate of training. A number that is assigned is that of tasks leased from then on.

        Raises:
            ModelError: It is read, and follows a schedule.
        """
        return self._job.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._job.learning_rate = rate

    @property
    def num_epochs(self) -> int:
        """How many epochs the job has, if nothing stops it."""
        return self._job.num_epochs

    def stop_training(self) -> None:
        """Begin no training task any more; those that are begun are finished."""
        self._job.is_stopped = True

    def join(self, control: JobControl) -> None:
        """Give it the job, before it is called."""
        self._control = control

    @property
    def _job(self) -> JobControl:
        if self._control is None:
            raise ModelError(
                f"callback {type(self).__name__} uses the job before the job calls it; use "
                "learning_rate, num_epochs and stop_training() in its on_... methods"
            )
        return self._control
