"""Losses, metrics and layers that read variables: as in `compile` and `fit`, or refused by name."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from keras.src.backend.common import global_state
from keras.src.utils.naming import reset_uids

from elasticdl import Mode
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.momenta import change_of

pytestmark = pytest.mark.keras

RECORDS, MINIBATCH, EPOCHS = 96, 32, 2
IN_MODEL, MOVED = 2**21, 10  # thresholds
NUM_IDS = 1000


def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(RECORDS, 3)).astype(np.float32)
    t = np.tanh(x @ [1.0, -2.0, 0.5]).astype(np.float32)
    ids = rng.integers(0, 50, RECORDS)
    return {"x": x, "id": ids, "t": t, "y": (t > 0).astype(np.float32)}


def feed(dataset, mode, metadata, labels=lambda r: r["t"][None]):
    def parse(r):
        features = {"x": r["x"], "id": r["id"]}
        return features if mode == Mode.PREDICTION else (features, labels(r))

    return dataset.map(parse)


def feed_of_two(dataset, mode, metadata):
    return feed(dataset, mode, metadata, lambda r: {"c": r["t"][None], "d": r["y"][None]})


def sgd(rate=0.05):
    return lambda: keras.optimizers.SGD(rate)


def squared(labels, predictions):
    return ops.mean(ops.square(labels - predictions), -1)


def inputs():
    return {"x": keras.Input((3,), name="x"), "id": keras.Input((), dtype="int64", name="id")}


def two_layers(layers):
    given = inputs()
    layers["out"] = keras.layers.Dense(1, name="out")
    hidden = keras.layers.Dense(4, activation="tanh")(given["x"])
    layers["model"] = keras.Model(given, layers["out"](hidden))
    return layers["model"]


def kernel():
    has = {}
    return {
        "model": lambda: two_layers(has),
        "loss": lambda y, p: squared(y, p) + 0.5 * ops.sum(ops.square(has["out"].kernel)),
    }


def all_vars():
    has = {}

    def loss(y, p):
        return squared(y, p) + 0.1 * sum(tf.nn.l2_loss(w) for w in has["model"].trainable_variables)

    return {"model": lambda: two_layers(has), "loss": loss}


def log_variances():
    has = {}

    class Uncertain(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(1)
            self.log_variance = self.add_weight(shape=(), initializer="zeros", name="lv")

        def call(self, features):
            return self.out(features["x"])

    def model():
        has["model"] = Uncertain()
        return has["model"]

    def loss(y, p):
        return ops.exp(-has["model"].log_variance) * squared(y, p) + has["model"].log_variance

    return {"model": model, "loss": loss}


def item_softmax():
    has = {}

    def model():
        given = inputs()
        has["item"] = keras.layers.Embedding(50, 4, name="item")
        query = keras.layers.Dense(4)(given["x"]) + has["item"](given["id"])
        return keras.Model(given, query)

    def loss(y, p):
        logits = ops.matmul(p, ops.transpose(has["item"].embeddings))
        item = ops.cast(ops.abs(y) * 5, "int32")
        return keras.losses.sparse_categorical_crossentropy(item, logits, from_logits=True)

    return {"model": model, "loss": loss}


def reduction_none():
    mse = keras.losses.MeanSquaredError(reduction=None)
    return {"model": lambda: two_layers({}), "loss": mse, "optimizer": sgd(0.002)}


def metric_reads():
    has = {}

    def norm(labels, predictions):
        return ops.sum(ops.abs(has["out"].kernel)) + 0 * predictions[:, 0]

    return {
        "model": lambda: two_layers(has),
        "loss": squared,
        "eval_metrics_fn": lambda: [norm, "mse"],
    }


def weights_dict():
    def model():
        given = inputs()
        d = keras.layers.Dense(1, name="d", activation="sigmoid")(given["x"])
        return keras.Model(given, {"d": d, "c": keras.layers.Dense(1, name="c")(given["x"])})

    return {
        "model": model,
        "feed": feed_of_two,
        "loss": {"d": "binary_crossentropy", "c": "mae"},
        "loss_weights": {"d": 1.0, "c": 0.25},
    }


def with_ids(ids):
    """Return a model whose prediction counts rows that are those of other ids."""

    class Rows(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            rows = np.arange(NUM_IDS, dtype=np.float32)[:, None]
            self.table = keras.layers.Embedding(
                NUM_IDS, 1, name="table", trainable=False, weights=[rows]
            )

        def call(self, features):
            found = ids(features)
            is_other = tf.abs(self.table(found)[..., 0] - tf.cast(found, tf.float32)) > 0.5
            return 0 * features["x"][:, :1] + tf.reduce_sum(tf.cast(is_other, tf.float32))

    def model():
        given = inputs()
        return keras.Model(given, Rows()(given) + keras.layers.Dense(1)(given["x"]))

    return {"model": model, "loss": squared, "threshold": MOVED}


def numpy_function_good():
    def ids(features):
        found = tf.numpy_function(lambda i: (i * 7) % NUM_IDS, [features["id"]], tf.int64)
        return tf.ensure_shape(found, [None])

    return with_ids(ids)


def moved(file):
    return {**file, "threshold": MOVED}


def moved_all_vars():
    class Penalised(keras.Model):
        def __init__(self):
            super().__init__()
            self.item = keras.layers.Embedding(50, 4, name="item")
            self.out = keras.layers.Dense(1)

        def call(self, features, training=False):
            y = self.out(ops.concatenate([self.item(features["id"]), features["x"]], 1))
            if training:
                self.add_loss(0.05 * sum(ops.sum(ops.square(w)) for w in self.trainable_variables))
            return y

    return {"model": Penalised, "loss": squared, "threshold": MOVED}


def loss_assigns():
    count = keras.Variable(0.0, trainable=False, name="count")

    def loss(y, p):
        count.assign_add(1.0)
        return squared(y, p) * count

    return {"model": lambda: two_layers({}), "loss": loss}


class Smallest(keras.layers.Layer):
    """Subtracts the smallest that it has seen, behind a batch normalization, and before one."""

    def build(self, shape):
        ends = {"low": float("inf"), "best": -float("inf")}
        for name, value in ends.items():
            made = keras.initializers.Constant(value)
            weight = self.add_weight(
                shape=(shape[-1],), initializer=made, trainable=False, name=name
            )
            setattr(self, name, weight)

    def call(self, x, training=False):
        if training:
            smallest = keras.ops.min(keras.ops.stop_gradient(x), axis=0)
            self.low.assign(keras.ops.minimum(self.low, smallest))
        return x - self.low


def begins_with_inf():
    def model():
        given = inputs()
        x = Smallest()(keras.layers.BatchNormalization()(given["x"]))
        return keras.Model(given, keras.layers.Dense(1)(keras.layers.BatchNormalization()(x)))

    return {"model": model, "loss": squared}


def drawn(_):
    return tf.random.uniform([16], 0, NUM_IDS, dtype=tf.int64)


def drawn_by_numpy(_):
    return tf.ensure_shape(drawn_in_any_shape(_), [16])


def drawn_in_any_shape(_):
    return tf.numpy_function(lambda: np.random.randint(0, NUM_IDS, 16), [], tf.int64)


def ours(new_job, file):
    """Train, evaluate and predict as `Local` does; return predictions and metrics."""
    job = new_job(data(), MINIBATCH, **{"optimizer": sgd(), "feed": feed, **file})
    for _ in range(EPOCHS):
        job.train(data(), MINIBATCH)
    metrics = job.evaluate(data(), MINIBATCH) if "eval_metrics_fn" in file else {}
    parts = zip(*map(keras.tree.flatten, job.predictions(data(), MINIBATCH)), strict=True)
    return [np.concatenate(part) for part in parts], metrics


def batches(file, mode):
    dataset = tf.data.Dataset.from_tensor_slices(data())
    return file.get("feed", feed)(dataset, mode, None).batch(MINIBATCH)


def plain(file):
    """Return the same of `compile`, `fit`, `evaluate` and `predict`."""
    keras.utils.set_random_seed(0)
    global_state.set_global_attribute("global_seed_generator", None)
    reset_uids()
    model = file["model"]()
    model(next(iter(batches(file, Mode.PREDICTION))))
    model.compile(
        file.get("optimizer", sgd())(), file["loss"], loss_weights=file.get("loss_weights"),
        metrics=file.get("eval_metrics_fn", lambda: None)(), run_eagerly=True,
    )  # fmt: skip
    model.fit(batches(file, Mode.TRAINING), epochs=EPOCHS, shuffle=False, verbose=0)
    metrics = model.evaluate(batches(file, Mode.EVALUATION), verbose=0, return_dict=True)
    outputs = model.predict(batches(file, Mode.PREDICTION), verbose=0)
    return keras.tree.flatten(outputs), metrics


@pytest.mark.parametrize(
    "make",
    [
        kernel, all_vars, log_variances, item_softmax, reduction_none, metric_reads, weights_dict,
        numpy_function_good, begins_with_inf,
    ],
)  # fmt: skip
def test_predictions_and_metrics_are_those_of_keras(new_job, make):
    file = make()
    outputs, metrics = ours(new_job, file)
    expected, of_keras = plain(file)
    for output, other in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, other, rtol=1e-5, atol=1e-6)
    for name, value in metrics.items():
        assert value == pytest.approx(of_keras[name], rel=1e-5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: moved(item_softmax()), "table '.*item.*embedding_threshold_bytes"),
        (moved_all_vars, "table '.*item.*embedding_threshold_bytes"),
        (loss_assigns, r"loss\(labels, predictions\) assigns the variable 'count'"),
        (lambda: with_ids(drawn), "Embedding 'table'.*drawn at random"),
        (lambda: with_ids(drawn_by_numpy), "Embedding 'table': its ids are others each time"),
        (lambda: with_ids(drawn_in_any_shape), "Embedding 'table': its ids are others each time"),
    ],
    ids=["softmax of a moved table", "moved variables", "assigns", "random", "numpy", "no shape"],
)
def test_what_would_be_another_model_is_refused_by_name(new_job, make, says):
    with pytest.raises(ModelError, match=says):
        ours(new_job, make())


def test_a_traced_step_that_fails_says_where_the_operation_is_written(new_job):
    def model():
        given = inputs()
        hidden = keras.layers.Lambda(
            lambda x: x + tf.gather(tf.zeros(50), tf.cast(x[:, :1], tf.int32))  # the place
        )(given["x"])
        return keras.Model(given, keras.layers.Dense(1)(hidden))

    good = data()
    good["x"] = np.abs(good["x"])
    job = new_job(good, MINIBATCH, model=model, loss=squared, optimizer=sgd(), feed=feed)
    lines = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text.endswith("# the place"))
    with pytest.raises(ModelError, match=rf"is not in \[0, 50\) \({re.escape(__file__)}:{line}\)$"):
        job.train({**good, "x": 1000 + good["x"]}, MINIBATCH)


@pytest.mark.parametrize("xp", [np, tf.experimental.numpy], ids=["NumPy", "TensorFlow"])
def test_what_was_infinite_and_is_not_any_more_has_no_change(xp):
    inf = np.inf
    cases = [(3, 1, 0.5, 2.5), (inf, inf, 1, 0), (5, inf, 1, np.nan), (-inf, inf, 1, np.nan)]
    cases += [(inf, 2, 1, inf), (5, inf, 0, 5)]
    new, old, momentum, expected = np.array(cases, np.float32).T
    found = change_of(*map(xp.asarray, (new, old, momentum)), xp)
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert np.asarray(found).dtype == np.float32
