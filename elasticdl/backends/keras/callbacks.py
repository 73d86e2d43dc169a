"""What a model file's `callbacks()` means for a job whose loop is not Keras'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from elasticdl.backends.keras.job_callbacks import JobCallbacks, metrics_by_name
from elasticdl.backends.keras.optimizer import LearningRate
from elasticdl.callbacks import LearningRateScheduler
from elasticdl.errors import ElasticdlError, ModelError

INSTEAD = {
    "LearningRateScheduler": "use elasticdl.callbacks.LearningRateScheduler, which counts updates, "
    "or a schedule of keras.optimizers.schedules",
    "ModelCheckpoint": "say --checkpoint_dir and --checkpoint_steps",
    "BackupAndRestore": "say --checkpoint_dir and --checkpoint_steps",
    "SwapEMAWeights": "leave it out",
    "TensorBoard": "--tensorboard_log_dir writes them for the whole job",
    "CSVLogger": "say --summary",
    "RemoteMonitor": "the job writes its own log of events",
    "ProgbarLogger": "the job has its own display",
    "History": "say --summary",
}


def learning_rate_of(
    optimizer: Any, callbacks: Callable[[], list[Any]] | None
) -> Callable[[int], float]:
    """Return the learning rate by model version, from the optimizer or a callback."""
    rate: Callable[[int], float] = LearningRate(optimizer)
    for callback in _call(callbacks):
        if isinstance(callback, LearningRateScheduler):
            rate = _scheduled(callback)
    return rate


def job_callbacks(
    callbacks: Callable[[], list[Any]] | None,
    optimizer: Any,
    eval_metrics_fn: Callable[[], Any] | None,
) -> JobCallbacks | None:
    """Return the callbacks that the job is to call, if there are any.

    `keras.callbacks.TerminateOnNaN` is what a job does anyway (`--on_nan=stop`).

    Raises:
        ModelError: A callback cannot do what it says; names it and what does it.
    """

    def make() -> list[Any]:
        return [callback for callback in _call(callbacks) if _is_of_job(callback)]

    for callback in make():
        name = type(callback).__name__
        if name in INSTEAD and type(callback).__module__.startswith("keras."):
            raise ModelError(
                f"callbacks() returns {name}, which cannot run here: workers train different "
                f"parts of the data at the same time; {INSTEAD[name]}"
            )
    if not make():
        return None
    metrics = metrics_by_name(eval_metrics_fn() if eval_metrics_fn else {})
    return JobCallbacks(make, optimizer, metrics)


def _is_of_job(callback: Any) -> bool:
    return not isinstance(callback, LearningRateScheduler | keras.callbacks.TerminateOnNaN)


def _scheduled(callback: LearningRateScheduler) -> Callable[[int], float]:
    def rate(version: int) -> float:
        return float(callback.schedule(version))

    return rate


def _call(callbacks: Callable[[], list[Any]] | None) -> list[Any]:
    if callbacks is None:
        return []
    try:
        found = callbacks()
    except ElasticdlError:
        raise
    except Exception as error:
        raise ModelError(f"callbacks raised {type(error).__name__}: {error}") from error
    if not isinstance(found, list | tuple):
        raise ModelError(f"callbacks must return a list, found {type(found).__name__}")
    return list(found)
