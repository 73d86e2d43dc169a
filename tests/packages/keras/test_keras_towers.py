"""A tower computed by itself gives what it gives within the model, and the same gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode
from elasticdl.errors import ModelError
from elasticdl.layers import Embedding, Remote

pytestmark = pytest.mark.keras


def column_feed(dataset, mode, metadata):
    if mode == Mode.PREDICTION:
        return dataset.map(lambda r: {"ids": r["ids"]})
    return dataset.map(lambda r: ({"ids": r["ids"]}, r["label"]))


def squared(labels, predictions):
    return tf.square(tf.cast(labels, tf.float32) - tf.reshape(predictions, [-1]))


def sgd():
    return keras.optimizers.SGD(0.1)


def data_of(n=32):
    ids = np.random.default_rng(0).integers(0, 9, (n, 3))
    return {"ids": ids, "label": (ids.sum(1) % 5).astype(np.float32)}


def tower(*layers):
    return keras.Sequential([Embedding(6, name="inner"), *layers, keras.layers.Dense(2)])


def model_of(*layers):
    def model():
        ids = keras.Input((3,), dtype="int64", name="ids")
        outputs = Remote(tower(*(layer() for layer in layers)), name="images")(ids)
        rows = Embedding(4, name="outer")(ids)
        both = keras.layers.Concatenate()([outputs, rows])
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(keras.layers.Flatten()(both)))

    return model


def job_of(new_job, model=None):
    data = data_of()
    functions = {"loss": squared, "optimizer": sgd, "feed": column_feed}
    return new_job(
        data, 32, model=model or model_of(lambda: keras.layers.Dense(5, "tanh")), **functions
    )


def test_gradients_of_a_tower_and_of_the_rest_are_those_of_the_whole_model(new_job):
    job = job_of(new_job)
    minibatch = next(job.minibatches(data_of(), 32))
    _, pulled, whole = job.computed(minibatch)
    wanted = dict(zip((job.description.tables[k].name for k in job.backend.id_sites()),
                      whole.row_grads, strict=True))  # fmt: skip
    wanted_predictions = job.predict({"ids": data_of()["ids"]}, 32)
    (images,) = job.backend.towers()
    job.backend.place_towers()
    assert job.backend.id_sites()[0] == len(job.description.tables)
    given, outer = job.backend.ids(minibatch)
    unique, places = np.unique(given, return_inverse=True)
    own = np.concatenate([pulled.dense[part] for part in images.dense])
    (inner,) = images.ids(unique)
    rows = job.client.pull([(images.tables[0], inner)], training=True).rows
    outputs = images.forward(unique, rows, own, True)
    assert outputs.shape == (len(unique), images.dim)
    rest = job.client.pull([(job.backend.id_sites()[1], outer)], training=True).rows
    shaped = outputs[places].reshape(*given.shape, images.dim)
    found = job.backend.train_step(minibatch, [shaped, *rest], pulled.dense, pulled.state)
    assert found.loss == pytest.approx(whole.loss, rel=1e-6)
    given_rows = [shaped, *rest], pulled.dense, pulled.state
    predicted = job.backend.predict_step(minibatch, *given_rows)
    np.testing.assert_allclose(predicted, wanted_predictions, atol=1e-6)
    merged = np.zeros((len(unique), images.dim), np.float32)
    np.add.at(merged, places.ravel(), found.row_grads[0].reshape(-1, images.dim))
    (of_rows,), of_dense = images.backward(unique, merged, rows, own)
    dense, at = found.dense_grad.copy(), 0
    for part in images.dense:
        assert not dense[part].any()
        size = part.stop - part.start
        dense[part] = of_dense[at : at + size]
        at += size
    np.testing.assert_allclose(dense, whole.dense_grad, atol=1e-6)
    np.testing.assert_allclose(found.row_grads[1], wanted["outer"], atol=1e-6)
    summed = np.zeros_like(of_rows)
    np.add.at(summed, places.ravel(), wanted["inner"].reshape(-1, 6))
    np.testing.assert_allclose(of_rows, summed, atol=1e-6)


def test_a_model_whose_towers_are_elsewhere_is_exported_with_them(new_job, tmp_path):
    job = job_of(new_job)
    wanted = job.predict({"ids": data_of()["ids"]}, 32)
    job.backend.place_towers()
    job.export(tmp_path / "model")
    loaded = tf.saved_model.load(tmp_path / "model")
    served = loaded.serve({"ids": tf.constant(data_of()["ids"])})
    np.testing.assert_allclose(served, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([keras.layers.BatchNormalization], "keeps no state"),
        ([lambda: keras.layers.Dropout(0.5)], "draws nothing"),
        ([lambda: keras.layers.Dense(2, trainable=False)], "layers that are not trained"),
        ([lambda: keras.layers.Dense(2, kernel_regularizer="l2")], "adds no loss"),
    ],
)
def test_a_tower_that_is_more_than_a_function_of_an_id_is_refused(new_job, layers, words):
    job = job_of(new_job, model_of(*layers))
    with pytest.raises(ModelError, match=words):
        job.backend.towers()


def test_a_model_without_a_tower_is_refused(new_job):
    def model():
        ids = keras.Input((3,), dtype="int64", name="ids")
        flat = keras.layers.Flatten()(Embedding(4)(ids))
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(flat))

    job = job_of(new_job, model)
    with pytest.raises(ModelError, match="no part in"):
        job.backend.towers()


def test_variables_that_the_rest_uses_too_are_refused(new_job):
    def model():
        ids = keras.Input((3,), dtype="int64", name="ids")
        shared = tower()
        both = Remote(shared)(ids)[:, 0] + shared(ids[:, 1])
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(both))

    job = job_of(new_job, model)
    with pytest.raises(ModelError, match="uses it outside"):
        job.backend.place_towers()


def test_a_tower_reads_the_features_that_the_model_file_gives(new_job):
    features = np.random.default_rng(1).random((9, 6)).astype(np.float32)

    def model():
        ids = keras.Input((3,), dtype="int64", name="ids")
        pixels = keras.layers.Embedding(9, 6, weights=[features], trainable=False, name="pixels")
        outputs = Remote(keras.Sequential([pixels, keras.layers.Dense(2)]), name="images")(ids)
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(keras.layers.Flatten()(outputs)))

    functions = {"loss": squared, "optimizer": sgd, "feed": column_feed}
    job = new_job(data_of(), 32, threshold=0, model=model, **functions)
    (table,) = job.description.tables
    assert (table.name, table.trainable, table.given_rows) == ("pixels", False, True)
    (images,) = job.backend.towers()
    unique = np.arange(9)
    rows = job.client.pull([(images.tables[0], images.ids(unique)[0])], training=True)
    np.testing.assert_array_equal(rows.rows[0], features)
    own = np.concatenate([rows.dense[part] for part in images.dense])
    outputs = images.forward(unique, rows.rows, own, True)
    kernel, bias = own[:12].reshape(6, 2), own[12:]
    np.testing.assert_allclose(outputs, features @ kernel + bias, atol=1e-5)
