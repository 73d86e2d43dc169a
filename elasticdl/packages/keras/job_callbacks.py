"""Calls Keras callbacks for the job, and refuses some of them before training.

A callback's `model` is a stand-in with the learning rate and `stop_training`; the parameters are
with the ps replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import keras
import numpy as np

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.callback_memory import CallbackMemory
from elasticdl.packages.frameworks.callbacks import Callback, JobControl
from elasticdl.packages.frameworks.job_callbacks import (
    check_monitor,
    check_rate,
    follows_evaluations,
    mode_of,
)
from elasticdl.packages.keras.internals import MonitorCallback
from elasticdl.packages.keras.metrics.collection import in_logs

MEMORY = CallbackMemory("_model", "params", "validation_data")
_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)


def check_callback(
    callback: keras.callbacks.Callback,
    rate: float | None,
    metrics: Mapping[str, str | None] | None,
) -> None:
    """Refuse a callback that cannot work in a job.

    Args:
        callback: The callback that `callbacks()` returned.
        rate: The optimizer's learning rate; None: it is a schedule.
        metrics: Whether more or less is better, by metric; None: they are not known.

    Raises:
        ModelError: It could not; names it and what to do instead.
    """
    name = type(callback).__name__
    if isinstance(callback, Callback):
        raise ModelError(
            f"callbacks() returns {name}, an elasticdl.callbacks.Callback, which is for models in "
            f"PyTorch; a model in Keras has {_of_keras(name)}"
        )
    if isinstance(callback, type):
        raise ModelError(
            f"callbacks() returns the class {callback.__name__}: expected an object, "
            f"{callback.__name__}(...)"
        )
    if not isinstance(callback, keras.callbacks.Callback):
        raise ModelError(
            f"callbacks() returns {name}; expected a keras.callbacks.Callback or an "
            "elasticdl.callbacks.LearningRateScheduler"
        )
    hooks = [hook for hook in _BATCH_HOOKS if _overrides(callback, hook)]
    if hooks:
        raise ModelError(
            f"callback {name} has {hooks[0]}, which cannot run here: workers train different "
            "minibatches at the same time, and nobody sees them all; use on_epoch_end or "
            "on_test_end"
        )
    if getattr(callback, "restore_best_weights", False):
        raise ModelError(
            f"callback {name}(restore_best_weights=True): the weights are with the ps "
            "replicas; leave it out, say --checkpoint_dir and --checkpoint_steps, and start "
            "from the version of the best evaluation with --checkpoint_dir_for_init"
        )
    if isinstance(callback, keras.callbacks.ReduceLROnPlateau):
        check_rate(callback, rate)
    if isinstance(callback, MonitorCallback) and metrics is not None:
        check_monitor(callback, metrics)


class KerasHooks:
    """Makes the calls of the job to one Keras callback.

    A callback that watches evaluations has these as its epochs.

    Args:
        callback: A new one.
        control: The job.
        metrics: Whether more or less is better, for each metric of the evaluations.
    """

    def __init__(
        self,
        callback: keras.callbacks.Callback,
        control: JobControl,
        metrics: Mapping[str, str | None],
    ) -> None:
        self._callback = callback
        self._follows_evaluations = False
        callback.set_params({"verbose": 0, "epochs": control.num_epochs, "steps": None})
        callback.set_model(JobModel(control))
        if isinstance(callback, MonitorCallback):
            self._follows_evaluations = follows_evaluations(callback.monitor)
            callback.mode = mode_of(callback, metrics)
            callback._set_monitor_op()

    def on_train_begin(self) -> None:
        """See `Hooks`."""
        self._callback.on_train_begin({})

    def on_epoch_begin(self, epoch: int) -> None:
        """See `Hooks`."""
        if not self._follows_evaluations:
            self._callback.on_epoch_begin(epoch, {})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """See `Hooks`."""
        if not self._follows_evaluations:
            self._callback.on_epoch_end(epoch, _named(logs))

    def on_evaluation_end(self, evaluation: int, logs: Mapping[str, float]) -> None:
        """See `Hooks`."""
        if self._follows_evaluations:
            named = _named(logs)
            if self._callback.monitor not in named:  # such as a metric of several numbers
                raise ModelError(
                    f"callback {type(self._callback).__name__}(monitor={self._callback.monitor!r}):"
                    f" the evaluation has {', '.join(sorted(named))}: expected one of these"
                )
            # Keras' callbacks compare metrics in on_epoch_end alone, so an evaluation is their
            # epoch.
            self._callback.on_epoch_begin(evaluation, {})
            self._callback.on_epoch_end(evaluation, named)
        else:
            self._callback.on_test_begin({})
            self._callback.on_test_end(_of_test(_named(logs)))

    def on_train_end(self, logs: Mapping[str, float]) -> None:
        """See `Hooks`."""
        self._callback.on_train_end(_named(logs))


def _named(logs: Mapping[str, float]) -> dict[str, float]:
    """Return logs with the names that Keras gives the metrics of outputs."""
    return {in_logs(name): value for name, value in logs.items()}


def _of_test(logs: Mapping[str, float]) -> dict[str, float]:
    prefix = "val_"
    return {n.removeprefix(prefix): v for n, v in logs.items() if n.startswith(prefix)}


class JobModel:
    """Stands in for the `model` of a callback."""

    def __init__(self, control: JobControl) -> None:
        self._control = control
        self.optimizer = JobOptimizer(control)

    @property
    def stop_training(self) -> bool:
        """Whether a callback has said that training is to stop."""
        return self._control.is_stopped

    @stop_training.setter
    def stop_training(self, stops: bool) -> None:
        self._control.is_stopped = bool(stops)

    def __getattr__(self, name: str) -> object:
        raise ModelError(
            f"a callback uses model.{name}: the job's model has its parameters on the ps replicas; "
            "model.stop_training and model.optimizer.learning_rate are there"
        )


class JobOptimizer:
    """The learning rate, which callbacks read and set."""

    def __init__(self, control: JobControl) -> None:
        self._control = control

    @property
    def learning_rate(self) -> JobRate:
        """The rate that steps are made with; a number may be assigned."""
        return JobRate(self._control)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._control.learning_rate = float(np.asarray(rate))

    lr = learning_rate


class JobRate(float):
    """The learning rate as a number, with the methods of the variable that Keras has for it."""

    _control: JobControl

    def __new__(cls, control: JobControl) -> Self:
        """Make it of the job's learning rate."""
        made = super().__new__(cls, control.learning_rate)
        made._control = control
        return made

    def assign(self, rate: float) -> None:
        """Set the learning rate."""
        self._control.learning_rate = float(np.asarray(rate))

    def numpy(self) -> np.float32:
        """Return the learning rate, as Keras holds it."""
        # Keras holds the rate in a variable of float32.
        return np.float32(self)

    @property
    def value(self) -> float:
        """The learning rate."""
        return float(self)


def _of_keras(name: str) -> str:
    """Say what stands in Keras for a class of `elasticdl.callbacks`."""
    if name in ("EarlyStopping", "ReduceLROnPlateau"):
        return f"keras.callbacks.{name}"
    return "callbacks that derive from keras.callbacks.Callback"


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    own = getattr(type(callback), hook, None)
    # A hook may be set on the object as well as in its class.
    return hook in vars(callback) or own is not getattr(keras.callbacks.Callback, hook, None)
