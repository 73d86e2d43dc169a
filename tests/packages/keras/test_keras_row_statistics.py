"""What a Keras model counts of its ids: equal to what NumPy counts, and read as features."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.layers import Embedding, Expiry, RowStatistics, StatisticAdmission
from tests.unit.backends.conftest import make_spec, records_of
from tests.unit.backends.counted import DATA, KEPT, Trained

pytestmark = pytest.mark.keras


def keras_spec(kept=KEPT, padded=False, **life):
    def model():
        ids = keras.Input((3,), dtype="int64", name="ids")
        price = keras.Input((), name="price")
        layer = Embedding(4, combiner="sum", mask_zero=padded, name="item", statistics=kept, **life)
        x = keras.ops.log(layer(ids) + 3.0)
        return keras.Model({"ids": ids, "price": price}, keras.layers.Dense(1)(x))

    def feed(dataset, mode, metadata):
        def one(r):
            features = {"ids": r["ids"], "price": r["price"]}
            return features if mode == Mode.PREDICTION else (features, r["click"])

        return dataset.map(one)

    def loss(labels, outputs):
        return keras.ops.mean((keras.ops.reshape(labels, (-1, 1)) - outputs) ** 2)

    return make_spec(
        model=model, feed=feed, loss=loss, optimizer=lambda: keras.optimizers.Adagrad(0.1)
    )


def test_a_keras_model_counts_its_ids_and_reads_them_as_features(tmp_path):
    job = Trained(keras_spec())
    assert [table.name for table in job.description.tables] == ["item", "item_statistics"]
    job.check(1)
    pulled = job.exchange.look_up([], training=False)
    job.trainer.export(tmp_path, pulled.dense, pulled.state, job.exchange.client)

    features = {"ids": DATA["ids"][:5], "price": DATA["price"][:5]}
    minibatch = next(job.trainer.minibatches(records_of(features), Mode.PREDICTION, 5, 0))
    ids = job.trainer.ids(minibatch)
    given = job.exchange.pull(ids)
    predicted = job.trainer.predict_step(minibatch, given.rows, given.dense, given.state)
    loaded = tf.saved_model.load(tmp_path)
    served = loaded.serve({k: tf.constant(v) for k, v in features.items()})
    np.testing.assert_allclose(served, predicted, rtol=1e-6)


def test_padding_counts_nothing_and_statistics_alone_change_no_model():
    unread = dataclasses.replace(KEPT, as_features=False)
    job = Trained(keras_spec(unread, padded=True))
    job.check(1)
    assert job.description.tables[1].dim == 4
    with_none, with_some = (
        Trained(keras_spec(kept)).exchange.look_up([], False).dense for kept in (None, unread)
    )
    np.testing.assert_array_equal(with_none, with_some)


def test_ids_are_let_in_and_go_by_their_shows():
    life = {"admission": StatisticAdmission("show", 30.0), "expiry": Expiry(30)}
    job = Trained(keras_spec(**life))
    shows = {i: row[0] for i, row in job.table(1).items()}
    let_in = set(job.table(0))
    assert {i for i, show in shows.items() if show >= 30} <= let_in
    assert 0 < len(let_in) < len(shows)


def test_what_feed_does_not_give_is_refused_by_name():
    kept = RowStatistics(("show", "cost"))
    with pytest.raises(ModelError, match=r"counts 'cost'.*found ids, price"):
        Trained(keras_spec(kept))
    with pytest.raises(ModelError, match=r"statistic 'like'; statistics= has show, click, price"):
        Trained(keras_spec(admission=StatisticAdmission("like", 2)))
    with pytest.raises(ModelError, match=r"say statistics=RowStatistics"):
        Trained(keras_spec(None, expiry=Expiry(statistic="show", below=0.5)))
