"""Outputs of a model that are no plain numbers: text, half precision, None, ragged tensors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.job import Mode, Shard, Task, TaskKind
from elasticdl.packages.keras.served import KerasServed
from elasticdl.worker.predictions import FileSink, Predicted
from tests.packages.keras.plain_model import FUNCTIONS, data, squared

pytestmark = pytest.mark.keras


class Optional(keras.Model):
    """A model with an output that is not there."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x), None


def test_an_output_may_be_none(new_job):
    functions = {**FUNCTIONS, "loss": lambda labels, predictions: squared(labels, predictions[0])}
    job = new_job(data(), 16, model=Optional, **functions)
    assert job.train(data(), 16)[-1] < 100.0
    minibatch = next(job.minibatches(data(), 16))
    outputs = job.backend.predict_step(minibatch, [], *job.parameters())
    assert outputs[0].shape == (16, 1)
    assert outputs[1] is None


def test_predictions_that_are_ragged_are_refused(new_job):
    class Ragged(Optional):
        def call(self, x):
            return tf.RaggedTensor.from_tensor(self.dense(x))

    functions = {**FUNCTIONS, "loss": lambda labels, predictions: predictions.flat_values}
    job = new_job(data(), 16, model=Ragged, **functions)
    minibatch = next(job.minibatches(data(), 16))
    with pytest.raises(ModelError, match=r"gives a tf.RaggedTensor: expected dense tensors"):
        job.backend.predict_step(minibatch, [], *job.parameters())


@pytest.mark.parametrize("beside", [False, True])
def test_outputs_whose_keys_are_no_text_are_known_before_training_to_have_no_export(
    new_job, beside
):
    class Numbered(Optional):
        def call(self, x):
            return {1: self.dense(x)}

    functions = {**FUNCTIONS, "loss": lambda labels, predictions: squared(labels, predictions[1])}
    job = new_job(data(), 16, model=Numbered, **functions)
    with pytest.raises(ModelError, match="the name of an output of the model is 1: expected text"):
        job.backend.check_export(beside)


class Names(keras.layers.Layer):
    def call(self, x):
        return tf.where(x > 0, "positive", "no")

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, "string")


def test_outputs_that_are_bfloat16_or_text_can_be_read_by_other_programs(new_job, tmp_path):
    def model():
        x = keras.Input((4,))
        half = keras.layers.Dense(1, dtype="mixed_bfloat16")(x)
        return keras.Model(x, {"half": half, "name": Names()(keras.ops.cast(half, "float32"))})

    def loss(labels, predictions):
        return tf.square(labels - tf.cast(predictions["half"][:, 0], tf.float32))

    def features_feed(dataset, mode, metadata):
        return dataset.map(lambda r: r["x"] if mode == Mode.PREDICTION else (r["x"], r["y"]))

    records = data()
    functions = {**FUNCTIONS, "loss": loss, "feed": features_feed}
    job = new_job(records, 16, model=model, **functions)
    predicted = list(job.predictions(records, 16))
    sink = FileSink(tmp_path)
    minibatches = [Predicted(p, np.arange(16) + 16 * k) for k, p in enumerate(predicted)]
    sink.write(Task(0, TaskKind.PREDICTION, Shard("x", 0, 32)), minibatches)
    written = np.load(tmp_path / "predictions-00000000.npz")
    assert written["half"].dtype == np.float32
    words = [b"positive" if value > 0 else b"no" for value in written["half"].ravel()]
    assert written["name"].ravel().tolist() == words

    job.backend.export(tmp_path / "model", *job.parameters(), None)
    served = KerasServed(tmp_path / "model")
    (feature,) = served.features
    found = served.score({feature.name: records["x"]}, [])
    np.testing.assert_array_equal(found["half"], written["half"])
    assert found["half"].dtype == np.float32
