"""What a model file does to a plain table after building it counts when the table is moved, too."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.optimizers import GroupFtrl

pytestmark = pytest.mark.keras

RECORDS = {"ids": np.arange(64).reshape(16, 4) % 20}
ROWS = np.abs(np.random.default_rng(8).normal(size=(20, 3))).astype(np.float32)
IN_MODEL, MOVED = 10**9, 0  # thresholds


def feed(dataset, mode, metadata):
    return dataset.map(lambda r: (r["ids"], [-3.0]))


def squared(labels, predictions):
    return tf.square(tf.reshape(labels, [-1]) - tf.reshape(predictions, [-1]))


class Closed(keras.layers.Layer):
    """Calls a layer that is none of its own."""

    def __init__(self, layer):
        super().__init__()
        self.of = lambda ids: layer(ids)

    def call(self, ids):
        return self.of(ids)


def model_of(change, calls=lambda layer: layer):
    def model():
        ids = keras.Input((4,), dtype="int64", name="ids")
        layer = keras.layers.Embedding(20, 3, name="rows", weights=[ROWS])
        out = keras.layers.Dense(1, kernel_initializer="ones")
        made = keras.Model(ids, out(keras.layers.Flatten()(calls(layer)(ids))))
        return change(made, layer) or made

    return model


def losses(new_job, threshold, model):
    job = new_job(
        RECORDS, 16, threshold=threshold, model=model, feed=feed, loss=squared,
        optimizer=lambda: keras.optimizers.SGD(0.1),
    )  # fmt: skip
    assert bool(job.description.tables) == (threshold == MOVED)
    for _ in range(3):
        job.train(RECORDS, 16)
    return job.losses


def without_training_its_variable(model, layer):
    layer.embeddings.trainable = False


def with_a_constraint_set_later(model, layer):
    layer.embeddings.constraint = keras.constraints.NonNeg()


def as_a_copy(model, layer):
    copied = keras.models.clone_model(model)
    copied.get_layer("rows").set_weights([ROWS])
    return copied


@pytest.mark.parametrize(
    "change", [without_training_its_variable, with_a_constraint_set_later, as_a_copy]
)
def test_it_trains_as_in_the_model(new_job, change):
    model = model_of(change)
    moved, kept = (losses(new_job, threshold, model) for threshold in (MOVED, IN_MODEL))
    np.testing.assert_allclose(moved, kept, rtol=1e-5)


def test_a_table_of_a_layer_that_is_no_part_of_the_model_is_not_trained(new_job, caplog):
    model = model_of(lambda *_: None, calls=Closed)
    moved, kept = (losses(new_job, threshold, model) for threshold in (MOVED, IN_MODEL))
    np.testing.assert_allclose(moved, kept, rtol=1e-5)
    assert "'rows' is called but is not part of the model" in caplog.text


def test_that_rows_of_a_table_in_the_model_are_no_groups_is_said(new_job):
    def notes(threshold, strength):
        job = new_job(
            RECORDS, 16, threshold=threshold, model=model_of(lambda *_: None), feed=feed,
            loss=squared, optimizer=lambda: GroupFtrl(0.1, strength),
        )  # fmt: skip
        return [note for note in job.backend._spec.notes if "Ftrl" in note]

    (note,) = notes(IN_MODEL, 0.5)
    assert "GroupFtrl updates rows/embeddings as Ftrl does" in note
    assert not notes(IN_MODEL, 0.0)
    assert not [note for note in notes(MOVED, 0.5) if "as Ftrl does" in note]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _, layer: layer.enable_lora(2), "calls enable_lora of Embedding 'rows'"),
        (
            lambda _, layer: setattr(layer.embeddings, "regularizer", keras.regularizers.L2(0.1)),
            "reads the whole table 'rows/embeddings'",
        ),
    ],
    ids=["lora", "regularizer"],
)
def test_what_needs_all_of_its_rows_is_refused(new_job, change, says):
    with pytest.raises(ModelError, match=f"{says}.*to keep it a dense variable"):
        losses(new_job, MOVED, model_of(change))
