"""What calls of a Keras model and its loss leave in Python: nothing, or it is refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from elasticdl import Mode
from elasticdl.errors import ModelError

pytestmark = pytest.mark.keras

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
counted = 0


@pytest.fixture(autouse=True)
def as_it_was():
    """Leave TensorFlow as it was for other tests."""
    yield
    tf.config.run_functions_eagerly(False)


def feed(dataset, mode, metadata):
    return dataset.map(lambda r: (r["x"], tf.reduce_sum(r["x"])[None]))


class Scaled(keras.layers.Layer):
    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind, self.calls, self._hidden, self.log, self.last = kind, 0, 0, [], None
        self.variable = tf.Variable(0.0)
        self.total = 0.0

    def call(self, x):
        global counted
        if self.kind == "attribute":
            self.calls += 1
            return x / (1 + self.calls)
        if self.kind == "private attribute":
            self._hidden += 1
            return x / (1 + self._hidden)
        if self.kind == "global":
            counted += 1
            return x / (1 + counted)
        if self.kind == "python function":
            return tf.ensure_shape(tf.py_function(self.counting, [x], tf.float32), x.shape)
        if self.kind == "TensorFlow's variable":
            return x / (1 + self.variable.assign_add(1.0))
        if self.kind == "tensor" and tf.executing_eagerly():
            self.total = self.total + tf.reduce_sum(ops.abs(x))
            return x / (1 + self.total)
        if self.kind == "drawn":
            return x * np.random.rand()
        if self.kind == "drawn for nothing":
            np.random.rand()
        if self.kind == "list":
            self.log.append(x.shape)
        if self.kind == "shown":
            self.last = x
        return x

    def counting(self, x):
        self.calls += 1
        return x / (1 + self.calls)


def functional(kind):
    given = keras.Input((3,))
    return keras.Model(given, keras.layers.Dense(1)(Scaled(kind, name="scaled")(given)))


class Subclassed(keras.Model):
    def __init__(self, kind):
        super().__init__()
        self.scaled, self.dense = Scaled(kind, name="scaled"), keras.layers.Dense(1)

    def call(self, x):
        return self.dense(self.scaled(x))


def squared(labels, predictions):
    return ops.mean(ops.square(labels - predictions), -1)


def counting_loss():
    state = {"calls": 0}

    def loss(labels, predictions):
        state["calls"] += 1
        return squared(labels, predictions) / state["calls"]

    return loss


class LossWithCounter(keras.losses.Loss):
    calls = 0

    def call(self, labels, predictions):
        self.calls += 1
        return squared(labels, predictions) / self.calls


def build(new_job, model, loss=squared, run_eagerly=False):
    return new_job(
        {"x": X}, 4, model=model, loss=loss, feed=feed, run_eagerly=run_eagerly,
        optimizer=lambda: keras.optimizers.SGD(0.1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "named", "make", "run_eagerly"),
    [
        ("attribute", r"\.scaled\.calls", functional, False),
        ("private attribute", r"\.scaled\._hidden", functional, True),
        ("global", r"test_keras_trials\.py: counted", functional, False),
        ("python function", r"\.scaled\.calls", functional, False),
        ("TensorFlow's variable", "variable", functional, False),
        ("tensor", r"\.scaled\.total", functional, True),
    ],
)
def test_what_python_counts_in_a_model_is_refused_by_name(new_job, kind, named, make, run_eagerly):
    with pytest.raises(ModelError, match=named):
        build(new_job, lambda: make(kind), run_eagerly=run_eagerly)


@pytest.mark.parametrize(
    ("make", "run_eagerly"),
    [(counting_loss, False), (LossWithCounter, True)],
)
def test_what_python_counts_in_a_loss_is_refused_by_name(new_job, make, run_eagerly):
    with pytest.raises(ModelError, match=r"loss.*calls"):
        build(new_job, lambda: functional("none"), make(), run_eagerly)


@pytest.mark.parametrize(("kind", "make"), [("list", Subclassed), ("shown", functional)])
def test_trials_leave_no_trace_and_what_is_only_looked_at_is_trained(new_job, kind, make, caplog):
    made = []

    def model():
        made.append(make(kind))
        return made[0]

    build(new_job, model).train({"x": X}, 4)
    layer = made[0].get_layer("scaled")
    assert len(layer.log) <= 2  # of the calls that make the model, and of none other
    assert ("log" in caplog.text) == (kind == "list")


def test_numbers_that_numpy_draws_when_a_step_is_compiled_are_told(new_job, caplog):
    build(new_job, lambda: functional("drawn for nothing"))
    assert "draws from" not in caplog.text
    build(new_job, lambda: functional("drawn"))
    assert "draws from numpy.random when a step is compiled" in caplog.text


def test_a_model_without_such_state_is_traced_no_more_often(new_job, monkeypatch):
    from elasticdl.packages.keras.model.gradient import LossGradient

    monkeypatch.setattr(LossGradient, "traced", None)
    build(new_job, lambda: functional("none"))


def test_one_that_is_evaluated_is_looked_at_alone(new_job):
    new_job({"x": X}, 4, mode=Mode.EVALUATION, model=lambda: functional("attribute"),
            loss=squared, feed=feed)  # fmt: skip
