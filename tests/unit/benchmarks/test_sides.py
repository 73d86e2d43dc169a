"""The sides of the benchmarks do the same work: what is compared is how fast."""

import importlib

import numpy as np
import pytest

from benchmarks.readme import FOLDER
from elasticdl import Mode
from elasticdl.data.base import Metadata


@pytest.fixture
def on_path(monkeypatch):
    for folder in (FOLDER, FOLDER / "peers", FOLDER.parent / "model_zoo"):
        monkeypatch.syspath_prepend(folder)


def test_each_model_in_pytorch_and_keras_is_compared_with_sides_that_take_turns(on_path):
    torch_models = importlib.import_module("torch_models")
    groups = torch_models.groups(torch_models.Length(1, 1.0, 1, 1))
    compared = [what for group in groups for what, _, _ in group.pairs]
    assert len(compared) == len(set(compared)) == 12
    for group in groups:
        assert {side for _, *pair in group.pairs for side in pair} == set(group.sides)
    flags = torch_models.flags("Keras", torch_models.FLIGHTS)
    assert torch_models.ONE_THREAD in flags


@pytest.mark.keras
@pytest.mark.parametrize("model_def", ["criteo.deepfm", "mnist.model"])
def test_a_pipeline_by_hand_gives_what_feed_gives(on_path, model_def):
    import tensorflow as tf

    from elasticdl.data.example import encode_examples

    by_hand = importlib.import_module("by_hand")
    module = importlib.import_module(model_def)
    records = encode_examples(columns_of(model_def))
    dataset = tf.data.Dataset.from_tensor_slices(records)

    expected = next(iter(module.feed(dataset, Mode.EVALUATION, Metadata()).batch(len(records))))
    found = by_hand.PARSERS[model_def](tf.constant(records))

    tf.nest.assert_same_structure(expected, found)
    for one, other in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def columns_of(model_def):
    random = np.random.default_rng(0)
    if model_def == "criteo.deepfm":
        from criteo.prepare import make_columns

        return make_columns(16, seed=(0, 0, 0))
    return {
        "image": random.integers(0, 256, (16, 784)).astype(np.float32),
        "label": random.integers(0, 10, 16),
    }
