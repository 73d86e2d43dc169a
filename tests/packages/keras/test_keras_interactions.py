"""Layers of papers, each against its formula written out in NumPy."""

import itertools

import keras
import numpy as np
import pytest

from elasticdl.errors import ModelError
from elasticdl.layers import (
    CompressedInteraction,
    CrossNetwork,
    Dice,
    FactorizationMachine,
    TargetAttention,
)

pytestmark = pytest.mark.keras

RNG = np.random.default_rng(7)
VECTORS = RNG.normal(size=(5, 4, 3)).astype(np.float32)  # 5 records, 4 fields, dim 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def randomise(layer):
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.get_weights()])


def copy_of(layer, inputs):
    copy = type(layer).from_config(layer.get_config())
    copy(inputs)
    copy.set_weights(layer.get_weights())
    return copy(inputs)


def test_a_factorization_machine_sums_the_products_of_all_pairs():
    found = FactorizationMachine()(VECTORS)

    expected = [[sum(a @ b for a, b in itertools.combinations(record, 2))] for record in VECTORS]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_compressed_interaction_network_is_that_of_the_paper(activation):
    layer = CompressedInteraction((3, 2), activation)
    layer.build(VECTORS.shape)
    randomise(layer)
    filters = [w.reshape(-1, 4, w.shape[1]) for w in layer.get_weights()]

    found = layer(VECTORS)

    for record, row in zip(VECTORS, found, strict=True):
        before, pooled = record, []
        for weights in filters:
            rows = np.zeros((weights.shape[2], 3))
            for h in range(weights.shape[2]):
                for i, j in itertools.product(range(len(before)), range(4)):
                    rows[h] += weights[i, j, h] * (before[i] * record[j])
            before = np.maximum(rows, 0) if activation else rows
            pooled += list(before.sum(1))
        np.testing.assert_allclose(row, pooled, rtol=1e-4, atol=1e-4)
    assert layer.compute_output_shape(VECTORS.shape) == found.shape
    np.testing.assert_array_equal(copy_of(layer, VECTORS), found)


@pytest.mark.parametrize(("version", "rank"), [(1, None), (2, None), (2, 2)])
def test_a_cross_network_is_that_of_the_paper(version, rank):
    first = VECTORS.reshape(5, 12)
    layer = CrossNetwork(3, version, rank)
    layer(first)
    randomise(layer)

    found = layer(first)

    for x0, row in zip(first, found, strict=True):
        x = x0
        for kernels, bias in zip(layer.kernels, layer.biases, strict=True):
            weights = [np.asarray(kernel) for kernel in kernels]
            b = np.asarray(bias)
            if version == 1:
                x = x0 * (x @ weights[0][:, 0]) + b + x
            else:
                matrix = weights[0] if rank is None else weights[0] @ weights[1]
                x = x0 * (matrix.T @ x + b) + x
        np.testing.assert_allclose(row, x, rtol=2e-3)
    np.testing.assert_array_equal(copy_of(layer, first), found)


def test_dice_turns_where_the_minibatch_has_its_mean():
    layer = Dice(epsilon=1e-8)
    s = VECTORS.reshape(5, 12)
    layer(s)
    layer.alpha.assign(RNG.normal(size=12))
    alpha = np.asarray(layer.alpha)

    trained = layer(s, training=True)

    p = sigmoid((s - s.mean(0)) / np.sqrt(s.var(0) + 1e-8))
    np.testing.assert_allclose(trained, p * s + (1 - p) * alpha * s, rtol=1e-4, atol=1e-5)
    moved = 0.01 * s.mean(0), 0.99 + 0.01 * s.var(0)
    p = sigmoid((s - moved[0]) / np.sqrt(moved[1] + 1e-8))
    np.testing.assert_allclose(layer(s), p * s + (1 - p) * alpha * s, rtol=1e-4, atol=1e-5)


def test_target_attention_is_that_of_the_paper():
    target, history = VECTORS[:, 0], VECTORS[:, 1:]
    is_item = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 0, 1]], bool)
    layer = TargetAttention((4,), "sigmoid")
    layer([target, history, is_item])
    randomise(layer)
    w1, b1, w2, b2 = layer.get_weights()

    found = layer([target, history, is_item])

    for k in range(5):
        total = np.zeros(3)
        for item in history[k][is_item[k]]:
            met = np.concatenate([item, target[k], item - target[k], item * target[k]])
            total += ((sigmoid(met @ w1 + b1) @ w2) + b2) * item
        np.testing.assert_allclose(found[k], total, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(copy_of(layer, [target, history, is_item]), found)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' writer
def test_layers_are_saved_with_a_model(tmp_path):
    inputs = keras.Input((4, 3))
    flat = keras.layers.Flatten()(inputs)
    parts = [
        FactorizationMachine()(inputs),
        CompressedInteraction((2,))(inputs),
        CrossNetwork(2)(flat),
        Dice()(flat),
    ]
    model = keras.Model(inputs, keras.layers.Concatenate()(parts))
    model.save(tmp_path / "model.keras")

    loaded = keras.models.load_model(tmp_path / "model.keras")

    np.testing.assert_array_equal(loaded(VECTORS), model(VECTORS))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CompressedInteraction(()), "sizes must be positive whole numbers"),
        (lambda: CrossNetwork(0), "num_layers must be positive"),
        (lambda: CrossNetwork(2, version=3), "version must be 1 or 2"),
        (lambda: CrossNetwork(2, version=1, rank=4), "rank is of version 2 alone"),
    ],
)
def test_what_cannot_be_is_said(make, words):
    with pytest.raises(ModelError, match=words):
        make()
