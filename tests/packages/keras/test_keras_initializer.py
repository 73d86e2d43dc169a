import keras
import numpy as np
import pytest

from elasticdl.backends.base import Initializer
from elasticdl.errors import ModelError
from elasticdl.packages.keras.layers.initializer import describe_initializer

pytestmark = pytest.mark.keras


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("uniform", "uniform"),
        ("random_normal", "normal"),
        ("truncated_normal", "truncated_normal"),
        ("zeros", "constant"),
        ("ones", "constant"),
        ("glorot_uniform", "uniform"),
        ("glorot_normal", "truncated_normal"),
        ("he_normal", "truncated_normal"),
        ("lecun_uniform", "uniform"),
    ],
)
def test_the_distribution_has_the_moments_and_bounds_of_keras_own_draws(name, kind):
    initializer = keras.initializers.get(name)
    drawn = np.asarray(initializer((4000, 16)))

    found, params = describe_initializer(initializer, "layer", 16, 4000)

    assert found == kind
    assert np.mean(drawn) == pytest.approx(Initializer(kind, params).centre, abs=2e-3)
    stddev = {
        "uniform": lambda p: (p["high"] - p["low"]) / 12**0.5,
        "normal": lambda p: p["stddev"],
        "truncated_normal": lambda p: p["stddev"] * 0.87962566103423978,
        "constant": lambda p: 0.0,
    }[kind](params)
    assert np.std(drawn) == pytest.approx(stddev, rel=0.02, abs=1e-7)


class Wide(keras.initializers.RandomNormal):
    def __init__(self):
        super().__init__(stddev=0.5)


class Halved(keras.initializers.RandomNormal):
    def __call__(self, shape, dtype=None):
        return 0.5 * super().__call__(shape, dtype)


def test_a_class_of_the_user_is_known_as_long_as_keras_draws():
    assert describe_initializer(Wide(), "x", 4, None) == ("normal", {"mean": 0.0, "stddev": 0.5})
    with pytest.raises(ModelError, match="embeddings_initializer is Halved, but rows are created"):
        describe_initializer(Halved(), "x", 4, None)
