"""`elasticdl.layers.Embedding` in a plain Python session, as a user's unit test calls it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.layers import Embedding

pytestmark = pytest.mark.keras

IDS = np.array([[1, 2, 3], [3, 0, 9_000_000_000]])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "tf.function"])
def test_rows_have_the_shape_of_the_ids_and_are_the_same_each_time(wrap):
    layer = Embedding(4, name="table")
    rows = wrap(lambda ids: layer(ids))(tf.constant(IDS))

    assert rows.shape == (2, 3, 4)
    assert rows.dtype == tf.float32
    np.testing.assert_array_equal(rows[0, 2], rows[1, 0])
    assert np.abs(rows).max() <= 0.05
    assert len(np.unique(rows)) == 5 * 4


def test_two_sessions_give_equal_rows_and_another_table_gives_others():
    first, again = Embedding(4, name="table")(IDS), Embedding(4, name="table")(IDS)
    other = Embedding(4, name="other")(IDS)

    np.testing.assert_array_equal(first, again)
    assert not np.any(first.numpy() == other.numpy())


def test_with_input_dim_an_ordinary_weight_trains_in_fit():
    ids = np.arange(8).reshape(8, 1)
    inputs = keras.Input((1,), dtype="int64")
    rows = Embedding(1, input_dim=8, name="weight")(inputs)
    model = keras.Model(inputs, keras.layers.Flatten()(rows))
    model.compile(keras.optimizers.SGD(4.0), "mse")  # one step comes to the labels

    model.fit(ids, np.ones((8, 1)), batch_size=8, verbose=0)

    assert [tuple(w.shape) for w in model.trainable_weights] == [(8, 1)]
    np.testing.assert_allclose(model.predict(ids, verbose=0), 1.0, atol=1e-3)


def test_without_input_dim_a_model_fits_and_predicts_with_rows_that_stay():
    inputs = keras.Input((3,), dtype="int64")
    layer = Embedding(4, name="stays")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile("sgd", "mse")
    before = layer(IDS).numpy()

    model.fit(IDS, np.ones((2, 1)), epochs=2, verbose=0)

    assert model.predict(IDS, verbose=0).shape == (2, 1)
    np.testing.assert_array_equal(layer(IDS), before)


@pytest.mark.parametrize(
    ("combiner", "expected"), [("sum", [6, 0, 7]), ("mean", [2, 0, 7]), ("sqrtn", [3.4641, 0, 7])]
)
def test_combiners_reduce_all_ids_of_a_record(combiner, expected):
    layer = Embedding(2, input_dim=10, combiner=combiner)
    layer.build()
    layer.set_weights([np.repeat(np.arange(10.0)[:, None], 2, axis=1)])
    ragged = tf.ragged.constant([[1, 2, 3], [], [7]], dtype=tf.int64)
    nested = tf.ragged.constant([[[1], [2, 3]], [[], []], [[7]]], dtype=tf.int64)

    for ids in (ragged, nested, ragged.to_sparse()):
        outputs = layer(ids)
        assert outputs.shape == (3, 2)
        np.testing.assert_allclose(outputs[:, 0], expected, atol=1e-4)


def test_a_combiner_leaves_padding_out_when_zero_is_masked():
    layer = Embedding(1, input_dim=10, combiner="mean", mask_zero=True)
    layer.build()
    layer.set_weights([np.arange(10.0)[:, None] + 100])

    outputs = layer(np.array([[1, 2, 3], [4, 0, 0], [0, 0, 0]]))

    np.testing.assert_allclose(outputs[:, 0], [102, 104, 0])


def test_mask_zero_gives_later_layers_a_mask():
    layer = Embedding(2, mask_zero=True)
    mask = layer.compute_mask(tf.constant([[1, 0]]))
    assert mask.numpy().tolist() == [[True, False]]
    assert layer.supports_masking
    assert Embedding(2).compute_mask(tf.constant([[1, 0]])) is None


def test_a_model_with_it_survives_its_config():
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(
        inputs,
        Embedding(
            4,
            50,
            "zeros",
            mask_zero=True,
            combiner="sum",
            wire_dtype="float16",
            embeddings_constraint=keras.constraints.MaxNorm(3.0, axis=1),
            name="e",
        )(inputs),
    )
    layer = keras.Model.from_config(model.get_config()).get_layer("e")

    assert (layer.output_dim, layer.input_dim, layer.combiner) == (4, 50, "sum")
    assert layer.mask_zero
    assert layer.wire_dtype == "float16"
    assert layer.embeddings_constraint.get_config() == {"max_value": 3.0, "axis": 1}
    assert isinstance(layer.embeddings_initializer, keras.initializers.Zeros)


def test_rows_of_a_plain_session_are_held_to_the_constraint():
    unit = keras.constraints.UnitNorm(axis=1)
    rows = Embedding(4, embeddings_constraint=unit)(IDS).numpy()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=-1), 1.0, rtol=1e-5)

    layer = Embedding(4, 50, embeddings_constraint=unit)
    layer.build()
    assert layer.weights[0].constraint is unit


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Embedding(0), "output_dim must be a positive integer, not 0"),
        (lambda: Embedding(4, input_dim=-1), "input_dim must be a positive integer"),
        (lambda: Embedding(4, combiner="max"), "must be one of sum, mean, sqrtn"),
        (lambda: Embedding(4, wire_dtype="int8"), "wire_dtype must be one of float32, float16"),
        (lambda: Embedding(4)(tf.ones(2, tf.complex64)), "or strings, found complex64"),
        (lambda: Embedding(4, input_dim=9)(tf.constant([["a"]])), "leave input_dim out"),
        (lambda: Embedding(4)(np.array([[-1]])), "must not be negative, found -1"),
        (lambda: Embedding(4)(tf.ragged.constant([[1]])), "has no combiner"),
        (
            lambda: Embedding(4)(keras.Input((3,), dtype="complex64")),
            "must be integers or strings, found complex64",
        ),
        (
            lambda: Embedding(4, embeddings_initializer="orthogonal")(IDS),
            "is Orthogonal, but rows are created one by one",
        ),
        (
            lambda: Embedding(4, embeddings_initializer="he_normal")(IDS),
            "depends on the number of rows; say input_dim",
        ),
        (
            lambda: Embedding(4, embeddings_constraint="max_norm", name="e"),
            "Embedding 'e': embeddings_constraint MaxNorm has axis=0.*say axis=1",
        ),
        (
            lambda: Embedding(4, embeddings_constraint=keras.constraints.Constraint()),
            "embeddings_constraint is Constraint, but rows are held to it one by one",
        ),
    ],
)
def test_what_cannot_work_is_said_with_the_remedy(make, says):
    with pytest.raises(ModelError, match=says):
        make()


def test_a_huge_input_dim_allocates_nothing():
    layer = Embedding(64, input_dim=10**12)
    assert layer(np.array([[10**12 - 1]])).shape == (1, 1, 64)
    assert layer.weights == []


def test_a_plain_session_cuts_floats_off_as_keras_does():
    plain = keras.layers.Embedding(9, 2, "glorot_uniform")
    given = tf.constant([[0.9, 7.2], [3.0, -0.4]])
    plain(given)
    own = Embedding(2, 9)
    own(given)
    own.set_weights(plain.get_weights())
    np.testing.assert_array_equal(own(given), plain(given))
    assert Embedding(2, 9, combiner="mean", mask_zero=True)(given).shape == (2, 2)
