"""Losses with sample weights and masks are those of Keras' `fit`, and so are their gradients."""

from queue import SimpleQueue

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.job import Mode

pytestmark = pytest.mark.keras

RNG = np.random.default_rng(0)
N = 12
DATA = {
    "x": RNG.normal(size=(N, 4, 3)).astype(np.float32),
    "label": RNG.integers(0, 2, N).astype(np.int64),
    "steps": RNG.integers(0, 2, (N, 4)).astype(np.int64),
    "weight": RNG.uniform(0, 3, N).astype(np.float32),
    "step_weight": RNG.uniform(0, 3, (N, 4)).astype(np.float32),
}
DATA["x"][::2, 2:] = 0.0  # masked steps
L = keras.losses


def dense(units, activation="sigmoid", seed=3, **kwargs):
    initializer = keras.initializers.GlorotUniform(seed=seed)
    return keras.layers.Dense(units, activation, kernel_initializer=initializer, **kwargs)


def one_output():
    x = keras.Input((4, 3), name="x")
    return keras.Model(x, dense(1)(keras.layers.Flatten()(x)))


def masked_sequence():
    x = keras.Input((4, 3), name="x")
    return keras.Model(x, dense(1)(keras.layers.Masking()(x)))


def two_outputs():
    x = keras.Input((4, 3), name="x")
    flat = keras.layers.Flatten()(x)
    return keras.Model(
        x, {"a": dense(1, name="a")(flat), "b": dense(2, "softmax", 4, name="b")(flat)}
    )


def per_record(labels, predictions):
    labels = tf.reshape(tf.cast(labels, tf.float32), tf.shape(predictions))
    return tf.square(labels - predictions)


def mean_square(labels, predictions):
    """As people write it: of labels (n,) and predictions (n, 1) alone it has n x n values."""
    return tf.reduce_mean(tf.square(labels - predictions))


def cross_entropy(labels, predictions):
    return tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions)


def per_step(labels, predictions):
    return per_record(labels, predictions)[..., 0]


def feeding(label="label", weight="weight"):
    def parts(r):
        labels = {"a": r["label"][None], "b": r["label"]} if label == "both" else r[label]
        labels = r["steps"][:, None] if label == "steps" else labels
        weights = {"a": r["weight"], "b": r["weight"] + 1} if weight == "both" else r.get(weight)
        if weight == "column":
            weights = r["weight"][None]
        return (r["x"], labels) if weight is None else (r["x"], labels, weights)

    return lambda dataset, mode, metadata: dataset.map(parts)


def by_keras(forward, loss, feed):
    model = forward()
    before = [v.numpy() for v in model.trainable_variables]
    model.compile(keras.optimizers.SGD(1.0), loss)
    data = feed(tf.data.Dataset.from_tensor_slices(DATA), None, None).batch(N)
    history = model.fit(data, verbose=0, shuffle=False)
    grads = [b - v.numpy() for b, v in zip(before, model.trainable_variables, strict=True)]
    return history.history["loss"][0], np.concatenate([g.ravel() for g in grads])


def job_with(new_job, forward, loss, feed):
    return new_job(
        DATA, N, model=forward, loss=loss, feed=feed, optimizer=lambda: keras.optimizers.SGD(1.0)
    )


def first_step(job, as_records):
    [minibatch] = job.backend.minibatches(as_records(DATA), Mode.TRAINING, N, 0)
    return job.step(minibatch)


CASES = [
    "function", "function, column", "name", "crossentropy", "plain mean", "without a mean",
    "function of keras", "object", "sum",
    "mean with weights", "mask", "mask and weights", "mask and column", "mask and name",
    "two outputs", "two outputs and weights",
]  # fmt: skip


@pytest.mark.parametrize(
    ("forward", "loss", "feed"),
    [
        (one_output, per_record, feeding()),
        (one_output, per_record, feeding(weight="column")),
        (one_output, "binary_crossentropy", feeding()),
        (one_output, "crossentropy", feeding()),
        (one_output, mean_square, feeding(weight=None)),
        (one_output, cross_entropy, feeding(weight=None)),
        (one_output, L.mean_squared_error, feeding()),
        (one_output, L.BinaryCrossentropy(), feeding()),
        (one_output, L.BinaryCrossentropy(reduction="sum"), feeding()),
        (one_output, L.MeanSquaredError(reduction="mean_with_sample_weight"), feeding()),
        (masked_sequence, per_step, feeding("steps", None)),
        (masked_sequence, per_step, feeding("steps", "step_weight")),
        (masked_sequence, per_step, feeding("steps", "column")),
        (masked_sequence, "mse", feeding("steps", None)),
        (two_outputs, {"a": "mse", "b": "crossentropy"}, feeding("both")),
        (two_outputs, {"a": "mse", "b": "crossentropy"}, feeding("both", "both")),
    ],
    ids=CASES,
)
def test_the_loss_and_its_gradient_are_those_of_fit(new_job, as_records, forward, loss, feed):
    expected, gradient = by_keras(forward, loss, feed)

    result = first_step(job_with(new_job, forward, loss, feed), as_records)

    assert result.loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(result.dense_grad, gradient, rtol=1e-4, atol=1e-6)


def test_a_loss_with_a_third_parameter_weighs_by_itself(new_job, as_records):
    def loss(labels, predictions, sample_weight):
        values = per_record(labels, predictions)[:, 0]
        return tf.reduce_sum(values * sample_weight) / tf.reduce_sum(sample_weight)

    keras_loss = L.MeanSquaredError(reduction="mean_with_sample_weight")
    expected, gradient = by_keras(one_output, keras_loss, feeding())

    result = first_step(job_with(new_job, one_output, loss, feeding()), as_records)

    assert result.loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(result.dense_grad, gradient, rtol=1e-4, atol=1e-6)


def test_weights_of_losses_are_written_in_the_loss(new_job, as_records):
    def loss(labels, predictions):
        first = keras.losses.mean_squared_error(labels["a"], predictions["a"])
        second = keras.losses.sparse_categorical_crossentropy(labels["b"], predictions["b"])
        return 0.25 * first + 2.0 * second

    model = two_outputs()
    losses = {"a": "mse", "b": "sparse_categorical_crossentropy"}
    model.compile(loss=losses, loss_weights={"a": 0.25, "b": 2.0})
    data = feeding("both", None)(tf.data.Dataset.from_tensor_slices(DATA), None, None).batch(N)
    expected = model.evaluate(data, verbose=0, return_dict=True)["loss"]

    result = first_step(job_with(new_job, two_outputs, loss, feeding("both", None)), as_records)

    assert result.loss == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_needs_integers_is_given_the_labels_of_feed(new_job, as_records):
    def loss(labels, predictions):
        logits = tf.concat([tf.zeros_like(predictions), predictions], axis=1)
        labels = tf.reshape(labels, [-1])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    data = feeding(weight=None)
    expected, gradient = by_keras(one_output, lambda y, p: loss(tf.cast(y, tf.int64), p), data)

    result = first_step(job_with(new_job, one_output, loss, data), as_records)

    assert result.loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(result.dense_grad, gradient, rtol=1e-4, atol=1e-6)


def test_a_loss_that_flattens_the_predictions_is_given_the_labels_of_feed(new_job, as_records):
    def loss(labels, predictions):
        return tf.square(labels - tf.reshape(predictions, [-1]))

    data = feeding(weight=None)
    expected, gradient = by_keras(one_output, "mse", data)

    result = first_step(job_with(new_job, one_output, loss, data), as_records)

    assert result.loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(result.dense_grad, gradient, rtol=1e-4, atol=1e-6)


def test_a_loss_that_makes_n_x_n_values_of_whatever_it_is_given_is_told(
    new_job, as_records, caplog
):
    def loss(labels, predictions):
        return tf.square(tf.reshape(labels, [-1]) - tf.reshape(predictions, [-1, 1]))

    with caplog.at_level("WARNING", "elasticdl"):
        first_step(job_with(new_job, one_output, loss, feeding(weight=None)), as_records)

    assert "loss(labels, predictions) makes n x n values of n records" in caplog.text


def test_a_loss_that_raises_says_what_it_was_given(new_job, as_records):
    def loss(labels, predictions):
        raise ValueError(f"I want integers, and not {labels.dtype}")

    words = r"raised ValueError on labels float32\[.*I want integers, and not .*float32"
    with pytest.raises(ModelError, match=words):
        first_step(job_with(new_job, one_output, loss, feeding(weight=None)), as_records)


def test_a_loss_of_several_outputs_is_called_once_with_all_of_them(new_job, as_records):
    seen = SimpleQueue()  # a list would be put back after the trials

    def loss(labels, predictions):
        seen.put({name: labels[name].shape.rank for name in sorted(labels)})
        return mean_square(labels["a"], predictions["a"])

    model = two_outputs()
    model.compile(loss={"a": mean_square, "b": None})
    data = feeding("both", None)(tf.data.Dataset.from_tensor_slices(DATA), None, None).batch(N)
    expected = model.evaluate(data, verbose=0, return_dict=True)["loss"]

    result = first_step(job_with(new_job, two_outputs, loss, feeding("both", None)), as_records)

    assert result.loss == pytest.approx(expected, rel=1e-5)
    assert seen.get_nowait() == {"a": 2, "b": 1}


def mean(labels, predictions):
    return tf.reduce_mean(per_record(labels, predictions))


def text_weights(dataset, mode, metadata):
    return dataset.map(lambda r: (r["x"], r["label"], tf.as_string(r["label"])))


@pytest.mark.parametrize(
    ("forward", "loss", "feed", "says"),
    [
        (one_output, mean, feeding(), r"mean returns one number.*return a value for each record"),
        (masked_sequence, per_step, feeding("steps"), r"give weights with 2 dimensions"),
        (one_output, per_record, text_weights, "sample weights, which must be numbers"),
        (
            two_outputs,
            lambda labels, predictions: predictions["a"],
            feeding("both", "both"),
            "one loss for all outputs: give .* a third parameter",
        ),
    ],
    ids=["scalar", "ranks", "text", "outputs"],
)
def test_weights_without_a_meaning_are_refused(new_job, as_records, forward, loss, feed, says):
    with pytest.raises(ModelError, match=says):
        first_step(job_with(new_job, forward, loss, feed), as_records)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            lambda r: (r["x"], None),
            r"gives None in mode training: expected labels, such as tf\.zeros",
        ),
        (lambda r: (r["x"], r["label"], None), "or a tuple without them"),
    ],
)
def test_a_feed_that_gives_none_is_refused(new_job, parts, says):
    with pytest.raises(ModelError, match=says):
        job_with(
            new_job, one_output, per_record, lambda dataset, mode, metadata: dataset.map(parts)
        )


def test_a_feed_with_four_elements_is_refused(new_job):
    def feed(dataset, mode, metadata):
        return dataset.map(lambda r: (r["x"], r["label"], r["weight"], r["weight"]))

    with pytest.raises(ModelError, match=r"\(features, labels, sample weights\).*found"):
        job_with(new_job, one_output, per_record, feed)


@pytest.mark.parametrize(
    ("forward", "feed", "weight"),
    [
        (one_output, feeding(weight="column"), "column"),
        (masked_sequence, feeding("steps", "column"), "column"),
        (masked_sequence, feeding("steps", "step_weight"), "step_weight"),
    ],
    ids=["binary", "mask", "mask and step weights"],
)
def test_an_evaluation_gives_what_keras_evaluate_gives(new_job, forward, feed, weight):
    model = forward()
    model.compile(loss="mse", metrics=["accuracy"], weighted_metrics=["mae", "accuracy"])
    data = feed(tf.data.Dataset.from_tensor_slices(DATA), None, None).batch(5)
    expected = model.evaluate(data, verbose=0, return_dict=True)

    job = new_job(
        DATA, N, model=forward, loss="mse", feed=feed,
        optimizer=lambda: keras.optimizers.SGD(1.0),
        eval_metrics_fn=lambda: ["accuracy"], weighted_metrics_fn=lambda: ["mae", "accuracy"],
    )  # fmt: skip
    found = job.evaluate(DATA, 5)

    assert found == pytest.approx(expected, rel=1e-5)


def test_an_exported_model_that_had_masks_is_not_evaluated_without_them(
    new_job, spec_of, as_records, tmp_path
):
    from elasticdl.data.base import Metadata
    from elasticdl.packages.keras.predictor import SavedModelPredictor

    feed = feeding("steps", None)
    job = job_with(new_job, masked_sequence, per_step, feed)
    job.export(tmp_path)
    exported = SavedModelPredictor(
        spec_of(feed=feed, eval_metrics_fn=lambda: ["accuracy"]), Metadata(), tmp_path
    )
    [minibatch] = exported.minibatches(as_records(DATA), Mode.EVALUATION, N, 0)
    with pytest.raises(ModelError, match="evaluate with --checkpoint_dir_for_init"):
        exported.evaluate_step(minibatch, [], *2 * [np.zeros(0, np.float32)])


def test_metrics_of_trained_minibatches_are_of_the_predictions_they_were_trained_with(
    new_job, as_records
):
    job = new_job(
        DATA, N, model=masked_sequence, loss=per_step, feed=feeding("steps", None),
        optimizer=lambda: keras.optimizers.SGD(0.0), eval_metrics_fn=lambda: ["accuracy", "mse"],
    )  # fmt: skip
    job.backend.new_metrics()
    minibatches = list(job.backend.minibatches(as_records(DATA), Mode.TRAINING, 5, 0))
    job.backend.measure(minibatches, [job.step(mb).predictions for mb in minibatches])
    trained = job.backend.metric_results(job.backend.metric_states())
    evaluated = job.evaluate(DATA, 5)
    assert evaluated.pop("loss") > 0
    assert trained == pytest.approx(evaluated, rel=1e-5)
