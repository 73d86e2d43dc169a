"""The base class of callbacks, and the part of a job that a callback may read and change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elasticdl.errors import ModelError


@dataclass(frozen=True, slots=True)
class LearningRateScheduler:
    """Sets the learning rate of each step, instead of the optimizer's own.

    Args:
        schedule: `schedule(version) -> learning rate`, where `version` counts the updates that
            the model has seen. Keras' callback of this name gets the epoch instead; an elastic
            job may train several epochs at once.
    """

    schedule: Callable[[int], float]


class JobControl:
    """The part of a job that callbacks may read and set during a call.

    Args:
        learning_rate: The learning rate of steps; None: the rate follows a schedule.
        num_epochs: The number of epochs of the job.

    Attributes:
        changed: The learning rate that a callback has set; None if none has set one.
        is_stopped: Whether a callback has said that training must stop.
    """

    def __init__(self, learning_rate: float | None, num_epochs: int) -> None:
        self._rate = learning_rate
        self.num_epochs = num_epochs
        self.changed: float | None = None
        self.is_stopped = False

    @property
    def learning_rate(self) -> float:
        """The learning rate of steps; a callback may assign a number."""
        if self._rate is None:
            raise ModelError("a callback reads the learning rate, which is a schedule")
        return self._rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if self._rate is None:
            raise ModelError(
                "a callback sets the learning rate, which is a schedule: give the optimizer a "
                "number, which callbacks may set"
            )
        value = float(rate)
        if not (math.isfinite(value) and value >= 0):
            raise ModelError(f"a callback sets the learning rate to {value}")
        # `changed` tells the job which rate it must pass on.
        self._rate = self.changed = value


class Callback:
    """A callback of a model in PyTorch: derive from it, and override what you need.

    Workers come and go, so each call uses a new callback object. Its attributes that are numbers,
    strings, arrays, lists, tuples or dicts are stored after each call and restored before the next.
    If a worker is lost during a call, the call is repeated with the attributes from before it.

    `logs` has `loss`, the mean over the records of the epoch so far. It also has `val_NAME`, the
    metric NAME of the newest evaluation.
    """

    _control: JobControl | None = None

    def on_train_begin(self) -> None:
        """Called when training begins."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Called when training begins, and when the last task of the epoch before is done."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Called when the last task of an epoch is done; the next epoch may have begun already."""

    def on_evaluation_end(self, evaluation: int, logs: Mapping[str, float]) -> None:
        """Called when an evaluation has its metrics; evaluations count from 0."""

    def on_train_end(self, logs: Mapping[str, float]) -> None:
        """Called when no training and no evaluation follows."""

    @property
    def learning_rate(self) -> float:
        """The learning rate. An assigned number is the rate of tasks that are leased from then on.

        Raises:
            ModelError: The rate is read, but it follows a schedule.
        """
        return self._job.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._job.learning_rate = rate

    @property
    def num_epochs(self) -> int:
        """The number of epochs of the job, if nothing stops it earlier."""
        return self._job.num_epochs

    def stop_training(self) -> None:
        """Begin no further training task; tasks that are begun are finished."""
        self._job.is_stopped = True

    def join(self, control: JobControl) -> None:
        """Give the callback the job, before it is called."""
        self._control = control

    @property
    def _job(self) -> JobControl:
        if self._control is None:
            raise ModelError(
                f"callback {type(self).__name__} uses the job before the job calls it; use "
                "learning_rate, num_epochs and stop_training() in its on_... methods"
            )
        return self._control
