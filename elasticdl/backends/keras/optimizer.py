"""A user's Keras optimizer as what the store applies, and its learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from elasticdl.backends.base import OptimizerSpec
from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.optimizers.group_ftrl import GroupFtrl

REFUSED = (
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


def make_optimizer(make: Callable[[], Any] | None) -> Any:
    """Call the user's `optimizer` function.

    Raises:
        ModelError: There is none, it raises, or it returns something else.
    """
    if make is None:
        raise ModelError("training needs a function optimizer() in the model file; found none")
    try:
        optimizer = make()
    except ElasticdlError:
        raise
    except Exception as error:
        raise ModelError(f"optimizer raised {type(error).__name__}: {error}") from error
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ModelError(
            f"optimizer must return a keras.optimizers.Optimizer, found {type(optimizer).__name__}"
        )
    return optimizer


def describe_optimizer(optimizer: Any) -> OptimizerSpec:
    """Read the settings that the store needs; the learning rate is not among them.

    Raises:
        ModelError: The optimizer, or one of its settings, is not one that the store applies.
    """
    kinds = keras.optimizers
    name = type(optimizer).__name__
    for setting in REFUSED:
        if getattr(optimizer, setting, None):
            raise ModelError(
                f"optimizer {name} has {setting}={getattr(optimizer, setting)!r}, which the ps "
                "replicas cannot apply: each sees only its part of a gradient; leave it out"
            )
    readers: list[tuple[type[Any], Callable[[Any], OptimizerSpec]]] = [
        (kinds.SGD, _sgd),
        (kinds.Adagrad, _adagrad),
        (kinds.AdamW, _adam),
        (kinds.Adam, _adam),
        (kinds.RMSprop, _rmsprop),
        (kinds.Ftrl, _ftrl),
        (GroupFtrl, _group_ftrl),
    ]
    reader = next((read for kind, read in readers if type(optimizer) is kind), None)
    if reader is None:
        known = ", ".join(kind.__name__ for kind, _ in readers)
        raise ModelError(f"optimizer {name} is not one that the ps replicas apply: {known}")
    if optimizer.weight_decay and not isinstance(optimizer, kinds.AdamW):
        raise ModelError(
            f"optimizer {name} has weight_decay={optimizer.weight_decay!r}, which the ps replicas "
            "apply for AdamW only; use keras.optimizers.AdamW, or a kernel_regularizer"
        )
    return reader(optimizer)


def check_variables(variables: Sequence[Any]) -> None:
    """Refuse what Keras' optimizers do to variables after an update.

    Raises:
        ModelError: A variable has a constraint.
    """
    for variable in variables:
        if getattr(variable, "constraint", None) is not None:
            raise ModelError(
                f"variable {variable.path!r} has the constraint "
                f"{type(variable.constraint).__name__}, which the ps replicas cannot apply: they "
                "know no variables; leave it out"
            )


class LearningRate:
    """The learning rate as a function of the model's version, from the optimizer's settings."""

    def __init__(self, optimizer: Any) -> None:
        rate = optimizer._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            compiled = tf.function(
                rate, autograph=False, input_signature=[tf.TensorSpec([], tf.int64)]
            )
            self._at: Callable[[int], Any] = lambda version: compiled(
                tf.constant(version, tf.int64)
            )
        elif callable(rate) and not isinstance(rate, keras.Variable):
            self._at = lambda version: rate()
        else:
            fixed = _number(rate)
            self._at = lambda version: fixed

    def __call__(self, version: int) -> float:
        """Return the rate of the step that starts at `version`."""
        return _number(self._at(version))


def _number(value: Any) -> float:
    return float(value.numpy() if hasattr(value, "numpy") else value)


def _sgd(optimizer: Any) -> OptimizerSpec:
    if not optimizer.momentum:
        return OptimizerSpec("sgd")
    return _spec("momentum", optimizer, "momentum", "nesterov")


def _adagrad(optimizer: Any) -> OptimizerSpec:
    return _spec("adagrad", optimizer, "epsilon", initial_accumulator="initial_accumulator_value")


def _adam(optimizer: Any) -> OptimizerSpec:
    settings = ("beta_1", "beta_2", "epsilon", "amsgrad")
    if isinstance(optimizer, keras.optimizers.AdamW):
        excluded = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
        if any(getattr(optimizer, name, None) for name in excluded):
            raise ModelError(
                "optimizer AdamW excludes variables from weight decay, which the ps replicas "
                "cannot: they know no variables; decay all, or use kernel_regularizer"
            )
        return _spec("adamw", optimizer, *settings, "weight_decay")
    return _spec("adam", optimizer, *settings)


def _rmsprop(optimizer: Any) -> OptimizerSpec:
    return _spec("rmsprop", optimizer, "rho", "momentum", "epsilon", "centered")


def _ftrl(optimizer: Any) -> OptimizerSpec:
    return _spec(
        "ftrl",
        optimizer,
        "learning_rate_power",
        "beta",
        initial_accumulator="initial_accumulator_value",
        l1="l1_regularization_strength",
        l2="l2_regularization_strength",
        l2_shrinkage="l2_shrinkage_regularization_strength",
    )


def _group_ftrl(optimizer: Any) -> OptimizerSpec:
    params = _ftrl(optimizer).params
    del params["learning_rate_power"]  # it is -0.5
    return OptimizerSpec("group_ftrl", {**params, "l21": optimizer.group_lasso_strength})


def _spec(kind: str, optimizer: Any, *same: str, **renamed: str) -> OptimizerSpec:
    names = {name: name for name in same} | renamed
    return OptimizerSpec(
        kind, {ours: float(getattr(optimizer, theirs)) for ours, theirs in names.items()}
    )
