"""Callbacks that watch one quantity of a job, and act when it stops getting better."""

from __future__ import annotations

import math
from collections.abc import Mapping

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.callbacks.base import Callback

_MODES = ("auto", "min", "max")


class MonitorCallback(Callback):
    """Watches one quantity; derive from it and write `watch`.

    Args:
        monitor: `"loss"` at the end of each epoch, or `"val_NAME"` at each evaluation, where NAME
            is the name of a metric in `eval_metrics_fn`. `"val_loss"` is the loss of the
            evaluation.
        mode: Whether less ("min") or more ("max") is better. "auto": less is better for losses, and
            metrics of torchmetrics know their mode; for other metrics the mode must be given.
    """

    def __init__(self, monitor: str = "val_loss", mode: str = "auto") -> None:
        if mode not in _MODES:
            raise ModelError(
                f"{type(self).__name__}(mode={mode!r}): expected one of {', '.join(_MODES)}"
            )
        self.monitor = monitor
        self.mode = mode

    def watch(self, number: int, value: float) -> None:
        """Called with each value, and the number of its epoch or evaluation, from 0."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """See `Callback`."""
        if self.monitor == "loss" and "loss" in logs:  # of an epoch of no examples there is none
            self.watch(epoch, logs["loss"])

    def on_evaluation_end(self, evaluation: int, logs: Mapping[str, float]) -> None:
        """See `Callback`.

        Raises:
            ModelError: The evaluation has no such metric.
        """
        if self.monitor == "loss":
            return
        if self.monitor not in logs:
            known = ", ".join(name for name in logs if name.startswith("val_"))
            raise ModelError(
                f"callback {type(self).__name__}(monitor={self.monitor!r}): the evaluation has "
                f"{known or 'no metric'}"
            )
        self.watch(evaluation, logs[self.monitor])


class EarlyStopping(MonitorCallback):
    """Stops training when a quantity stops getting better; the settings are those of Keras.

    NaN is never better. Weights are not restored: start from a checkpoint of the best evaluation.

    Args:
        monitor: See `MonitorCallback`.
        min_delta: A value counts as better only if it is better by more than this.
        patience: Training stops after this number of values in a row that are not better.
        mode: See `MonitorCallback`.
        baseline: A further limit: a value that is not better than the baseline does not count as
            better.
        start_from_epoch: The number of first epochs (or evaluations with `"val_..."`) that are
            ignored.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode)
        # Keras accepts a negative number too.
        self.min_delta = abs(min_delta)
        self.patience = patience
        self.baseline = baseline
        self.start_from_epoch = start_from_epoch
        self.wait = 0
        self.best: float | None = None

    def watch(self, number: int, value: float) -> None:
        """See `MonitorCallback`."""
        if number < self.start_from_epoch:
            return
        self.wait += 1
        if self._is_better(value, self.best):
            self.best = value
            if self._is_better(value, self.baseline):
                self.wait = 0
        # The first value alone never stops training, which is the rule of Keras.
        elif self.wait >= self.patience and number > 0:
            self.stop_training()

    def _is_better(self, value: float, than: float | None) -> bool:
        if than is None:
            return not math.isnan(value)
        if self.mode == "max":
            return value - self.min_delta > than
        return value + self.min_delta < than


class ReduceLROnPlateau(MonitorCallback):
    """Lowers the learning rate when a quantity stops getting better.

    The settings are those of `torch.optim.lr_scheduler.ReduceLROnPlateau`, and the same values lead
    to the same rates. A new rate holds for tasks that are leased later.

    Args:
        monitor: See `MonitorCallback`.
        mode: See `MonitorCallback`.
        factor: The rate is multiplied by this.
        patience: How many values in a row may be no better; the next such value lowers the rate.
        threshold: The least improvement of a better value.
        threshold_mode: "rel": the threshold is a part of the best value; "abs": it is a difference.
        cooldown: The number of values that are not counted after a change of the rate.
        min_lr: The lowest rate.
        eps: The rate stays the same if it would change by this or less.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        mode: str = "auto",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(monitor, mode)
        if not factor < 1.0:
            raise ModelError(f"ReduceLROnPlateau(factor={factor}): expected less than 1")
        if threshold_mode not in ("rel", "abs"):
            raise ModelError(
                f"ReduceLROnPlateau(threshold_mode={threshold_mode!r}): expected rel or abs"
            )
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.eps = eps
        self.best: float | None = None
        self.num_bad = 0
        self.num_cooling = 0

    def watch(self, number: int, value: float) -> None:
        """See `MonitorCallback`."""
        if self._is_better(value):
            self.best = value
            self.num_bad = 0
        else:
            self.num_bad += 1
        # Values during the cooldown are not counted, which is the rule of PyTorch.
        if self.num_cooling > 0:
            self.num_cooling -= 1
            self.num_bad = 0
        if self.num_bad > self.patience:
            self._reduce()
            self.num_cooling = self.cooldown
            self.num_bad = 0

    def _is_better(self, value: float) -> bool:
        if self.best is None:
            return math.isfinite(value)  # as less than, or more than, an infinite best value
        sign = 1.0 if self.mode == "max" else -1.0
        if self.threshold_mode == "rel":
            bound = self.best * (1.0 + sign * self.threshold)
        else:
            bound = self.best + sign * self.threshold
        return value > bound if self.mode == "max" else value < bound

    def _reduce(self) -> None:
        reduced = max(self.learning_rate * self.factor, self.min_lr)
        if self.learning_rate - reduced > self.eps:
            self.learning_rate = reduced
