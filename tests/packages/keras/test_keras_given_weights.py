"""Training begins with the weights that the model file gives."""

import keras
import numpy as np
import pytest

from elasticdl.errors import ModelError
from tests.packages.keras.plain_model import FUNCTIONS, data, dense

pytestmark = pytest.mark.keras


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
def test_weights_that_the_model_function_sets_are_where_training_begins(new_job, tmp_path):
    given = dense()
    given.save_weights(tmp_path / "given.weights.h5")

    def model():
        made = dense()
        made.load_weights(tmp_path / "given.weights.h5")
        bias = made.layers[-1].bias
        bias.assign(bias + 5.0)
        return made

    job = new_job(data(), 16, model=model, **FUNCTIONS)
    kernel = given.layers[-1].kernel.numpy().ravel()
    np.testing.assert_array_equal(job.parameters()[0], [*kernel, 5.0])


GIVEN = np.random.default_rng(8).normal(size=(20, 3)).astype(np.float32)


def with_weights_set_later(ids, path):
    layer = keras.layers.Embedding(20, 3)
    rows = layer(ids)
    layer.set_weights([GIVEN])
    return rows


def with_loaded_weights(ids, path):
    layer = keras.layers.Embedding(20, 3)
    keras.Sequential([keras.Input((4,), dtype="int64"), layer]).load_weights(path)
    return layer(ids)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda ids, path: keras.layers.Embedding(20, 3, keras.initializers.Constant(GIVEN))(ids),
        lambda ids, path: keras.layers.Embedding(20, 3, weights=[GIVEN])(ids),
        with_weights_set_later,
        with_loaded_weights,
    ],
    ids=["initializer", "weights", "set_weights", "load_weights"],
)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # save_weights
def test_a_table_that_is_moved_begins_with_the_rows_that_the_model_file_sets(
    new_job, look_up, tmp_path
):
    plain = keras.layers.Embedding(20, 3, weights=[GIVEN])
    plain_model = keras.Sequential([keras.Input((4,), dtype="int64"), plain])
    plain_model.save_weights(tmp_path / "given.weights.h5")

    def model():
        x = keras.Input((4,))
        ids = keras.ops.cast(keras.ops.minimum(5 * keras.ops.abs(x), 19), "int64")
        rows = look_up(ids, tmp_path / "given.weights.h5")
        return keras.Model(x, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    moved, kept = (
        new_job(data(), 16, threshold=threshold, model=model, **FUNCTIONS)
        for threshold in (0, 10**9)
    )
    assert [table.given_rows for table in moved.description.tables] == [True]
    assert kept.description.tables == ()
    np.testing.assert_allclose(
        moved.train(data(), 16), kept.train(data(), 16), rtol=1e-5, atol=1e-6
    )


def test_given_rows_of_another_shape_are_refused(new_job):
    def model():
        ids = keras.Input((4,), dtype="int64")
        rows = keras.layers.Embedding(20, 3, weights=[np.ones((20, 4))])(ids)
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    with pytest.raises(
        ModelError, match=r"weights of shapes \[\(20, 4\)\], expected \[\(20, 3\)\]"
    ):
        new_job(data(), 16, threshold=0, model=model, **FUNCTIONS)
