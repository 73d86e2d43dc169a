"""What a model file's `callbacks()` means for a job whose loop is not Keras'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from elasticdl.backends.keras.optimizer import LearningRate
from elasticdl.callbacks import LearningRateScheduler
from elasticdl.errors import ElasticdlError, ModelError

INSTEAD = {
    "LearningRateScheduler": "use elasticdl.callbacks.LearningRateScheduler, which counts updates, "
    "or a schedule of keras.optimizers.schedules",
    "ReduceLROnPlateau": "use a schedule of keras.optimizers.schedules",
    "ModelCheckpoint": "say --checkpoint_dir and --checkpoint_steps",
    "BackupAndRestore": "say --checkpoint_dir and --checkpoint_steps",
    "TensorBoard": "the job writes its own log of events",
    "CSVLogger": "say --summary",
    "ProgbarLogger": "the job has its own display",
}


def learning_rate_of(
    optimizer: Any, callbacks: Callable[[], list[Any]] | None
) -> Callable[[int], float]:
    """Return the learning rate by model version, from the optimizer or a callback.

    `keras.callbacks.TerminateOnNaN` is what a job does anyway (`--on_nan=stop`). Other Keras
    callbacks are refused: they expect one loop with epochs and batches, and a model to read.

    Raises:
        ModelError: A callback that cannot do what it says; names it and what does it.
    """
    rate: Callable[[int], float] = LearningRate(optimizer)
    for callback in _call(callbacks):
        if isinstance(callback, LearningRateScheduler):
            rate = _scheduled(callback)
        elif not isinstance(callback, keras.callbacks.TerminateOnNaN):
            name = type(callback).__name__
            raise ModelError(
                f"callbacks() returns {name}, which cannot run here: workers train different "
                f"parts of the data at the same time; {INSTEAD.get(name, 'leave it out')}"
            )
    return rate


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
