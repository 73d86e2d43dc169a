"""An exported array model predicts and is evaluated as the job did, without a framework."""

import subprocess
import sys

import numpy as np
import pytest

from elasticdl import ArrayModel, RowStatistics
from elasticdl.backends.base import Initializer
from elasticdl.backends.load import load_saved_model
from elasticdl.backends.numpy import ArrayOptimizer, ArrayTable, NumpyTrainer
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError

UNSEEN = 0.25
RECORDS = [(f"{a} {b}", (a + b) % 2) for a in range(6) for b in range(3)]


def model(dim=4, name="words", dense=2, as_strings=False, statistics=None):
    start = Initializer("uniform", {"low": 0.0, "high": 2 * UNSEEN})
    table = ArrayTable(name, dim, start, statistics=statistics)

    def predict(values, rows, features):
        return rows[0].sum(axis=(1, 2)) + values["bias"].sum()

    def gradients(values, rows, features, labels):
        difference = (predict(values, rows, features) - labels) / len(labels)
        of_rows = np.broadcast_to(difference[:, None, None], rows[0].shape)
        of_dense = {"bias": np.full(dense, difference.sum(), np.float32)}
        return float(np.square(difference).sum()), [of_rows], of_dense, {"seen": np.float32([1])}

    def ids(features):
        return [features.astype(str) if as_strings else features]

    return ArrayModel(
        [table], ids, predict, gradients,
        dense={"bias": np.zeros(dense, np.float32)}, state={"seen": np.zeros(1, np.float32)},
    )  # fmt: skip


def feed(records, mode, metadata):
    features = np.array([[int(word) for word in words.split()] for words, _ in records])
    return features, np.array([label for _, label in records], np.float32)


FUNCTIONS = {
    "feed": feed,
    "optimizer": lambda: ArrayOptimizer(0.05),
    "eval_metrics_fn": lambda: {"mse": lambda labels, p: np.square(labels - p)},
}


@pytest.fixture
def exported(spec_of, begin_job, tmp_path):
    """Return a function that trains a model, exports it, and returns the job."""

    def export(**words):
        spec = spec_of(**FUNCTIONS)
        job = begin_job(NumpyTrainer(spec, model(**words), Metadata(), seed=0), RECORDS)
        job.train(RECORDS, 4)
        job.export(tmp_path)
        return job

    return export


def load(spec_of, folder, **words):
    return load_saved_model(
        spec_of(**FUNCTIONS, model=lambda: model(**words)), Metadata(), folder, 1
    )


@pytest.mark.parametrize("as_strings", [False, True])
def test_it_predicts_and_is_evaluated_as_the_job_was(
    exported, spec_of, as_records, tmp_path, as_strings
):
    job = exported(as_strings=as_strings)
    rows = [*RECORDS, ("77 2", 1)]  # 77 was never trained
    expected, result = job.predict(rows, 4), job.evaluate(rows, 4)

    predictor = load(spec_of, tmp_path, as_strings=as_strings)
    nothing = np.zeros(0, np.float32)
    found, is_checked = [], False
    predictor.new_metrics()
    for minibatch in predictor.minibatches(as_records(rows), "evaluation", 4, 0):
        if not is_checked:
            predictor.check(minibatch)
        is_checked = True
        assert list(predictor.ids(minibatch)) == []
        predictor.evaluate_step(minibatch, (), nothing, nothing)
        found.append(predictor.predict_step(minibatch, (), nothing, nothing))

    np.testing.assert_array_equal(np.concatenate(found), expected)
    assert predictor.metric_results(predictor.metric_states()) == result
    assert is_checked


def test_statistics_are_features_as_of_the_newest_period(spec_of, as_records, tmp_path):
    shown = RowStatistics(("show",), decay=0.5, decay_steps=1, as_features=True)
    arrays = {
        "dense/bias": np.zeros(2, np.float32),
        "state/seen": np.zeros(1, np.float32),
        "table/words/keys": np.array([1, 2]),
        "table/words/rows": np.zeros((2, 4), np.float32),
        "table/words_statistics/keys": np.array([1, 2]),
        "table/words_statistics/rows": np.float32([[8, 3], [8, 5]]),  # a sum, and its period
    }
    np.savez(tmp_path / "model.npz", **arrays)
    predictor = load(spec_of, tmp_path, statistics=shown)
    (minibatch,) = predictor.minibatches(as_records([("1 2", 0)]), "evaluation", 4, 0)
    nothing = np.zeros(0, np.float32)
    assert predictor.predict_step(minibatch, (), nothing, nothing).tolist() == [8 / 4 + 8]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"name": "others"}, "differ: table/others/keys, .* in one of them alone"),
        ({"dim": 3}, r"table/words/rows has the shape \(6, 4\), expected \(6, 3\)"),
        ({"dense": 5}, r"dense/bias has the shape \(2,\), expected \(5,\)"),
    ],
)
def test_an_export_of_another_model_is_refused(exported, spec_of, tmp_path, words, says):
    exported()
    with pytest.raises(ModelError, match=f"--saved_model={tmp_path}.*{says}"):
        load(spec_of, tmp_path, **words)


def test_a_torn_export_is_named(exported, spec_of, tmp_path):
    exported()
    whole = (tmp_path / "model.npz").read_bytes()
    (tmp_path / "model.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=f"{tmp_path}: model.npz cannot be read"):
        load(spec_of, tmp_path)


def test_no_framework_is_imported(exported, tmp_path):
    exported()
    script = (
        "import sys, pathlib; from elasticdl.backends.exported import backend_of_export\n"
        "print(backend_of_export(pathlib.Path(sys.argv[1])).name)\n"
        "import elasticdl.backends.numpy_predictor\n"
        "assert not {'tensorflow', 'keras', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "NumPy", done.stderr
