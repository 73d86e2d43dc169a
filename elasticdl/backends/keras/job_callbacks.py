"""Keras callbacks in a job: made anew for each call, and given back what they remembered.

A callback is told of the job and not of one worker: of its epochs, evaluations, begin and end. Its
`model` is a stand-in with the learning rate, the metrics and `stop_training`; the parameters are
with the ps replicas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.callbacks.monitor_callback import MonitorCallback

from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.job import CallbackCall, CallbackResult, Moment, MomentKind

_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)
_NOT_REMEMBERED = ("_model", "params", "validation_data")


class JobCallbacks:
    """Those of `callbacks()` that the job calls.

    Args:
        make: Returns them, new ones each time, in the same order.
        optimizer: The user's; callbacks read and set its learning rate.
        metrics: Metrics of the evaluations by name, from which "auto" modes follow.

    Attributes:
        watches: Names a callback whose epochs are the evaluations; "" if there is none.
        watches_loss: Whether one watches the loss of evaluations.

    Raises:
        ModelError: One could not do what it says; names it and what to do instead.
    """

    def __init__(
        self, make: Callable[[], Sequence[Any]], optimizer: Any, metrics: Mapping[str, Any]
    ) -> None:
        self._make = make
        self._metrics = metrics
        self._rate = _fixed_rate(optimizer)
        self.watches, self.watches_loss = "", False
        for callback in make():
            self._check(callback)
            if _follows_evaluations(callback):
                self.watches = f"{type(callback).__name__}(monitor={callback.monitor!r})"
                self.watches_loss |= callback.monitor == "val_loss"

    def run(self, call: CallbackCall) -> CallbackResult:
        """Call each callback for one moment; return what they remember and have decided.

        Raises:
            ModelError: One raised, or remembers what JSON does not know.
        """
        callbacks = list(self._make())
        states = json.loads(call.state) if call.state else [{} for _ in callbacks]
        rate = self._rate if call.learning_rate is None else call.learning_rate
        model = JobModel(JobOptimizer(rate))
        for callback, state in zip(callbacks, states, strict=True):
            callback.set_params({"verbose": 0, "epochs": call.num_epochs, "steps": None})
            callback.set_model(model)
            self._remind(callback, state)
        before = [_unknown_to_json(callback) for callback in callbacks]
        stop = ""
        for callback in callbacks:
            _tell(callback, call.moment, call.num_epochs)
            if model.stop_training and not stop:
                stop = type(callback).__name__
        for callback, unknown in zip(callbacks, before, strict=True):
            _refuse_what_is_forgotten(callback, unknown)
        state = json.dumps([_remembered(callback) for callback in callbacks])
        changed = model.optimizer.changed
        return CallbackResult(state, call.learning_rate if changed is None else changed, stop)

    def _check(self, callback: Any) -> None:
        name = type(callback).__name__
        if not isinstance(callback, keras.callbacks.Callback):
            raise ModelError(
                f"callbacks() returns {name}, which is no keras.callbacks.Callback; expected one, "
                "or elasticdl.callbacks.LearningRateScheduler"
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
        if isinstance(callback, keras.callbacks.ReduceLROnPlateau) and self._rate is None:
            raise ModelError(
                f"callback {name}: the optimizer's learning rate is a schedule, which it cannot "
                "set; give the optimizer a number"
            )
        if isinstance(callback, MonitorCallback):
            self._check_monitor(callback, name)

    def _check_monitor(self, callback: Any, name: str) -> None:
        known = ["loss", "val_loss", *(f"val_{metric}" for metric in self._metrics)]
        if callback.monitor in self._metrics:
            raise ModelError(
                f"callback {name}(monitor={callback.monitor!r}) watches the metric of training, "
                "which a job measures on a part of the minibatches, and not at the end of each "
                f"epoch; watch the evaluations: monitor='val_{callback.monitor}'"
            )
        if callback.monitor not in known:
            raise ModelError(
                f"callback {name}(monitor={callback.monitor!r}): expected one of {', '.join(known)}"
            )
        self._mode(callback)

    def _mode(self, callback: Any) -> str:
        """Return "min" or "max", as Keras' "auto" finds it.

        Raises:
            ModelError: It cannot be told; says that `mode` tells it.
        """
        watched = callback.monitor.removeprefix("val_")
        if callback.mode != "auto":
            return str(callback.mode)
        if watched == "loss":
            return "min"
        direction = getattr(self._metrics[watched], "_direction", None)
        if direction is None:
            raise ModelError(
                f"callback {type(callback).__name__}(monitor={callback.monitor!r}): whether more "
                'or less of it is better cannot be told; say mode="max" or mode="min"'
            )
        return "max" if direction == "up" else "min"

    def _remind(self, callback: Any, state: dict[str, Any]) -> None:
        if isinstance(callback, MonitorCallback):
            callback.mode = self._mode(callback)
            callback._set_monitor_op()
        for name, value in state.items():
            setattr(callback, name, _decoded(value))


def metrics_by_name(metrics: Any, output: str = "") -> dict[str, Any]:
    """Return the metrics that `eval_metrics_fn` gave by the names that callbacks' logs have."""
    found: dict[str, Any] = {}
    if isinstance(metrics, Mapping):
        for name, value in metrics.items():
            full = f"{output}_{name}" if output else str(name)
            if isinstance(value, Mapping | list | tuple):
                found.update(metrics_by_name(value, full))
            else:
                found[full] = _keras_metric(value)
    elif isinstance(metrics, list | tuple):
        for value in metrics:
            metric = _keras_metric(value)
            name = value if isinstance(value, str) else getattr(metric, "name", str(value))
            found[f"{output}_{name}" if output else name] = metric
    return found


def _keras_metric(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return keras.metrics.get(value)
    except ValueError:
        return value


def _tell(callback: Any, moment: Moment, num_epochs: int) -> None:
    """Call the hooks of a callback that a moment means."""
    logs = {name.replace("/", "_"): value for name, value in moment.logs.items()}
    follows_evaluations = _follows_evaluations(callback)
    try:
        match moment.kind:
            case MomentKind.TRAIN_BEGIN:
                callback.on_train_begin({})
                if not follows_evaluations:
                    callback.on_epoch_begin(0, {})
            case MomentKind.EPOCH_END if not follows_evaluations:
                callback.on_epoch_end(moment.number, logs)
                if moment.number + 1 < num_epochs:
                    callback.on_epoch_begin(moment.number + 1, {})
            case MomentKind.EVALUATION if follows_evaluations:
                callback.on_epoch_begin(moment.number, {})
                callback.on_epoch_end(moment.number, logs)
            case MomentKind.EVALUATION:
                callback.on_test_begin({})
                callback.on_test_end(_of_test(logs))
            case MomentKind.TRAIN_END:
                callback.on_train_end(logs)
    except ElasticdlError:
        raise
    except Exception as error:
        raise ModelError(
            f"callback {type(callback).__name__} raised {type(error).__name__} at "
            f"{moment.kind}: {error}"
        ) from error


def _of_test(logs: Mapping[str, float]) -> dict[str, float]:
    prefix = "val_"
    return {n.removeprefix(prefix): v for n, v in logs.items() if n.startswith(prefix)}


class JobModel:
    """What a callback has as its `model`."""

    def __init__(self, optimizer: JobOptimizer) -> None:
        self.optimizer = optimizer
        self.stop_training = False

    def __getattr__(self, name: str) -> Any:
        raise ModelError(
            f"a callback uses model.{name}: the job's model has its parameters on the ps replicas; "
            "model.stop_training and model.optimizer.learning_rate are there"
        )


class JobOptimizer:
    """The learning rate, which callbacks read and set."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self.changed: float | None = None

    @property
    def learning_rate(self) -> float:
        """The rate that steps are made with; a number may be assigned."""
        if self._rate is None:
            raise ModelError("a callback reads the learning rate, which is a schedule")
        return self._rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        value = float(np.asarray(rate))
        if not (math.isfinite(value) and value >= 0):
            raise ModelError(f"a callback sets the learning rate to {value}")
        self._rate = self.changed = value

    lr = learning_rate


def _follows_evaluations(callback: Any) -> bool:
    """Whether evaluations are this callback's epochs: what it watches comes of them."""
    return isinstance(callback, MonitorCallback) and callback.monitor.startswith("val_")


def _overrides(callback: Any, hook: str) -> bool:
    own = getattr(type(callback), hook, None)
    return hook in vars(callback) or own is not getattr(keras.callbacks.Callback, hook, None)


def _fixed_rate(optimizer: Any) -> float | None:
    """Return the optimizer's learning rate; None where it is a schedule."""
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return None
    return float(np.asarray(optimizer.learning_rate))


def _remembered(callback: Any) -> dict[str, Any]:
    """Return what a callback remembers, as far as JSON knows it."""
    found = {}
    for name, value in vars(callback).items():
        if name in _NOT_REMEMBERED:
            continue
        try:
            found[name] = _plain(value)
        except TypeError:
            continue
    return found


def _plain(value: Any) -> Any:
    """Return a value as JSON has it.

    Raises:
        TypeError: JSON has no such value.
    """
    if isinstance(value, bool | int | str | type(None)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray | np.generic):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_plain(v) for v in value]}
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        return {"dict": [[key, _plain(v)] for key, v in value.items()]}
    raise TypeError(type(value).__name__)


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    match value:
        case {"float": text}:
            return float(text)
        case {"array": values, "dtype": dtype}:
            array = np.asarray(values, dtype)
            return array if array.ndim else array[()]
        case {"list": values}:
            return [_decoded(v) for v in values]
        case {"tuple": values}:
            return tuple(_decoded(v) for v in values)
        case {"dict": items}:
            return {key: _decoded(v) for key, v in items}
    raise ModelError(f"a callback's state holds {value!r}; was it written by another version?")


def _unknown_to_json(callback: Any) -> dict[str, Any]:
    """Return the attributes that JSON does not know."""
    known = _remembered(callback)
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in known and name not in _NOT_REMEMBERED
    }


def _refuse_what_is_forgotten(callback: Any, before: dict[str, Any]) -> None:
    for name, value in _unknown_to_json(callback).items():
        if name not in before or before[name] is not value:
            raise ModelError(
                f"callback {type(callback).__name__} sets {name} to a {type(value).__name__}, "
                "which the next worker that calls it cannot be given; remember numbers, strings, "
                "arrays, lists and dicts"
            )
