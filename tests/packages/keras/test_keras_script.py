"""What a script in TensorFlow may give to its job, and what it is told otherwise."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data.base import Records
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.layers import Embedding
from elasticdl.packages.keras.script import ScriptTrainer
from elasticdl.packages.own_loops.frameworks import ScriptFrameworks
from elasticdl.packages.own_loops.handover import GradientRequest, Handover

pytestmark = [pytest.mark.keras, pytest.mark.timeout(180)]


def linear():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def sgd(rate=0.1, **settings):
    return keras.optimizers.SGD(rate, **settings)


def a_step(trainer):
    (minibatch,) = trainer.minibatches(iter([Records(values=[b"1", b"2"])]), Mode.TRAINING, 2, 5)
    return GradientRequest(minibatch, *trainer.initial_values())


def ones(model):
    return [(tf.ones(v.shape), v) for v in model.trainable_variables]


def take_step(model, optimizer, pairs=None, change=lambda: None, loss=1.0):
    trainer = ScriptTrainer(Handover(), model, optimizer, seed=0)
    step = a_step(trainer)
    trainer.begin_step(step)
    change()
    return trainer.end_step(step, loss, ones(model) if pairs is None else pairs)


def refused(*args, **kwargs):
    """Return what a script is told that takes a step."""
    with pytest.raises(ModelError) as error:
        take_step(*args, **kwargs)
    return str(error.value)


def test_gradients_of_a_step_are_those_that_are_handed_in():
    model = linear()
    kernel, bias = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant([[3.0, 4.0]])))
    # As Keras' variables, or as those of TensorFlow that a tape watches.
    watched = tape.watched_variables()
    result = take_step(model, sgd(), zip([[[3.0], [4.0]], [1.0]], [kernel, bias], strict=True))
    np.testing.assert_array_equal(result.dense_grad, [3.0, 4.0, 1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant([[3.0, 4.0]])))
    pairs = zip(tape.gradient(loss, watched), watched, strict=True)
    result = take_step(model, sgd(), pairs, loss=tf.constant(0.5))
    np.testing.assert_array_equal(result.dense_grad, [3.0, 4.0, 1.0])
    assert result.loss == 0.5
    assert result.state_delta.shape == (0,)


def test_gradients_of_equal_rows_are_summed_and_none_is_zero():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(3, 1)])
    model.add(keras.layers.Dense(1))
    table, kernel, _ = model.trainable_variables
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([1, 1]), (3, 1))
    result = take_step(model, sgd(), [(slices, table), (None, kernel)])
    np.testing.assert_array_equal(result.dense_grad, [0.0, 3.0, 0.0, 0.0, 0.0])


def test_a_minibatch_that_comes_once_more_draws_the_same_and_another_one_does_not():
    model = keras.Sequential(
        [keras.Input((50,)), keras.layers.Dense(50), keras.layers.Dropout(0.5)]
    )
    trainer = ScriptTrainer(Handover(), model, sgd(), seed=0)
    records = [Records(values=[b"1", b"2"])]
    one, other = trainer.minibatches(iter(records), Mode.TRAINING, 1, 5)

    @tf.function
    def draw():
        return model(tf.ones((1, 50)), training=True), keras.random.uniform((9,))

    def drawn(minibatch):
        trainer.begin_step(GradientRequest(minibatch, *trainer.initial_values()))
        return np.concatenate([np.ravel(part) for part in draw()])

    first, again, second = drawn(one), drawn(one), drawn(other)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[:50], second[:50])
    assert not np.array_equal(first[50:], second[50:])


def test_moving_statistics_and_counters_are_what_a_step_changes():
    class Counted(keras.layers.Layer):
        def build(self, shape):
            self.steps = self.add_weight((), "zeros", "int32", trainable=False)

        def call(self, x, training=False):
            if training:
                self.steps.assign_add(1)
            return x

    model = linear()
    model.add(keras.layers.BatchNormalization(momentum=0.5))
    model.add(Counted())
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    result = take_step(model, sgd(), change=lambda: model(x, training=True))
    mean = float(tf.reduce_mean(model.layers[0](x)))
    moved, spread, steps = result.state_delta
    assert moved == pytest.approx(0.5 * mean, rel=1e-5)
    assert spread != 0
    assert steps == 1

    trainer = ScriptTrainer(Handover(), model, sgd(), seed=0)
    dense, state = trainer.initial_values()
    state[-1] = 2.9999998  # a mean over workers
    trainer.load(dense, state)
    assert int(model.layers[-1].steps.numpy()) == 3


def test_the_description_has_the_rules_of_the_optimizer():
    model = linear()
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    adam = keras.optimizers.AdamW(schedule, weight_decay=0.25, clipnorm=2.0)
    adam.exclude_from_weight_decay(var_names=["bias"])
    trainer = ScriptTrainer(Handover(), model, adam, seed=3)
    description = trainer.build(a_step(trainer).minibatch)
    assert description.optimizer.kind == "adamw"
    assert [variable.decays for variable in description.dense] == [True, False]
    assert description.clip.limit == 2.0
    assert [trainer.learning_rate(version) for version in (0, 2)] == [0.5, 0.125]


def test_models_and_optimizers_that_the_job_cannot_train_are_refused():
    late = keras.Sequential([keras.layers.Dense(1)])
    table = keras.Sequential([keras.Input((2,)), Embedding(4, input_dim=9)])
    carried = keras.Sequential(
        [keras.Input((3, 2), batch_size=1), keras.layers.SimpleRNN(1, stateful=True)]
    )
    table.add(keras.layers.Dense(1))
    used = sgd()
    used.apply_gradients(ones(linear()))

    assert "has no variables yet" in refused(late, sgd())
    assert "has a table" in refused(table, sgd())
    assert "is stateful" in refused(carried, sgd())
    assert "expected a keras.optimizers.Optimizer, found builtins.str" in refused(linear(), "sgd")
    assert "found one that has made 1 updates" in refused(linear(), used)
    assert "it makes the update of a whole matrix" in refused(linear(), keras.optimizers.Muon())
    assert "use_ema" in refused(linear(), sgd(use_ema=True))


def test_gradients_that_are_not_of_the_model_are_refused():
    model, other = linear(), linear()
    kernel, bias = model.trainable_variables
    grad = tf.ones((2, 1))

    assert "kernel', which is not a variable of the model" in refused(model, sgd(), ones(other))
    assert "is given twice" in refused(model, sgd(), [(grad, kernel), (grad, kernel)])
    assert "no variable has a gradient" in refused(model, sgd(), [(None, kernel), (None, bias)])
    assert "has shape (2, 1), its gradient (2,)" in refused(model, sgd(), [(tf.ones(2), kernel)])
    assert "found 'EagerTensor', which is not a variable" in refused(model, sgd(), [grad, grad])
    assert "expected pairs" in refused(model, sgd(), [grad[0]])
    assert "expected loss=" in refused(model, sgd(), loss=None)
    assert "found EagerTensor of shape (2,)" in refused(model, sgd(), loss=tf.ones(2))


def test_a_call_within_a_traced_function_is_refused():
    model = linear()
    trainer = ScriptTrainer(Handover(), model, sgd(), seed=0)
    step = a_step(trainer)
    trainer.begin_step(step)

    @tf.function
    def train():
        trainer.end_step(step, 1.0, ones(model))

    with pytest.raises(ModelError, match=r"within a tf\.function"):
        train()


def test_what_is_changed_behind_the_job_is_refused():
    model, optimizer, other = linear(), sgd(), linear()

    def thaw():
        other.layers[0].trainable = False

    assert "changed the learning rate" in refused(
        model, optimizer, change=lambda: setattr(optimizer, "learning_rate", 0.2)
    )
    assert "changed momentum of the optimizer from 0.9 to 0.5" in refused(
        model, used := sgd(momentum=0.9), change=lambda: setattr(used, "momentum", 0.5)
    )
    assert "has changed variable" in refused(
        model, sgd(), change=lambda: model.trainable_variables[0].assign_add([[1.0], [1.0]])
    )
    used = sgd()
    assert "has called the optimizer" in refused(
        model, used, change=lambda: used.apply_gradients(ones(model))
    )
    assert "has other variables" in refused(other, sgd(), ones(other), change=thaw)


@pytest.mark.parametrize("name", ["kernel", "moving_mean"])
def test_what_a_script_assigns_after_a_step_is_refused_before_it_is_lost(name):
    model = keras.Sequential([linear(), keras.layers.BatchNormalization()])
    (variable,) = [v for v in model.variables if v.name == name]
    trainer = ScriptTrainer(Handover(), model, sgd(), seed=0)
    step = a_step(trainer)
    for _ in range(2):
        trainer.begin_step(step)
        trainer.end_step(step, 1.0, ones(model))
    variable.assign_add(tf.ones_like(variable))
    with pytest.raises(ModelError, match=f"has changed variable '.*{name}' by itself"):
        trainer.begin_step(step)


def test_parameters_that_are_nan_are_not_taken_for_changed_ones():
    model = linear()
    trainer = ScriptTrainer(Handover(), model, sgd(), seed=0)
    step = a_step(trainer)
    step.dense[:] = np.nan
    trainer.begin_step(step)
    trainer.end_step(step, 1.0, ones(model))
    trainer.begin_step(step)


def test_what_is_of_pytorch_is_refused():
    trainer = ScriptTrainer(Handover(), linear(), sgd(), seed=0)
    with pytest.raises(ModelError, match=r"expected optimizer\.apply_gradients"):
        trainer.end_step(a_step(trainer), 1.0)
    with pytest.raises(ModelError, match="begins without"):
        trainer.zero_grad()
    with pytest.raises(ModelError, match="make tensors of the records"):
        trainer.load_with([], None, 0)


def test_the_framework_is_that_of_the_model():
    frameworks = ScriptFrameworks(0, tf.config.threading.get_intra_op_parallelism_threads(), "cpu")
    assert frameworks.loader_batches() is None
    assert isinstance(frameworks.trainer(Handover(), linear(), sgd()), ScriptTrainer)
    with pytest.raises(ModelError, match=r"expected a keras\.Model.*, found builtins\.dict"):
        frameworks.trainer(Handover(), {}, None)
