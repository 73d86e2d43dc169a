"""Jobs from functions of a program: they have the values of now, and answer in the program."""

import numpy as np
import pytest

import elasticdl
from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable, Mode, batched

pd = pytest.importorskip("pandas")

FACTOR = 3.0


class Scale:
    factor = FACTOR


FACTOR = 7.0  # of another experiment


@pytest.fixture
def functions():
    """A model of one number for each of eight users; what a notebook has computed is around it."""
    frame = pd.DataFrame({"user": np.arange(800) % 8, "y": np.arange(800) % 8 / 2.0})
    frame["at"] = pd.Timestamp("2026-01-01").as_unit("us")
    mean = frame.y.mean()
    y = frame["y"]

    def forward():
        def predict(dense, rows, features):
            return rows[0][:, 0] * Scale.factor + mean

        def gradients(dense, rows, features, labels):
            error = predict(dense, rows, features) - labels
            slope = (error * Scale.factor / len(labels))[:, None]
            return float(np.mean(error**2)), [slope.astype(np.float32)], {}, {}

        return ArrayModel([ArrayTable("user", 1)], lambda ids: [ids], predict, gradients)

    @batched
    def feed(records, mode, metadata):
        ids = records["user"]
        return ids if mode == Mode.PREDICTION else (ids, records["y"].astype(np.float32))

    def error(y, predicted):
        return np.abs(y - predicted)

    return frame, {
        "forward": forward,
        "feed": feed,
        "optimizer": ArrayOptimizer(0.5),
        "metrics": {"error": error, "rows": lambda labels, predicted: labels * 0 + len(y)},
    }


@pytest.mark.timeout(400)
def test_values_history_and_predictions_are_those_of_the_program(functions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame, model = functions
    job = elasticdl.train(
        model, frame, validation_data=frame, num_epochs=3, minibatch_size=80, max_staleness=0
    )
    Scale.factor = 100.0  # as if the cell had been run again
    try:
        job.wait(show=False)
    finally:
        Scale.factor = 3.0
    history = job.history
    assert set(history) == {"loss", "val_loss", "val_error", "val_rows"}
    assert [len(values) for values in history.values()] == [3] * 4
    assert history["val_rows"] == [800.0] * 3
    assert history["val_error"][-1] == job.metrics["error"]
    whole = job.predict(frame)
    assert np.mean(np.abs(whole - frame.y)) == pytest.approx(history["val_error"][-1], rel=1e-5)
    monkeypatch.setattr("elasticdl.packages.notebooks.job._predict_by_job", None)  # not by a job
    np.testing.assert_array_equal(job.predict(frame.head(5)), whole[:5])
    with pytest.warns(UserWarning, match=r"'at' is datetime64\[us\] in .* and datetime64\[ns\]"):
        job.predict(frame.astype({"at": "datetime64[ns]"}))
