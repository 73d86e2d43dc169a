"""Callbacks in a job: each call makes them anew, and gives back what they remembered.

A callback is told of the job and not of one worker: of its epochs, evaluations, begin and end.
`keras/job_callbacks.py` and `torch/callbacks.py` say which callbacks of their framework may be
called, and how.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from elasticdl.backends.base import CallbackNeeds
from elasticdl.backends.call_order import Tell, told_nobody
from elasticdl.errors import ModelError
from elasticdl.job import CallbackCall, CallbackResult, Moment, MomentKind
from elasticdl.packages.frameworks.callback_memory import CallbackMemory
from elasticdl.packages.frameworks.callbacks import JobControl, LearningRateScheduler
from elasticdl.packages.frameworks.model_notes import of_schedule
from elasticdl.packages.frameworks.python_state import check_unchanged, globals_now, globals_of
from elasticdl.packages.frameworks.user_code import no_place, user_code

Rate = Callable[[int], float]


class Hooks(Protocol):
    """The functions of one callback that the job calls; see `elasticdl.callbacks.Callback`."""

    def on_train_begin(self) -> None:
        """Training begins."""
        ...

    def on_epoch_begin(self, epoch: int) -> None:
        """An epoch begins."""
        ...

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """An epoch is done."""
        ...

    def on_evaluation_end(self, evaluation: int, logs: Mapping[str, float]) -> None:
        """An evaluation is done."""
        ...

    def on_train_end(self, logs: Mapping[str, float]) -> None:
        """Training is over."""
        ...


class JobCallbacks:
    """Calls the callbacks of `callbacks()` that are the job's to call.

    Args:
        make: Returns them, new ones each time, in the same order.
        rate: The optimizer's learning rate; None: it is a schedule.
        hooks: (callback, job) -> what is called of a new callback.
        memory: The memory of the callbacks.
        needs: Their needs that the job must meet.
    """

    def __init__(
        self,
        make: Callable[[], Sequence[object]],
        rate: float | None,
        hooks: Callable[[Any, JobControl], Hooks],
        memory: CallbackMemory,
        needs: CallbackNeeds,
    ) -> None:
        self.needs = needs
        self._make = make
        self._rate = rate
        self._hooks = hooks
        self._memory = memory

    def run(self, call: CallbackCall, is_alone: bool) -> CallbackResult:
        """Call each callback for one moment; return what they remember and have decided.

        Args:
            call: The moment, and what callbacks remember.
            is_alone: No other process would miss what a callback changes in the model file.

        Raises:
            ModelError: One raised, or remembers what JSON does not know.
            SideEffectError: One has changed globals of the model file, and `is_alone` is False.
        """
        if is_alone:
            return self._called(call)
        before = globals_now(self.needs.namespace)
        result = self._called(call)
        check_unchanged(before, self.needs.namespace)
        return result

    def _called(self, call: CallbackCall) -> CallbackResult:
        callbacks = list(self._make())
        states = json.loads(call.state) if call.state else [{} for _ in callbacks]
        if len(states) != len(callbacks):
            raise ModelError(
                f"callbacks() gives {len(callbacks)} callbacks, and the job remembers "
                f"{len(states)}: expected the same ones at each call, in the same order; was the "
                "model file changed while the job runs?"
            )
        is_set = self._rate is not None and call.learning_rate is not None
        rate = call.learning_rate if is_set else self._rate
        control = JobControl(rate, call.num_epochs)
        hooks = []
        for callback, state in zip(callbacks, states, strict=True):
            hooks.append(self._hooks(callback, control))
            self._memory.remind(callback, state)
        before = [self._memory.unknown(callback) for callback in callbacks]
        stop = ""
        for callback, called in zip(callbacks, hooks, strict=True):
            _tell(called, type(callback).__name__, call.moment, call.num_epochs)
            if control.is_stopped and not stop:
                stop = type(callback).__name__
        for callback, unknown in zip(callbacks, before, strict=True):
            self._memory.refuse_what_is_forgotten(callback, unknown)
        state = json.dumps([self._memory.of(callback) for callback in callbacks])
        changed = control.changed
        return CallbackResult(state, call.learning_rate if changed is None else changed, stop)


def _tell(hooks: Hooks, name: str, moment: Moment, num_epochs: int) -> None:
    """Call the hooks of a callback that a moment means."""
    number, logs = moment.number, moment.logs
    with user_code(f"callback {name}", f" at {moment.kind}", no_place):
        match moment.kind:
            case MomentKind.TRAIN_BEGIN:
                hooks.on_train_begin()
                hooks.on_epoch_begin(0)
            case MomentKind.EPOCH_END:
                hooks.on_epoch_end(number, logs)
                if number + 1 < num_epochs:
                    hooks.on_epoch_begin(number + 1)
            case MomentKind.EVALUATION:
                hooks.on_evaluation_end(number, logs)
            case MomentKind.TRAIN_END:
                hooks.on_train_end(logs)


def made_by(callbacks: Callable[[], list[object]] | None) -> list[object]:
    """Call `callbacks()` of a model file.

    Raises:
        ModelError: It raises, or returns something else.
    """
    if callbacks is None:
        return []
    with user_code("callbacks", after=no_place):
        found = callbacks()
    if not isinstance(found, list | tuple):
        raise ModelError(f"callbacks must return a list, found {type(found).__name__}")
    return list(found)


def scheduled_rate(
    callbacks: Callable[[], list[object]] | None, tell: Tell = told_nobody
) -> Rate | None:
    """Return the learning rate by model version that a callback gives, if one does."""
    rate: Rate | None = None
    for callback in made_by(callbacks):
        if isinstance(callback, LearningRateScheduler):
            rate = _rate_of(callback)
            for told in of_schedule(callback.schedule):
                tell(told)
            refuse_counting("the schedule of LearningRateScheduler", partial(rate, 0))
    return rate


def refuse_counting(what: str, rate: Callable[[], float]) -> None:
    """Refuse a learning rate that is another one when it is asked for again.

    Args:
        what: Gives it, for the message.
        rate: Asks for that of one step.

    Raises:
        ModelError: It differs, or the user's function raises.
    """
    with user_code(what):
        # A rate that counts its own calls shows by a second call for the same step.
        first, again = rate(), rate()
    if first != again and not (math.isnan(first) and math.isnan(again)):
        raise ModelError(
            f"{what} gives another number at each call ({first:g}, {again:g}), which each process "
            "would make for itself; expected a rate that follows from the number of updates alone, "
            "as that of the framework's own schedules does"
        )


def _rate_of(callback: LearningRateScheduler) -> Rate:
    def rate(version: int) -> float:
        return float(callback.schedule(version))

    return rate


class Watching(Protocol):
    """A callback that watches a metric."""

    monitor: str
    mode: str


def follows_evaluations(monitor: str) -> bool:
    """Whether what a callback watches comes of evaluations, and not of the epochs."""
    return monitor.startswith("val_")


def needs_of(
    watching: Sequence[Watching], callbacks: Callable[[], list[object]] | None
) -> CallbackNeeds:
    """Say what callbacks need of the job: `watching` has those with a `monitor`."""
    watches = [c for c in watching if follows_evaluations(c.monitor)]
    names = [f"{type(c).__name__}(monitor={c.monitor!r})" for c in watches]
    watches_loss = any(c.monitor == "val_loss" for c in watches)
    return CallbackNeeds(names[-1] if names else "", watches_loss, globals_of(callbacks))


def check_monitor(callback: Watching, directions: Mapping[str, str | None]) -> None:
    """Refuse a callback that cannot watch the metric that it names.

    Args:
        callback: It has a `monitor` and a `mode`.
        directions: The metrics of evaluations by name: "min", "max", or None if nobody knows.

    Raises:
        ModelError: No metric has that name, or it is unknown whether less or more is better.
    """
    name = f"callback {type(callback).__name__}(monitor={callback.monitor!r})"
    known = ["loss", "val_loss", *(f"val_{metric}" for metric in directions)]
    if callback.monitor not in known and callback.monitor in directions:
        raise ModelError(
            f"{name} watches the metric of training, which a job measures on a part of the "
            "minibatches, and not at the end of each epoch; watch the evaluations: "
            f"monitor='val_{callback.monitor}'"
        )
    if callback.monitor not in known:
        raise ModelError(f"{name}: expected one of {', '.join(known)}")
    mode_of(callback, directions)


def mode_of(callback: Watching, directions: Mapping[str, str | None]) -> str:
    """Return "min" or "max" for the metric that a callback watches.

    Raises:
        ModelError: It cannot be told; says that `mode` tells it.
    """
    watched = callback.monitor.removeprefix("val_")
    if callback.mode != "auto":
        return callback.mode
    if watched == "loss":
        return "min"
    direction = directions.get(watched)
    if direction is None:
        raise ModelError(
            f"callback {type(callback).__name__}(monitor={callback.monitor!r}): whether more "
            'or less of it is better cannot be told; say mode="max" or mode="min"'
        )
    return direction


def check_rate(callback: object, rate: float | None) -> None:
    """Refuse a callback that sets the learning rate, where that is a schedule (None)."""
    if rate is None:
        raise ModelError(
            f"callback {type(callback).__name__}: the optimizer's learning rate is a schedule, "
            "which it cannot set; give the optimizer a number"
        )
