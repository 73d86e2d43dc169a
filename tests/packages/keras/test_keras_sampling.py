"""Negatives that were sampled: logits are corrected wherever they are not trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode
from elasticdl.errors import ModelError
from elasticdl.layers import SamplingCorrection

pytestmark = pytest.mark.keras
RATE = 0.1
DATA = {"x": np.ones((64, 1), np.float32), "y": np.arange(64).reshape(-1, 1) % 2 * 1.0}


def model():
    inputs = keras.Input((1,), name="x")
    logits = keras.layers.Dense(1, kernel_initializer="zeros")(inputs)
    return keras.Model({"x": inputs}, {"click": SamplingCorrection(RATE)(logits)})


def loss(labels, outputs):
    labels = tf.cast(labels, tf.float32)
    return tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs["click"])


def feed(dataset, mode, metadata):
    return dataset.map(
        lambda r: {"x": r["x"]} if mode == Mode.PREDICTION else ({"x": r["x"]}, r["y"])
    )


def test_a_model_is_trained_on_the_sampled_log_and_is_right_of_all_data_elsewhere(
    new_job, tmp_path
):
    job = new_job(
        DATA, 64, model=model, loss=loss, feed=feed, optimizer=lambda: keras.optimizers.SGD(0.1),
        eval_metrics_fn=lambda: {"click": {"logit": lambda labels, logits: logits}},
    )  # fmt: skip
    assert job.train(DATA, 64) == [pytest.approx(np.log(2.0))]  # half of the log is clicks: logit 0
    wanted = np.log(RATE)
    probability = 1.0 / (1.0 + np.exp(-wanted))
    assert probability == pytest.approx(0.5 / (0.5 + 0.5 / RATE))  # He et al. 2014
    (predicted,) = job.predictions({"x": DATA["x"][:4]}, 4)
    np.testing.assert_allclose(predicted["click"], wanted, atol=1e-6)
    assert job.evaluate(DATA, 64)["click/logit"] == pytest.approx(wanted)
    job.export(tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    served = loaded.serve({"x": tf.ones((4, 1))})
    np.testing.assert_array_equal(served["click"], predicted["click"])


def test_the_layer_is_saved_with_its_rate():
    again = SamplingCorrection.from_config(SamplingCorrection(RATE).get_config())
    assert float(again(tf.zeros(()))) == pytest.approx(np.log(RATE))
    assert float(again(tf.zeros(()), training=True)) == 0.0


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, float("nan")])
def test_a_rate_that_is_no_share_is_refused(rate):
    with pytest.raises(ModelError, match="the share of the negatives that was kept"):
        SamplingCorrection(rate)
