"""Labels for which a model has no class are told before training, in a line."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import in_short
from elasticdl.packages.keras.model.expected_data import problem_of_labels, vocabularies_of

pytestmark = pytest.mark.keras

LABELS = np.array([[0], [3], [11], [9]])
OUTPUTS = tf.zeros((4, 10))


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        lambda labels, outputs: tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.cast(tf.reshape(labels, [-1]), "int64"), outputs
        ),
    ],
)
def test_a_label_that_is_no_class_is_named(loss):
    for labels in (LABELS, LABELS.astype(np.float32)):  # a Table gives numbers as float32
        said = problem_of_labels(loss, OUTPUTS, labels)
        assert said.startswith("a label is 11, and the model's output has 10 classes, 0 to 9; 1 of")
    assert problem_of_labels(loss, OUTPUTS, LABELS[:2]) == ""


@pytest.mark.parametrize(
    "loss",
    [
        "binary_crossentropy",
        keras.losses.BinaryCrossentropy(from_logits=True),
        keras.losses.binary_focal_crossentropy,
        functools.partial(keras.losses.binary_crossentropy, label_smoothing=0.1),
    ],
)
def test_a_label_beyond_two_classes_is_named(loss):
    said = problem_of_labels(loss, tf.zeros((4, 1)), np.array([[0.0], [2.0], [1.0], [-1.0]]))
    assert said == "a label is 2, and binary cross-entropy takes 0 to 1; 2 of 4 labels are outside"
    assert problem_of_labels(loss, tf.zeros((4, 1)), np.array([0.0, 0.25, 1.0])) == ""
    assert problem_of_labels("mse", tf.zeros((4, 1)), LABELS) == ""


def test_numbers_that_are_no_classes_are_left_alone():
    mean = keras.losses.MeanSquaredError()
    assert problem_of_labels(mean, OUTPUTS, LABELS) == ""
    assert problem_of_labels(mean, OUTPUTS, LABELS + 0.5) == ""
    assert problem_of_labels(mean, tf.zeros((4, 1)), LABELS) == ""
    ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    assert problem_of_labels(ignoring, OUTPUTS, np.array([-1, 3])) == ""


def test_what_tensorflow_says_of_a_label_in_a_step_is_one_line():
    @tf.function
    def step(labels):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.zeros((500, 10)))

    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        step(tf.constant(np.arange(500)))
    assert in_short(error.value).startswith("a label is ")
    assert len(in_short(error.value)) < 100
    assert in_short(ValueError("x " * 5000)).endswith("... (9,999 characters)")


def test_words_of_lookup_layers_are_known_by_the_input_that_they_look_up():
    city, size = keras.Input((1,), name="city", dtype="string"), keras.Input((1,), name="size")
    ids = keras.layers.StringLookup(vocabulary=["Oslo", "Rome"])(city)
    vectors = keras.layers.Embedding(4, 2)(ids)
    model = keras.Model({"city": city, "size": size}, keras.layers.Flatten()(vectors))
    assert vocabularies_of(model) == {"city": ("Oslo", "Rome")}
    assert vocabularies_of(keras.Sequential([keras.layers.Dense(1)])) == {}
    assert vocabularies_of(object()) == {}


def test_what_tensorflow_adds_to_an_error_is_left_out():
    class OpError(Exception):
        message = (
            "{{function_node __wrapped__StatefulPartitionedCall_Tin_6_device_CPU:0}} assertion "
            "failed: [no such class]\n [[{{node Assert}}]] [Op:StatefulPartitionedCall] name: "
        )

    assert in_short(OpError()) == "assertion failed: [no such class]"
    traced = ValueError("could not read 'x1y'\nTraceback (most recent call last):\n File ...")
    assert in_short(traced) == "could not read 'x1y'"
