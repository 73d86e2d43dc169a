"""Settings of the user's optimizer reach the store, or are refused by name."""

import keras
import pytest
import tensorflow as tf

from elasticdl.backends.keras.callbacks import learning_rate_of
from elasticdl.backends.keras.optimizer import (
    check_variables,
    describe_optimizer,
    make_optimizer,
)
from elasticdl.callbacks import LearningRateScheduler
from elasticdl.errors import ModelError

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
    ],
    ids=lambda v: getattr(v, "name", ""),
)  # fmt: skip
def test_settings_are_read(optimizer, kind, params):
    spec = describe_optimizer(optimizer)
    assert (spec.kind, spec.params) == (kind, params)


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (o.SGD(clipnorm=1.0), "clipnorm=1.0"),
        (o.SGD(clipvalue=0.5), "clipvalue=0.5"),
        (o.Adam(global_clipnorm=2.0), "global_clipnorm=2.0"),
        (o.Adam(use_ema=True), "use_ema=True"),
        (o.Adam(loss_scale_factor=8.0), "loss_scale_factor=8.0"),
        (o.Adam(gradient_accumulation_steps=2), "gradient_accumulation_steps=2"),
        (o.Adam(weight_decay=0.1), "weight_decay=0.1.*use keras.optimizers.AdamW"),
        (o.Nadam(), "optimizer Nadam is not one that the ps replicas apply"),
    ],
)
def test_what_the_ps_replicas_cannot_apply_is_refused_by_name(optimizer, says):
    with pytest.raises(ModelError, match=says):
        describe_optimizer(optimizer)


def test_weight_decay_for_a_part_of_the_variables_is_refused():
    optimizer = o.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(ModelError, match="excludes variables from weight decay"):
        describe_optimizer(optimizer)


def test_a_constraint_is_refused_with_the_name_of_its_variable():
    layer = keras.layers.Dense(1, kernel_constraint="non_neg", name="bounded")
    layer.build((None, 2))
    with pytest.raises(ModelError, match=r"bounded/kernel.*NonNeg"):
        check_variables(layer.trainable_variables)


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


def test_a_callback_sets_the_rate_by_model_version():
    callbacks = [
        LearningRateScheduler(lambda version: 0.1 if version < 5 else 0.01),
        keras.callbacks.TerminateOnNaN(),
    ]
    rate = learning_rate_of(o.SGD(1.0), lambda: callbacks)
    assert [rate(4), rate(5)] == [0.1, 0.01]


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (keras.callbacks.LearningRateScheduler(lambda e: 0.1), "elasticdl.callbacks"),
        (keras.callbacks.ModelCheckpoint("x.keras"), "--checkpoint_dir"),
        (keras.callbacks.EarlyStopping(), "EarlyStopping, which cannot run here"),
    ],
)
def test_callbacks_that_cannot_work_are_refused_with_what_does(callback, says):
    with pytest.raises(ModelError, match=says):
        learning_rate_of(o.SGD(1.0), lambda: [callback])


def test_an_optimizer_function_that_raises_is_named():
    with pytest.raises(ModelError, match="optimizer raised ZeroDivisionError"):
        make_optimizer(lambda: 1 / 0)
    with pytest.raises(ModelError, match="needs a function optimizer"):
        make_optimizer(None)
