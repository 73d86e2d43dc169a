"""Objects of Keras among the values of functions."""

import keras
import numpy as np
import pytest

from elasticdl.config import ModelSection
from elasticdl.errors import ModelError
from elasticdl.model_spec import load_model_spec
from elasticdl.packages.notebooks import functions
from elasticdl.packages.notebooks.predictor import imports_of

pytestmark = [
    pytest.mark.keras,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Keras, as it saves an array
]


class Scaled(keras.layers.Layer):
    def __init__(self, factor=2.0, **settings):
        super().__init__(**settings)
        self.factor = factor

    def call(self, x):
        return x * self.factor


class WithConfig(Scaled):
    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


class Forgetful(Scaled):
    def __init__(self, factor):
        super().__init__(factor)


class Weighed(keras.losses.Loss):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def call(self, labels, predictions):
        return self.weight * keras.ops.abs(labels - predictions)[..., 0]


def of_other_process(value, folder):
    functions.write(folder, {"forward": lambda: value, "feed": len, "loss": value}, "of_keras")
    with imports_of(folder):
        return load_model_spec(ModelSection(model_zoo=folder, model_def="of_keras.forward"))


def test_layers_and_losses_of_ones_own_are_what_they_are_in_the_program(tmp_path):
    norm = keras.layers.Normalization(axis=None)
    norm.adapt(np.array([1.0, 3.0]))
    layers = [norm, WithConfig(3.0), keras.layers.Dense(1, kernel_initializer="ones")]
    given = keras.Sequential([keras.Input((2,)), *layers])
    made = of_other_process(given, tmp_path).model()
    x = np.array([[1.0, 5.0]])
    np.testing.assert_array_equal(made(x), given(x))
    assert type(made.layers[1]) is not WithConfig
    assert made.layers[1].factor == 3.0
    loss = of_other_process(Weighed(3.0), tmp_path).loss
    assert float(loss(np.ones((2, 1)), np.zeros((2, 1)))) == 3.0


def test_a_layer_that_keras_cannot_make_anew_is_refused_by_name(tmp_path):
    with pytest.raises(ModelError, match=r"uses value, which is a Forgetful .*get_config"):
        of_other_process(Forgetful(3.0), tmp_path)
