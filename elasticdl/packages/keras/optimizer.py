"""A user's Keras optimizer as what the store applies, and its learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import keras
import tensorflow as tf

from elasticdl.backends.base import (
    ClipSpec,
    ConstraintSpec,
    OptimizerSpec,
    VariableDescription,
)
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.job_callbacks import refuse_counting
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.keras.group_ftrl import GroupFtrl
from elasticdl.packages.keras.model.old_calls import remedy_of
from elasticdl.packages.keras.own_optimizer import own_program

# Why an optimizer cannot be applied by ps replicas, each of which holds a part of the variables.
REFUSED_KINDS = {
    "Adafactor": "it keeps sums over the rows and columns of a whole variable; use Adagrad",
    "Lamb": "it scales a step by the norm of a whole variable; use AdamW",
    "LossScaleOptimizer": "gradients are float32 here and need no scale; use the optimizer that it "
    "wraps, and the policy mixed_bfloat16 for mixed precision",
    "MultiOptimizer": "one optimizer updates all variables; use one of those that it holds",
    "Muon": "it makes the update of a whole matrix orthogonal; use AdamW",
}
REFUSED_SETTINGS = {
    "use_ema": "they keep no averages of variables; let the learning rate decay to nearly zero "
    "instead, by a schedule of keras.optimizers.schedules",
    "loss_scale_factor": "gradients are float32 here and need no scale; leave it out",
    "gradient_accumulation_steps": "each minibatch is an update; use a --minibatch_size that many "
    "times as large, which has the same mean gradient, or --use_async=false with --grads_to_wait",
}


def make_optimizer(make: Callable[[], object] | None) -> keras.optimizers.Optimizer:
    """Call the user's `optimizer` function.

    Raises:
        ModelError: There is none, it raises, or it returns something else.
    """
    if make is None:
        raise ModelError("training needs a function optimizer() in the model file; found none")
    with user_code("optimizer", after=remedy_of):
        optimizer = make()
        if isinstance(optimizer, str | dict):
            optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ModelError(
            f"optimizer must return a keras.optimizers.Optimizer, found {type(optimizer).__name__}"
        )
    return optimizer


def describe_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable] = ()
) -> OptimizerSpec:
    """Read the settings that the store needs; the learning rate is not among them.

    Args:
        optimizer: One of Keras', or of the user's own.
        variables: The dense variables that it is for.

    Raises:
        ModelError: The optimizer, or one of its settings, is not one that the store applies.
    """
    name = type(optimizer).__name__
    read = READERS.get(type(optimizer))
    if read is None and name in REFUSED_KINDS:
        known = ", ".join(kind.__name__ for kind in READERS)
        raise ModelError(
            f"optimizer {name} is not one that the ps replicas apply: {REFUSED_KINDS[name]}; "
            f"{known}, or one of your own that updates element by element"
        )
    known = keras.optimizers.Optimizer
    changed = sorted(own for own in vars(optimizer) if callable(getattr(known, own, None)))
    if changed:
        raise ModelError(
            f"{changed[0]}() was set on the optimizer {name}, which ps replicas do not call; "
            "expected a subclass with its rule in update_step(gradient, variable, learning_rate)"
        )
    if number := int(optimizer.iterations):
        raise ModelError(
            f"optimizer {name} has made {number} steps (iterations); a job counts its updates from "
            "0, and begins with fresh slots: expected a new optimizer. Have a schedule begin where "
            "it should, or go on from a checkpoint with --checkpoint_dir_for_init"
        )
    for setting, why in REFUSED_SETTINGS.items():
        if getattr(optimizer, setting, None):
            raise ModelError(
                f"optimizer {name} has {setting}={getattr(optimizer, setting)!r}, which the ps "
                f"replicas cannot apply: {why}"
            )
    kinds = [(variable.name, len(variable.shape)) for variable in variables]
    spec = (
        OptimizerSpec("own", program=own_program(optimizer, kinds))
        if read is None
        else read(optimizer)
    )
    if optimizer.weight_decay:
        spec.params["weight_decay"] = float(optimizer.weight_decay)
    return spec


def what_updates_change(
    optimizer: keras.optimizers.Optimizer, has_callbacks: bool
) -> dict[str, keras.Variable]:
    """Return the optimizer's variables that plain Keras changes in training, by name.

    Args:
        optimizer: The user's.
        has_callbacks: Whether there are callbacks, which may set the learning rate.
    """
    name = type(optimizer).__name__
    found = {f"{name}.iterations": optimizer.iterations}
    rate = optimizer._learning_rate
    if has_callbacks and isinstance(rate, keras.Variable):
        found[f"{name}.learning_rate"] = rate
    return found


CLIPS = {"clipnorm": "norm", "global_clipnorm": "global_norm", "clipvalue": "value"}


def describe_clip(optimizer: keras.optimizers.Optimizer) -> ClipSpec | None:
    """Return how the optimizer clips gradients.

    Raises:
        ModelError: The limit is 0 or less, which Keras takes for none.
    """
    for setting, kind in CLIPS.items():
        limit = getattr(optimizer, setting)
        if limit is None:
            continue
        if not limit > 0:
            raise ModelError(
                f"optimizer {type(optimizer).__name__} has {setting}={limit!r}; expected a number "
                "above 0: leave it out for no clipping"
            )
        return ClipSpec(kind, float(limit))
    return None


def rule_of_table(
    optimizer: keras.optimizers.Optimizer, rule: OptimizerSpec, path: str
) -> OptimizerSpec:
    """Return the rule of a table of that path, which may be excluded from weight decay."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    if pattern is None or pattern.search(path) is None:
        return rule
    return replace(rule, params={**rule.params, "weight_decay": 0.0})


def describe_updates(
    optimizer: keras.optimizers.Optimizer,
    variables: Sequence[keras.Variable],
    described: Sequence[VariableDescription],
) -> tuple[VariableDescription, ...]:
    """Add the weight decay and the constraint of each dense variable to its description.

    Raises:
        ModelError: A variable has a constraint that needs the whole of it, or no gradient.
    """
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ModelError(
                f"variable {variable.path!r} has overwrite_with_gradient, as those of "
                'quantize("float8") have: ps replicas apply gradients and take none for a value; '
                "train without it"
            )
    return tuple(
        replace(
            description,
            decays=bool(optimizer._use_weight_decay(_as_decayed(variable))),
            constraint=_constraint(variable),
        )
        for variable, description in zip(variables, described, strict=True)
    )


def _as_decayed(variable: keras.Variable) -> keras.Variable:
    """Return what Keras decays: on TensorFlow its variable, whose name is the whole path."""
    return variable.value if keras.backend.backend() == "tensorflow" else variable


def _constraint(variable: keras.Variable) -> ConstraintSpec | None:
    constraint = getattr(variable, "constraint", None)
    if constraint is None:
        return None
    if type(constraint) is keras.constraints.NonNeg:
        return ConstraintSpec("non_neg")
    raise ModelError(
        f"variable {variable.path!r} has the constraint {type(constraint).__name__}, which the ps "
        "replicas cannot apply: each may hold a part of the variable; use NonNeg, a "
        "regularizer, or keras.ops.normalize where the model uses the weight"
    )


def has_schedule(optimizer: keras.optimizers.Optimizer) -> bool:
    """Say whether a schedule gives the learning rate of an optimizer, which may be None."""
    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


class LearningRate:
    """The learning rate as a function of the model's version, from the optimizer's settings."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        rate = optimizer._learning_rate
        if has_schedule(optimizer):
            first = tf.constant(0, tf.int64) if keras.backend.backend() == "tensorflow" else 0
            refuse_counting(f"the schedule {type(rate).__name__}", lambda: _number(rate(first)))
        if has_schedule(optimizer) and keras.backend.backend() != "tensorflow":
            self._at: Callable[[int], float | tf.Tensor] = rate
        elif has_schedule(optimizer):
            compiled = tf.function(
                rate, autograph=False, input_signature=[tf.TensorSpec([], tf.int64)]
            )
            self._at = lambda version: compiled(tf.constant(version, tf.int64))
        elif callable(rate) and not isinstance(rate, keras.Variable):
            refuse_counting("the function that is the learning rate", lambda: _number(rate()))
            self._at = lambda version: rate()
        else:
            fixed = _number(rate)
            self._at = lambda version: fixed

    def __call__(self, version: int) -> float:
        """Return the rate of the step that starts at `version`."""
        return _number(self._at(version))


def _number(value: float | tf.Tensor | keras.Variable) -> float:
    return float(value.numpy() if hasattr(value, "numpy") else value)


def _sgd(optimizer: keras.optimizers.Optimizer) -> OptimizerSpec:
    if not optimizer.momentum:
        return OptimizerSpec("sgd")
    return _spec("momentum", optimizer, "momentum", "nesterov")


def _adagrad(optimizer: keras.optimizers.Optimizer) -> OptimizerSpec:
    return _spec("adagrad", optimizer, "epsilon", initial_accumulator="initial_accumulator_value")


def _adam(optimizer: keras.optimizers.Optimizer) -> OptimizerSpec:
    return _spec("adam", optimizer, *MOMENTS, "amsgrad")


def _adamw(optimizer: keras.optimizers.Optimizer) -> OptimizerSpec:
    return _spec("adamw", optimizer, *MOMENTS, "amsgrad", "weight_decay")


def _ftrl(optimizer: keras.optimizers.Optimizer) -> OptimizerSpec:
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


def _group_ftrl(optimizer: keras.optimizers.Optimizer) -> OptimizerSpec:
    params = _ftrl(optimizer).params
    del params["learning_rate_power"]  # it is -0.5
    return OptimizerSpec("group_ftrl", {**params, "l21": optimizer.group_lasso_strength})


def _spec(
    kind: str, optimizer: keras.optimizers.Optimizer, *same: str, **renamed: str
) -> OptimizerSpec:
    names = {name: name for name in same} | renamed
    return OptimizerSpec(
        kind, {ours: float(getattr(optimizer, theirs)) for ours, theirs in names.items()}
    )


def _reader(kind: str, *settings: str) -> Callable[[keras.optimizers.Optimizer], OptimizerSpec]:
    return lambda optimizer: _spec(kind, optimizer, *settings)


MOMENTS = ("beta_1", "beta_2", "epsilon")
READERS: dict[
    type[keras.optimizers.Optimizer], Callable[[keras.optimizers.Optimizer], OptimizerSpec]
] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.Adadelta: _reader("adadelta", "rho", "epsilon"),
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adamw,
    keras.optimizers.Adamax: _reader("adamax", *MOMENTS),
    keras.optimizers.Nadam: _reader("nadam", *MOMENTS),
    keras.optimizers.Lion: _reader("lion", "beta_1", "beta_2"),
    keras.optimizers.ScheduleFreeAdamW: _reader("schedule_free_adamw", *MOMENTS, "warmup_steps"),
    keras.optimizers.RMSprop: _reader("rmsprop", "rho", "momentum", "epsilon", "centered"),
    keras.optimizers.Ftrl: _ftrl,
    GroupFtrl: _group_ftrl,
}
