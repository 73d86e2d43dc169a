"""States of two workers add to the state of one that saw all, or the metric is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.backends.keras.metrics import Metrics
from elasticdl.errors import ModelError

pytestmark = pytest.mark.keras

m = keras.metrics
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, (60, 1)).astype(np.float32)
SCORES = np.clip(LABELS * 0.3 + RNG.uniform(0, 0.7, (60, 1)), 0, 1).astype(np.float32)
PARTS = [slice(0, 7), slice(7, 40), slice(40, 60)]


def feed(metrics, parts):
    metrics.reset()
    for part in parts:
        metrics.update(tf.constant(LABELS[part]), tf.constant(SCORES[part]))
    return metrics.states()


def added(states):
    total = {name: [x.copy() for x in arrays] for name, arrays in states[0].items()}
    for other in states[1:]:
        for name, arrays in other.items():
            for into, array in zip(total[name], arrays, strict=True):
                into += array
    return total


class SumOfSquares(m.Metric):
    """A user's metric whose state adds."""

    def __init__(self):
        super().__init__(name="sum_of_squares")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.square(y_pred - y_true)))

    def result(self):
        return self.total


class Largest(m.Metric):
    """A user's metric whose state does not add."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value


@pytest.mark.parametrize(
    "make",
    [
        m.AUC, m.Precision, m.Recall, m.BinaryAccuracy, m.MeanSquaredError,
        m.RootMeanSquaredError, m.BinaryCrossentropy, m.FalsePositives, SumOfSquares,
        lambda: m.AUC(curve="PR", num_thresholds=50), lambda: m.PrecisionAtRecall(0.5),
        lambda: m.BinaryIoU(threshold=0.5), m.R2Score, m.F1Score,
    ],
)  # fmt: skip
def test_merged_states_give_what_keras_gives_for_all_data(make):
    plain = make()
    plain.update_state(LABELS, SCORES)
    expected = plain.result()

    workers = [Metrics(lambda: {"x": make()}) for _ in PARTS]
    states = [feed(worker, [part]) for worker, part in zip(workers, PARTS, strict=True)]
    results = Metrics(lambda: {"x": make()}).results(added(states))

    assert all(a.dtype == np.float64 for a in states[0]["x"])
    np.testing.assert_allclose(list(results.values()), np.ravel(expected), rtol=1e-5)


def test_a_metric_whose_state_does_not_add_is_refused():
    with pytest.raises(ModelError, match=r"'x' \(Largest\).* is not the sum of its states"):
        feed(Metrics(lambda: {"x": Largest()}), PARTS)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda y, p: tf.equal(p > 0.5, y > 0.5), np.mean((SCORES > 0.5) == (LABELS > 0.5))),
        (lambda y, p: tf.reduce_mean(tf.abs(y - p)), np.mean(np.abs(LABELS - SCORES))),
        (lambda y, p: np.square(np.asarray(y) - np.asarray(p)), np.mean((LABELS - SCORES) ** 2)),
    ],
    ids=["vector of bool", "scalar by records", "numpy"],
)
def test_a_functions_results_are_averaged_over_records(function, expected):
    states = [feed(Metrics(lambda: {"f": function}), [part]) for part in PARTS]
    results = Metrics(lambda: {"f": function}).results(added(states))
    assert results["f"] == pytest.approx(float(expected), rel=1e-6)


def test_several_outputs_have_names_with_a_slash_and_may_share_their_labels():
    metrics = Metrics(lambda: {"a": {"auc": m.AUC()}, "b": {"mse": m.MeanSquaredError()}})
    outputs = {"a": tf.constant(SCORES), "b": tf.constant(1 - SCORES)}
    metrics.update(tf.constant(LABELS), outputs)
    metrics.update({"a": tf.constant(LABELS), "b": tf.constant(LABELS)}, outputs)

    results = metrics.results(metrics.states())

    assert set(results) == {"a/auc", "b/mse"}
    assert results["b/mse"] == pytest.approx(np.mean((LABELS - 1 + SCORES) ** 2), rel=1e-5)


def test_outputs_in_a_list_go_by_the_models_names():
    metrics = Metrics(lambda: {"b": {"mse": m.MeanSquaredError()}})
    labels = (tf.constant(LABELS), tf.constant(LABELS))
    metrics.update(labels, [tf.constant(SCORES), tf.constant(1 - SCORES)], ("a", "b"))
    expected = np.mean((LABELS - 1 + SCORES) ** 2)
    assert metrics.results(metrics.states())["b/mse"] == pytest.approx(expected, rel=1e-5)


def test_reset_forgets():
    metrics = Metrics(lambda: {"auc": m.AUC(), "f": lambda y, p: y})
    feed(metrics, PARTS)
    metrics.reset()
    assert not any(a.any() for arrays in metrics.states().values() for a in arrays)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([m.AUC()], "must return {name: metric}"),
        ({"x": 3}, "'x' must be a Keras metric or a function"),
        ({"x": lambda y, p: "good"}, "'x' must return numbers, found str"),
        ({"x": lambda y, p: y.nothing}, "'x' raised AttributeError"),
        ({"a": {"x": m.AUC()}}, "output 'a', but the model's outputs have no names"),
    ],
)
def test_wrong_metrics_are_named(returned, says):
    with pytest.raises(ModelError, match=says):
        feed(Metrics(lambda: returned), PARTS)


def test_no_function_means_no_metrics():
    assert feed(Metrics(None), PARTS) == {}
