"""Builds models that JAX cannot train, and one that it can; prints what is said, as JSON."""

import json
import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import ChecksData, ChecksExport, KeepsNames, Minibatch
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.layers import Embedding
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.frameworks.towers import HasTowers
from elasticdl.packages.jax.trainer import JaxTrainer
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, Structure

N = 8
METADATA = Metadata()
ABILITIES = ChecksData, ChecksExport, HasTowers, KeepsNames


def given(**features):
    return Minibatch(features, np.ones((N, 1), np.float32), N)


def ragged():
    features = {"words": tf.RaggedTensor.from_row_lengths(tf.range(N), [1] * N)}
    labels = tf.ones((N, 1))
    structure = Structure.of(features, labels)
    tensors = structure.flatten(features, labels)
    return KerasMinibatch(features, labels, N, structure, tensors, Mode.TRAINING, 0)


IDS = np.arange(2 * N, dtype=np.int64).reshape(N, 2)
NUMBERS = np.linspace(-1, 1, 3 * N, dtype=np.float32).reshape(N, 3)


def on_ids(embedding):
    ids = keras.Input((2,), dtype="int64", name="ids")
    return keras.Model({"ids": ids}, keras.layers.Dense(1)(keras.layers.Flatten()(embedding(ids))))


def of_numbers(*layers):
    numbers = x = keras.Input((3,), name="numbers")
    for layer in layers:
        x = layer(x)
    return keras.Model({"numbers": numbers}, keras.layers.Dense(1)(x))


class Layer(keras.layers.Layer):
    """A layer of one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(self, x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, "float32")


def counting(layer, x):
    layer.seen = getattr(layer, "seen", 0) + 1
    return x * layer.seen


class Squaring(keras.layers.Layer):
    """Has a state that does not add up over workers."""

    def build(self, shape):
        self.held = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, x, training=False):
        if training:
            self.held.assign(keras.ops.square(self.held) + 1.0)
        return x


def ids_of_rows():
    ids = keras.Input((2,), dtype="int64", name="ids")
    rows = Embedding(1)(ids)
    more = Embedding(1)(keras.ops.cast(keras.ops.abs(rows[..., 0]) * 10, "int32"))
    return keras.Model({"ids": ids}, keras.layers.Dense(1)(keras.layers.Flatten()(more)))


class Own(keras.optimizers.Optimizer):
    """A rule of one's own."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient * learning_rate)


def loss(labels, predictions):
    return keras.ops.square(labels - predictions)


def sgd():
    return keras.optimizers.SGD(0.1)


def trainer(model, loss=loss, optimizer=sgd, loss_weights=None, **more):
    spec = ModelSpec(model, loss, optimizer, lambda *_: None, None, None, None, None)
    spec = replace(spec, loss_weights=loss_weights)
    return JaxTrainer(spec, METADATA, 0, 2**20, **more)


def float16():
    return of_numbers(keras.layers.Dense(2, dtype="mixed_float16"))


WORDS = tf.constant([["a", "b"]] * N)
CASES = {
    "tf_in_the_model": (
        {"model": lambda: of_numbers(Layer(lambda _, x: tf.nn.relu(x)))},
        given(numbers=NUMBERS),
    ),
    "tf_in_the_loss": (
        {"model": of_numbers, "loss": lambda y, p: tf.reduce_mean(tf.square(y - p))},
        given(numbers=NUMBERS),
    ),
    "strings": ({"model": of_numbers}, given(words=WORDS)),
    "ragged": ({"model": of_numbers}, ragged()),
    "keep_names": ({"model": lambda: on_ids(Embedding(2, keep_names=True))}, given(ids=IDS)),
    "ids_of_rows": ({"model": ids_of_rows}, given(ids=IDS)),
    "float16": ({"model": float16}, given(numbers=NUMBERS)),
    "large_numbers": (
        {"model": lambda: on_ids(Layer(lambda _, x: keras.ops.cast(x, "float32")))},
        given(ids=IDS // 15 * 2**40),
    ),
    "own_rule": ({"model": of_numbers, "optimizer": lambda: Own(0.1)}, given(numbers=NUMBERS)),
    "run_eagerly": ({"model": of_numbers, "run_eagerly": True}, given(numbers=NUMBERS)),
    "counted_in_python": (
        {"model": lambda: of_numbers(Layer(counting))},
        given(numbers=NUMBERS),
    ),
    "not_in_tensorflow": (
        {"model": lambda: of_numbers(lambda x: keras.ops.top_k(x, 2)[0])},
        given(numbers=NUMBERS),
    ),
    "of_one_size": (
        {"model": lambda: of_numbers(Layer(lambda _, x: keras.ops.reshape(x, (len(x), 3))))},
        given(numbers=NUMBERS),
    ),
    "sums_that_do_not_add": ({"model": lambda: of_numbers(Squaring())}, given(numbers=NUMBERS)),
}


def said_of(made, sample):
    try:
        built = trainer(**made)
        built.build(sample)
        built.check_export(beside=False)
    except ModelError as error:
        return str(error)
    return "nothing"


class Unused(keras.layers.Layer):
    """Has a weight that the loss does not depend on."""

    def build(self, shape):
        self.unused = self.add_weight(shape=(2,), name="unused")

    def call(self, x):
        return x + keras.ops.sum(keras.ops.stop_gradient(self.unused))


def described():
    model = of_numbers
    layers = (Unused(), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    made = trainer(lambda: model(*layers))
    sample = given(numbers=NUMBERS)
    description = made.build(sample)
    values = made.initial_values()

    def gradient(seed):
        minibatch = replace(made._of(sample), seed=seed)
        return made.train_step(minibatch, [], *values).dense_grad

    return {
        "without_gradient": [v.name.split("/")[-1] for v in description.dense if not v.trainable],
        "momenta": {v.name.split("/")[-1]: round(v.momentum, 6) for v in description.state},
        "same_draws": bool(np.array_equal(gradient(1), gradient(1))),
        "other_draws": not np.array_equal(gradient(1), gradient(2)),
        "abilities": [kind.__name__ for kind in ABILITIES if isinstance(made, kind)],
    }


def of_two_outputs():
    """Return the first loss of two outputs, which are 0, by two losses of Keras with weights."""

    def model():
        numbers = keras.Input((3,), name="numbers")
        made = {n: keras.layers.Dense(1, kernel_initializer="zeros", name=n) for n in ("a", "b")}
        return keras.Model({"numbers": numbers}, {n: layer(numbers) for n, layer in made.items()})

    made = trainer(model, {"a": "mse", "b": "mae"}, loss_weights={"a": 0.5, "b": 2.0})
    labels = {name: np.full((N, 1), value, np.float32) for name, value in (("a", 1), ("b", 3))}
    sample = Minibatch({"numbers": NUMBERS}, labels, N)
    made.build(sample)
    return made.train_step(sample, [], *made.initial_values()).loss


class Rows:
    """A table whose row of an id is that id."""

    def scan(self, table):
        ids = np.arange(9, dtype=np.int64)
        yield ids, ids[:, None].astype(np.float32)


def of_any_length():
    """Return what is served for other lengths than those of the export, of two features."""

    def model():
        inputs = {name: keras.Input((None,), dtype="int64", name=name) for name in ("a", "b")}
        rows = [Embedding(1)(ids) for ids in inputs.values()]
        return keras.Model(inputs, {"sum": sum(keras.ops.sum(part, axis=1) for part in rows)})

    lengths = {"a": 3, "b": 2}
    features = {name: np.ones((N, length), np.int64) for name, length in lengths.items()}
    spec = {name: tf.TensorSpec([None, None], tf.int64) for name in features}
    labels, structure = np.ones((N, 1)), Structure(spec, tf.TensorSpec([None, 1]))
    tensors = structure.flatten(features, labels)
    sample = KerasMinibatch(features, labels, N, structure, tensors, Mode.TRAINING, 0)
    made = trainer(model, {"sum": "mse"})
    made.build(sample)
    made.check_export(beside=False)
    with tempfile.TemporaryDirectory() as folder:
        made.export(Path(folder), *made.initial_values(), Rows())
        served = tf.saved_model.load(folder).signatures["serving_default"]
    a, b = (tf.constant([ids], tf.int64) for ids in ([1, 2], [3, 4, 5, 6]))
    return served(a=a, b=b)["sum"].numpy().tolist()


def of_another_width():
    """Return the loss of a minibatch whose large ids are more for each record than in the first."""

    def model():
        ids = keras.Input((None,), dtype="int64", name="ids")
        return keras.Model({"ids": ids}, keras.ops.sum(Embedding(1)(ids), axis=1))

    made = trainer(model)
    made.build(given(ids=IDS + 2**40))
    wider = given(ids=np.full((N, 3), 2**40))
    rows = [np.ones((*ids.shape, 1), np.float32) for ids in made.ids(wider)]
    return made.train_step(wider, rows, *made.initial_values()).loss


def of_many_widths():
    """Return what the log says of minibatches of one size, whose lists are of many widths."""
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("elasticdl.packages.jax").addHandler(handler)

    def model():
        numbers = keras.Input((None,), name="numbers")
        return keras.Model({"numbers": numbers}, keras.ops.sum(numbers, axis=1, keepdims=True))

    made = trainer(model)
    made.build(given(numbers=NUMBERS))
    for width in range(1, 10):
        sample = given(numbers=np.ones((N, width), np.float32))
        made.train_step(sample, [], *made.initial_values())
    return said


def no_class():
    """Say what a job tells of a label that is no class, which JAX would train with a loss of 0."""

    def of_classes():
        numbers = keras.Input((3,), name="numbers")
        return keras.Model({"numbers": numbers}, keras.layers.Dense(4)(numbers))

    made = trainer(of_classes, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    made.build(Minibatch({"numbers": NUMBERS}, np.ones((N, 1), np.int64), N))
    return made.problem_of_labels(np.array([0, 3, 4]))


if __name__ == "__main__":
    found = {name: said_of(*case) for name, case in CASES.items()}
    more = {"no_class": no_class(), "two_outputs": of_two_outputs(), "described": described()}
    more |= {"any_length": of_any_length(), "another_width": of_another_width()}
    more["many_widths"] = of_many_widths()
    print(json.dumps({**found, **more}))
