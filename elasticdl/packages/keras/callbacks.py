"""The meaning of a model file's `callbacks()` for a job that does not run the loop of Keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import keras
import numpy as np

from elasticdl.backends.call_order import Tell, told_nobody
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.callbacks import JobControl, LearningRateScheduler
from elasticdl.packages.frameworks.job_callbacks import (
    JobCallbacks,
    made_by,
    needs_of,
    scheduled_rate,
)
from elasticdl.packages.keras.internals import MonitorCallback
from elasticdl.packages.keras.job_callbacks import MEMORY, KerasHooks, check_callback
from elasticdl.packages.keras.optimizer import LearningRate

INSTEAD = {
    "LearningRateScheduler": "use elasticdl.callbacks.LearningRateScheduler, which counts updates, "
    "or a schedule of keras.optimizers.schedules",
    "ModelCheckpoint": "say --checkpoint_dir and --checkpoint_steps, and for save_best_only "
    "--keep_best=METRIC",
    "BackupAndRestore": "say --checkpoint_dir and --checkpoint_steps",
    "SwapEMAWeights": "leave it out",
    "TensorBoard": "--tensorboard_log_dir writes them for the whole job",
    "CSVLogger": "say --summary",
    "RemoteMonitor": "the job writes its own log of events",
    "ProgbarLogger": "the job has its own display",
    "History": "say --summary",
}


def learning_rate_of(
    optimizer: keras.optimizers.Optimizer,
    callbacks: Callable[[], list[object]] | None,
    tell: Tell = told_nobody,
) -> Callable[[int], float]:
    """Return the learning rate by model version, from the optimizer or a callback."""
    return scheduled_rate(callbacks, tell) or LearningRate(optimizer)


def is_scheduled(
    optimizer: keras.optimizers.Optimizer, callbacks: Callable[[], list[object]] | None
) -> bool:
    """Say whether the learning rate follows the model's version."""
    return scheduled_rate(callbacks) is not None or _fixed_rate(optimizer) is None


def job_callbacks(
    callbacks: Callable[[], list[object]] | None,
    optimizer: keras.optimizers.Optimizer,
    metrics: Mapping[str, str | None] | None,
) -> JobCallbacks | None:
    """Return the callbacks that the job is to call, if there are any.

    `keras.callbacks.TerminateOnNaN` is what a job does anyway (`--on_nan=stop`).

    Args:
        callbacks: `callbacks` of the model file.
        optimizer: The user's.
        metrics: Whether more or less is better, by metric; see `Metrics.watched`.

    Raises:
        ModelError: A callback cannot work in a job; names it and the setting to use instead.
    """

    def make() -> list[object]:
        return [callback for callback in made_by(callbacks) if _is_of_job(callback)]

    first = make()
    for callback in first:
        for kind in type(callback).__mro__:
            name = kind.__name__
            if name in INSTEAD and kind.__module__.startswith("keras."):
                raise ModelError(
                    f"callbacks() returns {name}, which cannot run here: workers train different "
                    f"parts of the data at the same time; {INSTEAD[name]}"
                )
    if not first:
        return None
    rate = None if scheduled_rate(callbacks) else _fixed_rate(optimizer)
    for callback in first:
        check_callback(callback, rate, metrics)

    def hooks(callback: keras.callbacks.Callback, control: JobControl) -> KerasHooks:
        return KerasHooks(callback, control, metrics or {})

    watching = [callback for callback in first if isinstance(callback, MonitorCallback)]
    needs = needs_of(watching, callbacks)
    return JobCallbacks(make, rate, hooks, MEMORY, needs)


def _is_of_job(callback: keras.callbacks.Callback) -> bool:
    # A subclass may do more than the job's --on_nan=stop does.
    plain = type(callback) is keras.callbacks.TerminateOnNaN
    return not (plain or isinstance(callback, LearningRateScheduler))


def _fixed_rate(optimizer: keras.optimizers.Optimizer) -> float | None:
    """Return the optimizer's learning rate; None where it is a schedule."""
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return None
    # The property also calls a rate that is a function.
    return float(np.asarray(optimizer.learning_rate))
