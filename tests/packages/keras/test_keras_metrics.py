"""States of two workers add to the state of one that saw all, or the metric is refused."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.keras.metrics.collection import Metrics

pytestmark = pytest.mark.keras

m = keras.metrics
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, (60, 1)).astype(np.float32)
SCORES = np.clip(LABELS * 0.3 + RNG.uniform(0, 0.7, (60, 1)), 0, 1).astype(np.float32)
PARTS = [slice(0, 7), slice(7, 40), slice(40, 60)]
N, T, C = 60, 5, 4
WEIGHTS = RNG.uniform(0, 3, N).astype(np.float32)
PROBABILITIES = RNG.dirichlet(np.ones(C), N).astype(np.float32)
CLASSES = RNG.integers(0, C, N)
SEQUENCES = RNG.dirichlet(np.ones(C), (N, T)).astype(np.float32)
SEQUENCE_CLASSES = RNG.integers(0, C, (N, T))
MASKS = np.arange(T) < RNG.integers(1, T + 1, (N, 1))
TWO = {"a": SCORES, "b": PROBABILITIES}
TWO_LABELS = {"a": LABELS, "b": CLASSES}


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
        lambda: Smoothed(),
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


class Smoothed(m.Metric):
    """A user's metric whose counts begin with 1 and 2, by the rule of succession."""

    def __init__(self):
        super().__init__(name="smoothed")
        self.hits = self.add_variable((), "ones", name="hits")
        self.all = self.add_variable((), keras.initializers.Constant(2.0), name="all")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.hits.assign_add(keras.ops.sum(keras.ops.cast(y_pred > 0.5, "float32")))
        self.all.assign_add(keras.ops.cast(keras.ops.size(y_true), "float32"))

    def result(self):
        return self.hits / self.all

    def reset_state(self):
        self.hits.assign(1.0)
        self.all.assign(2.0)


def test_a_metric_whose_state_does_not_add_is_refused():
    with pytest.raises(ModelError, match=r"'x' \(Largest\).* is not the sum of its states"):
        feed(Metrics(lambda: {"x": Largest()}), PARTS)


class Counting(SumOfSquares):
    """A user's metric that counts records in Python."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_true, y_pred)
        self.count += len(y_true)

    def result(self):
        return self.total / max(self.count, 1)


class Keeping(m.Metric):
    """A user's metric that keeps all predictions in Python, and has no variables."""

    def __init__(self):
        super().__init__(name="keeping")
        self.seen = []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.append(np.asarray(y_pred))

    def result(self):
        return np.median(np.concatenate(self.seen)) if self.seen else 0.0

    def reset_state(self):
        self.seen = []


@pytest.mark.parametrize(
    ("make", "kept"), [(Counting, "x.count"), (Keeping, r"x.seen\[0\], x.seen\[1\]")]
)
def test_a_metric_whose_result_follows_from_values_in_python_is_refused(make, kept):
    with pytest.raises(ModelError, match=f"variables alone, but from {kept}: what Python keeps"):
        feed(Metrics(lambda: {"x": make()}), PARTS)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda y, p: tf.equal(p > 0.5, y > 0.5), np.mean((SCORES > 0.5) == (LABELS > 0.5))),
        (lambda y, p: tf.reduce_mean(tf.abs(y - p)), np.mean(np.abs(LABELS - SCORES))),
        (lambda y, p: np.square(np.asarray(y) - np.asarray(p)), np.mean((LABELS - SCORES) ** 2)),
        (lambda y_hat, y: y_hat, np.mean(LABELS)),
        (lambda y, p: tf.cast(y, tf.bfloat16), np.mean(LABELS)),
    ],
    ids=[
        "vector of bool",
        "scalar by records",
        "numpy",
        "labels first, whatever its names",
        "half",
    ],
)
def test_a_functions_results_are_averaged_over_records(function, expected):
    states = [feed(Metrics(lambda: {"f": function}), [part]) for part in PARTS]
    results = Metrics(lambda: {"f": function}).results(added(states))
    assert results["f"] == pytest.approx(float(expected), rel=1e-6)


def test_metrics_of_the_user_see_one_minibatch_and_keras_own_take_several():
    seen = []

    def largest(labels, predictions):
        seen.append(len(predictions))
        return tf.reduce_max(predictions)

    wrapped = m.MeanMetricWrapper(largest, name="wrapped")
    given = {"largest": largest, "wrapped": wrapped, "own": SumOfSquares(), "auc": m.AUC()}
    parts = [(tf.constant(LABELS[part]), tf.constant(SCORES[part]), None) for part in PARTS]
    one_by_one, together = Metrics(lambda: given), Metrics(lambda: given)
    results = []
    for metrics, add in (
        (one_by_one, lambda: [one_by_one.update(*part[:2]) for part in parts]),
        (together, lambda: together.update_all(parts)),
    ):
        metrics.resolve(*parts[0][:2])
        metrics.reset()
        add()
        results.append(metrics.results(metrics.states()))
    assert results[0] == pytest.approx(results[1])
    assert max(seen) == max(part.stop - part.start for part in PARTS)


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


@pytest.mark.parametrize("labels", [[LABELS], LABELS, {"a": LABELS}], ids=["list", "plain", "dict"])
@pytest.mark.parametrize("weights", [[WEIGHTS], WEIGHTS, {"a": WEIGHTS}])
def test_one_output_may_be_in_a_list_or_in_a_dict(labels, weights):
    found = []
    for predictions in ([SCORES], {"a": SCORES}):
        metrics = Metrics(lambda: ["mae", "accuracy"], lambda: ["mae"])
        parts = (tensors(slice(None), part) for part in (labels, predictions))
        if not isinstance(labels, dict) or isinstance(predictions, dict):
            metrics.update(*parts, ("a",), tensors(slice(None), weights))
            found.append(metrics.results(metrics.states()))
    errors = np.abs(LABELS - SCORES)[:, 0]
    for results in found:
        assert results["mae"] == pytest.approx(errors.mean())
        assert results["weighted_mae"] == pytest.approx(np.average(errors, weights=WEIGHTS))
        assert results["accuracy"] == pytest.approx(np.mean((LABELS > 0.5) == (SCORES > 0.5)))


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"mae": "mae"}, "'mae' is for one output, and the model has 2: expected {output: {name"),
        ([["mae"], ["mse"]], "'list' is for one output.* return a dict of them from the model"),
        ([m.AUC(), m.MeanSquaredError()], "'auc' is for one output, and the model has 2"),
    ],
)
def test_a_metric_of_keras_for_outputs_without_names_is_refused(metrics, says):
    made = Metrics(lambda: metrics)
    with pytest.raises(ModelError, match=says):
        made.resolve([LABELS, LABELS], [SCORES, SCORES])


def test_weights_by_output_of_a_function_of_all_outputs_are_refused():
    metrics = Metrics(None, lambda: {"f": lambda labels, predictions: predictions["a"]})
    parts = {"a": tf.constant(SCORES), "b": tf.constant(SCORES)}
    with pytest.raises(
        ModelError, match="'f' is not for one output, and feed gives sample weights"
    ):
        metrics.update(parts, parts, (), dict.fromkeys("ab", tf.constant(WEIGHTS)))


def test_an_output_may_have_no_metric():
    metrics = Metrics(lambda: {"a": "mae", "b": None})
    parts = {"a": tf.constant(LABELS), "b": tf.constant(LABELS)}
    metrics.update(parts, parts)
    assert metrics.results(metrics.states()) == {"a/mae": 0.0}


def test_tensorflow_warns_of_no_traces_of_many_metrics(caplog):
    names = [f"threshold {n}" for n in range(8)]
    metrics = Metrics(lambda: {name: keras.metrics.BinaryAccuracy() for name in names})
    tf.get_logger().addHandler(caplog.handler)
    try:
        metrics.update(tf.ones((4, 1)), tf.ones((4, 1)))
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert "retracing" not in caplog.text


def test_reset_forgets():
    metrics = Metrics(lambda: {"auc": m.AUC(), "f": lambda y, p: y})
    feed(metrics, PARTS)
    metrics.reset()
    assert not any(a.any() for arrays in metrics.states().values() for a in arrays)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (m.AUC(), "must return {name: metric}"),
        ({"x": 3}, "'x' must be a Keras metric, its name, or a function"),
        ({"x": lambda y, p: "good"}, "'x' must return numbers, found values of type <U4"),
        ({"x": lambda y, p: y.nothing}, "'x' raised AttributeError"),
        ({"a": {"x": m.AUC()}}, "output 'a', but the model's outputs have no names"),
    ],
)
def test_wrong_metrics_are_named(returned, says):
    with pytest.raises(ModelError, match=says):
        feed(Metrics(lambda: returned), PARTS)


def test_no_function_means_no_metrics():
    assert feed(Metrics(None), PARTS) == {}


def tensors(part, structure, mask=None):
    made = tf.nest.map_structure(lambda x: tf.constant(x[part]), structure)
    if mask is not None:
        made._keras_mask = tf.constant(mask[part])
    return made


@pytest.mark.parametrize(
    ("plain", "weighted", "labels", "predictions", "mask"),
    [
        (["accuracy", "AUC", m.Precision()], None, LABELS, SCORES, None),
        (["acc", m.AUC(), m.AUC(curve="PR")], None, LABELS.astype(np.int64), SCORES, None),
        (["acc"], None, LABELS[:, 0], SCORES, None),
        (["accuracy", "mse", m.TopKCategoricalAccuracy(2)], None, np.eye(C)[CLASSES],
         PROBABILITIES, None),
        (["accuracy", m.SparseTopKCategoricalAccuracy(2)], None, CLASSES, PROBABILITIES, None),
        (["accuracy"], ["accuracy"], CLASSES[:, None], PROBABILITIES, None),
        ([m.binary_accuracy, m.MeanSquaredError], None, LABELS, SCORES, None),
        (["mae"], ["mae", m.AUC()], LABELS, SCORES, None),
        (["accuracy", "sparse_categorical_crossentropy"], None, SEQUENCE_CLASSES, SEQUENCES, MASKS),
        (["accuracy"], ["accuracy"], SEQUENCE_CLASSES, SEQUENCES, MASKS),
        ({"a": "accuracy", "b": ["accuracy"]}, None, TWO_LABELS, TWO, None),
        ({"b": ["accuracy", m.SparseCategoricalCrossentropy()]}, {"a": ["accuracy", "AUC"]},
         TWO_LABELS, TWO, None),
        ([["accuracy"], "accuracy"], None, TWO_LABELS, TWO, None),
    ],
    ids=[
        "binary", "binary, integers", "binary, flat labels", "categorical", "sparse",
        "sparse, column, weighted", "functions and classes", "weighted", "mask", "mask and weights",
        "outputs", "outputs, weighted", "list by output",
    ],
)  # fmt: skip
def test_metrics_are_those_of_compile(plain, weighted, labels, predictions, mask):
    from keras.src.trainers.compile_utils import CompileMetrics

    names = tuple(predictions) if isinstance(predictions, dict) else ()
    weights = None if weighted is None else WEIGHTS if mask is None else WEIGHTS[:, None]
    expected = CompileMetrics(plain, weighted, output_names=list(names) or None)
    parts = [tensors(slice(None), x) for x in (labels, predictions)]
    if mask is not None:
        parts[1]._keras_mask = tf.constant(mask)
    expected.update_state(*parts, None if weights is None else tf.constant(weights))

    def fresh():
        def copied(metric):
            is_metric = isinstance(metric, keras.metrics.Metric)
            return type(metric).from_config(metric.get_config()) if is_metric else metric

        plain_copy, weighted_copy = (
            None if given is None else keras.tree.map_structure(copied, given)
            for given in (plain, weighted)
        )
        return Metrics(lambda: plain_copy, weighted and (lambda: weighted_copy))

    states = []
    for part in PARTS:
        worker = fresh()
        worker.update(
            tensors(part, labels),
            tensors(part, predictions, mask),
            names,
            None if weights is None else tf.constant(weights[part]),
        )
        states.append(worker.states())
    results = worker.results(added(states))

    found = {name.replace("/", "_"): value for name, value in results.items()}
    wanted = {re.sub(r"auc_[1-9]\d*$", "auc", k): float(v) for k, v in expected.result().items()}
    found = {re.sub(r"auc_[1-9]\d*$", "auc", k): v for k, v in found.items()}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


def test_a_metric_that_depends_on_shapes_needs_one_outputs():
    metrics = Metrics(lambda: {"x": "accuracy"})
    with pytest.raises(ModelError, match="'x' is for one output, and the model has 2"):
        metrics.update(tensors(slice(None), TWO_LABELS), tensors(slice(None), TWO), ("a", "b"))


def test_an_unknown_name_is_refused():
    with pytest.raises(ModelError, match="'x' is 'acuracy', which Keras does not know"):
        feed(Metrics(lambda: {"x": "acuracy"}), PARTS)


@pytest.mark.parametrize("given", [{"x": m.MeanIoU}, [m.MeanIoU], ["MeanIoU"]])
def test_a_metric_that_needs_arguments_is_refused(given):
    message = r"metric MeanIoU cannot be made without arguments \(.*num_classes'\): expected an obj"
    with pytest.raises(ModelError, match=message):
        feed(Metrics(lambda: given), PARTS)


def test_crossentropy_is_told_by_shapes_as_accuracy_is():
    results = []
    for name in ("ce", "binary_crossentropy"):
        metrics = Metrics(lambda: {"x": name})  # noqa: B023  called at once
        results.append(metrics.results(feed(metrics, PARTS)))
    assert results[0] == results[1]


def test_a_function_leaves_masked_elements_out_and_weighs():
    def right(labels, predictions):
        return tf.cast(tf.equal(labels, tf.argmax(predictions, -1)), tf.float32)

    metrics = Metrics(lambda: {"f": right}, lambda: {"w": right})
    metrics.update(
        tensors(slice(None), SEQUENCE_CLASSES),
        tensors(slice(None), SEQUENCES, MASKS),
        weights=tf.constant(WEIGHTS),
    )
    hits = SEQUENCES.argmax(-1) == SEQUENCE_CLASSES
    results = metrics.results(metrics.states())
    assert results["f"] == pytest.approx(hits[MASKS].mean())
    expected = np.average(hits, weights=MASKS * WEIGHTS[:, None])
    assert results["w"] == pytest.approx(expected, rel=1e-6)


def test_a_weighted_function_that_returns_one_number_is_refused():
    metrics = Metrics(None, lambda: {"w": lambda labels, predictions: tf.reduce_mean(predictions)})
    with pytest.raises(ModelError, match=r"sample weights of shape .* cannot be applied"):
        metrics.update(tf.constant(LABELS), tf.constant(SCORES), weights=tf.constant(WEIGHTS))


def test_an_evaluation_of_which_feed_left_out_all_records_has_no_metrics_and_says_so():
    with pytest.raises(ModelError, match="no example of any record in mode evaluation"):
        Metrics(lambda: {"accuracy": "accuracy"}).results({})
    assert Metrics(None).results({}) == {}
