"""The callbacks that a model in PyTorch may have, and the job's calls of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.callback_memory import CallbackMemory
from elasticdl.packages.frameworks.callbacks import (
    Callback,
    JobControl,
    LearningRateScheduler,
    MonitorCallback,
    ReduceLROnPlateau,
)
from elasticdl.packages.frameworks.job_callbacks import (
    JobCallbacks,
    check_monitor,
    check_rate,
    made_by,
    mode_of,
    needs_of,
)

_HOOKS = frozenset(name for name in vars(Callback) if name.startswith("on_"))
_MEMORY = CallbackMemory("_control")
_OF_KERAS = {
    "EarlyStopping": "use elasticdl.callbacks.EarlyStopping",
    "LearningRateScheduler": "use elasticdl.callbacks.LearningRateScheduler, which counts updates",
    "ReduceLROnPlateau": "use elasticdl.callbacks.ReduceLROnPlateau",
    "TerminateOnNaN": "leave it out: --on_nan=stop, the default, does that",
}


def job_callbacks(
    callbacks: Callable[[], list[object]] | None,
    rate: float | None,
    directions: Mapping[str, str | None],
) -> JobCallbacks | None:
    """Return the callbacks that the job is to call, if there are any.

    Args:
        callbacks: The callbacks of the model file.
        rate: The learning rate; None: it is a schedule.
        directions: The metrics of evaluations by name: "min", "max", or None if nobody knows.

    Raises:
        ModelError: A callback cannot work in a job; names it and what to write instead.
    """

    def make() -> list[object]:
        return [c for c in made_by(callbacks) if not isinstance(c, LearningRateScheduler)]

    first = make()
    if not first:
        return None
    for callback in first:
        _check(callback, rate, directions)

    def hooks(callback: Callback, control: JobControl) -> Callback:
        callback.join(control)
        if isinstance(callback, MonitorCallback):
            callback.mode = mode_of(callback, _with_parts(directions, callback.monitor))
        return callback

    watching = [callback for callback in first if isinstance(callback, MonitorCallback)]
    needs = needs_of(watching, callbacks)
    return JobCallbacks(make, rate, hooks, _MEMORY, needs)


def _check(callback: object, rate: float | None, directions: Mapping[str, str | None]) -> None:
    name = type(callback).__name__
    if not isinstance(callback, Callback):
        raise ModelError(_refusal(callback, name))
    unknown = [h for h in dir(callback) if h.startswith("on_") and h not in _HOOKS]
    if unknown:
        raise ModelError(
            f"callback {name} has {unknown[0]}, which the job does not call: it calls "
            f"{', '.join(sorted(_HOOKS))}; name a method of your own otherwise"
        )
    if isinstance(callback, ReduceLROnPlateau):
        check_rate(callback, rate)
    if isinstance(callback, MonitorCallback):
        if not hasattr(callback, "monitor"):
            raise ModelError(f"callback {name}: its __init__ has to call super().__init__(monitor)")
        check_monitor(callback, _with_parts(directions, callback.monitor))


def _refusal(callback: object, name: str) -> str:
    """Say what to write instead of something that is no callback of elasticdl."""
    known = next((k for k in type(callback).__mro__ if k.__module__.startswith("keras.")), None)
    if known is not None:
        instead = _OF_KERAS.get(known.__name__, "derive from elasticdl.callbacks.Callback")
        return (
            f"callbacks() returns {name}, a callback of Keras, which a model in PyTorch cannot "
            f"have; {instead}"
        )
    return (
        f"callbacks() returns {name}; expected a Callback, EarlyStopping, ReduceLROnPlateau or "
        "LearningRateScheduler of elasticdl.callbacks"
    )


def _with_parts(directions: Mapping[str, str | None], monitor: str) -> Mapping[str, str | None]:
    """Add one value of a metric that has several, `val_NAME/PART`: its parts are known later."""
    name, separator, _ = monitor.removeprefix("val_").rpartition("/")
    if separator and name in directions:
        return {**directions, monitor.removeprefix("val_"): directions[name]}
    return directions
