"""Settings of the user's optimizer reach the store, or are refused by name."""

import itertools

import keras
import pytest
import tensorflow as tf

from elasticdl.backends.base import ClipSpec, ConstraintSpec, VariableDescription
from elasticdl.callbacks import LearningRateScheduler
from elasticdl.errors import ModelError
from elasticdl.packages.keras.callbacks import learning_rate_of
from elasticdl.packages.keras.optimizer import (
    describe_clip,
    describe_optimizer,
    describe_updates,
    make_optimizer,
    rule_of_table,
)

pytestmark = pytest.mark.keras

o = keras.optimizers


@pytest.mark.parametrize(
    ("optimizer", "kind", "params"),
    [
        (o.SGD(0.1), "sgd", {}),
        (tf.optimizers.SGD(0.1), "sgd", {}),
        (o.SGD(momentum=0.9), "momentum", {"momentum": 0.9, "nesterov": 0.0}),
        (o.SGD(momentum=0.5, nesterov=True), "momentum", {"momentum": 0.5, "nesterov": 1.0}),
        (o.Adagrad(), "adagrad", {"epsilon": 1e-7, "initial_accumulator": 0.1}),
        (
            o.Adam(beta_1=0.8),
            "adam",
            {"beta_1": 0.8, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0},
        ),
        (
            o.Adam(amsgrad=True),
            "adam",
            {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 1.0},
        ),
        (
            o.AdamW(),
            "adamw",
            {
                "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0,
                "weight_decay": 0.004,
            },
        ),
        (
            o.RMSprop(centered=True),
            "rmsprop",
            {"rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": 1.0},
        ),
        (
            o.Ftrl(l1_regularization_strength=0.1, beta=1.0),
            "ftrl",
            {
                "learning_rate_power": -0.5, "initial_accumulator": 0.1, "l1": 0.1, "l2": 0.0,
                "l2_shrinkage": 0.0, "beta": 1.0,
            },
        ),
        (o.SGD(weight_decay=0.1), "sgd", {"weight_decay": 0.1}),
        (o.Adadelta(rho=0.5), "adadelta", {"rho": 0.5, "epsilon": 1e-7}),
        (o.Nadam(weight_decay=0.2), "nadam",
         {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "weight_decay": 0.2}),
        (o.Lion(), "lion", {"beta_1": 0.9, "beta_2": 0.99}),
        (
            o.ScheduleFreeAdamW(warmup_steps=3),
            "schedule_free_adamw",
            {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "warmup_steps": 3.0},
        ),
    ],
    ids=lambda v: getattr(v, "name", ""),
)  # fmt: skip
def test_settings_are_read(optimizer, kind, params):
    spec = describe_optimizer(optimizer)
    assert (spec.kind, spec.params) == (kind, params)


def own(update_step):
    """An optimizer of one's own."""
    return type("Own", (o.SGD,), {"update_step": update_step})()


def overriding(method):
    """One of which a subclass changes what happens around `update_step`."""
    plain = getattr(o.SGD, method)
    return type("Own", (o.SGD,), {method: lambda self, *args: plain(self, *args)})()


def begun(optimizer):
    """An optimizer that has counted steps before the job."""
    optimizer.iterations.assign(7)
    return optimizer


counted = itertools.count(1).__next__


def with_its_own(**methods):
    """An optimizer of Keras on which functions were set."""
    made = o.SGD()
    vars(made).update(methods)
    return made


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (o.Adam(use_ema=True), "use_ema=True.*let the learning rate decay"),
        (o.Adam(loss_scale_factor=8.0), "loss_scale_factor=8.0.*need no scale"),
        (o.Adam(gradient_accumulation_steps=2), "gradient_accumulation_steps=2.*--minibatch_size"),
        (o.Adafactor(), "Adafactor is not one.*rows and columns of a whole variable"),
        (o.Lamb(), "Lamb is not one.*norm of a whole variable"),
        (o.Muon(), "Muon is not one.*whole matrix orthogonal"),
        (o.LossScaleOptimizer(o.SGD()), "LossScaleOptimizer is not one.*mixed_bfloat16"),
        (o.MultiOptimizer({".*": o.SGD()}), "MultiOptimizer is not one.*one optimizer"),
        (
            own(lambda s, g, v, lr: v.assign_sub(g / keras.ops.norm(g))),
            "Own uses TensorFlow's|a con",
        ),
        (
            own(lambda s, g, v, lr: v.assign_sub(g * counted())),
            "in another call; expected one rule",
        ),
        (own(lambda s, g, v, lr: v.assign_sub(g * len(v.shape))), "something else to 'bias' than"),
        (own(lambda s, g, v, lr: v.assign_sub(keras.random.normal(v.shape))), "Own uses a variab"),
        (
            own(
                lambda s, g, v, lr: v.assign_sub(
                    keras.ops.cast(keras.ops.cast(g, "int32"), lr.dtype)
                )
            ),
            "rule Own uses a cast of float32 to int32, which the ps replicas do not compute",
        ),
        (
            own(
                lambda s, g, v, lr: v.assign_sub(keras.ops.cast(keras.ops.cast(g, bool), lr.dtype))
            ),
            "rule Own uses a cast of float32 to bool",
        ),
        (own(lambda s, g, v, lr: v.assign_sub(g + 1 / 0)), "update_step.*division by zero"),
        (with_its_own(apply=lambda *a: None), r"apply\(\) was set on the optimizer SGD"),
        (
            type("Own", (o.SGD,), {"apply": lambda *a: None})(),
            r"Own overrides apply\(\).*update_step",
        ),
        (overriding("_clip_gradients"), r"Own overrides _clip_gradients\(\)"),
        (overriding("_apply_weight_decay"), r"Own overrides _apply_weight_decay\(\)"),
        (overriding("_get_current_learning_rate"), r"Own overrides _get_current_learning_rate"),
        (overriding("scale_loss"), r"Own overrides scale_loss\(\)"),
        (type("Own", (overriding("scale_loss").__class__,), {})(), r"Own overrides scale_loss"),
        (begun(o.Adam()), "Adam has made 7 steps.*--checkpoint_dir_for_init"),
    ],
)
def test_what_the_ps_replicas_cannot_apply_is_refused_by_name(optimizer, says):
    variables = [keras.Variable([0.1], name="bias"), keras.Variable([[0.1]], name="kernel")]
    with pytest.raises(ModelError, match=says):
        describe_optimizer(optimizer, variables)


def test_clipping_is_read_and_a_limit_that_is_none_is_refused():
    optimizers = (o.SGD(clipnorm=1.0), o.SGD(clipvalue=0.5), o.Adam(global_clipnorm=2.0), o.SGD())
    assert [describe_clip(optimizer) for optimizer in optimizers] == [
        ClipSpec("norm", 1.0), ClipSpec("value", 0.5), ClipSpec("global_norm", 2.0), None,
    ]  # fmt: skip
    with pytest.raises(ModelError, match=r"SGD has clipnorm=0.0; expected a number above 0"):
        describe_clip(o.SGD(clipnorm=0.0))


def test_variables_are_excluded_from_weight_decay_by_name_and_by_themselves():
    layer = keras.layers.Dense(1, name="out")
    layer.build((None, 2))
    kernel, bias = layer.trainable_variables
    described = [VariableDescription("a", (2, 1), 0), VariableDescription("b", (1,), 2)]

    by_name, by_itself = o.AdamW(weight_decay=0.1), o.AdamW(weight_decay=0.1)
    by_name.exclude_from_weight_decay(var_names=["bias", "user/embeddings"])
    by_itself.exclude_from_weight_decay(var_list=[kernel])

    decays = [
        [v.decays for v in describe_updates(optimizer, [kernel, bias], described)]
        for optimizer in (by_name, by_itself, o.AdamW())
    ]
    assert decays == [[True, False], [False, True], [True, True]]
    rule = describe_optimizer(by_name)
    assert rule_of_table(by_name, rule, "model/user/embeddings").params["weight_decay"] == 0.0
    assert rule_of_table(by_name, rule, "model/item/embeddings") is rule


def test_a_dense_constraint_of_each_element_is_described_and_others_are_refused():
    layer = keras.layers.Dense(1, kernel_constraint="non_neg", name="bounded")
    layer.build((None, 2))
    described = [VariableDescription("a", (2, 1), 0), VariableDescription("b", (1,), 2)]
    kernel, bias = describe_updates(o.SGD(), layer.trainable_variables, described)
    assert (kernel.constraint, bias.constraint) == (ConstraintSpec("non_neg"), None)

    layer = keras.layers.Dense(1, kernel_constraint="max_norm", name="bounded")
    layer.build((None, 2))
    with pytest.raises(ModelError, match=r"bounded/kernel.*MaxNorm.*use NonNeg"):
        describe_updates(o.SGD(), layer.trainable_variables, described)


def test_a_fixed_rate_is_what_keras_holds_in_float32():
    rate = learning_rate_of(o.SGD(0.1), None)
    assert rate(0) == rate(1000) == pytest.approx(0.1, rel=1e-7)


def test_a_schedule_is_evaluated_at_the_model_version():
    schedule = o.schedules.ExponentialDecay(0.5, decay_steps=10, decay_rate=0.1)
    rate = learning_rate_of(o.SGD(schedule), None)
    assert [rate(v) for v in (0, 10, 20)] == pytest.approx([0.5, 0.05, 0.005])
    steps = o.schedules.PiecewiseConstantDecay([5, 10], [1.0, 0.5, 0.1])
    rate = learning_rate_of(o.Adam(steps), None)
    assert [rate(v) for v in (5, 6, 11)] == pytest.approx([1.0, 0.5, 0.1])


def test_a_callable_rate_is_called():
    assert learning_rate_of(o.SGD(lambda: 0.25), None)(7) == 0.25


class Counting(o.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 / counted()


@pytest.mark.parametrize(
    ("rate", "callback"),
    [(lambda: 0.1 / counted(), None), (Counting(), None), (0.1, lambda version: 0.1 / counted())],
    ids=["function", "schedule", "callback"],
)
def test_a_rate_that_counts_by_itself_is_refused(rate, callback):
    callbacks = None if callback is None else lambda: [LearningRateScheduler(callback)]
    with pytest.raises(ModelError, match=r"another number at each call.*schedules"):
        learning_rate_of(o.SGD(rate), callbacks)


def test_a_callback_sets_the_rate_by_model_version():
    callbacks = [
        LearningRateScheduler(lambda version: 0.1 if version < 5 else 0.01),
        keras.callbacks.TerminateOnNaN(),
    ]
    rate = learning_rate_of(o.SGD(1.0), lambda: callbacks)
    assert [rate(4), rate(5)] == [0.1, 0.01]


def test_an_optimizer_function_that_raises_is_named():
    with pytest.raises(ModelError, match="optimizer raised ZeroDivisionError"):
        make_optimizer(lambda: 1 / 0)
    with pytest.raises(ModelError, match="needs a function optimizer"):
        make_optimizer(None)
