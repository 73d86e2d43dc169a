"""Models and data that are given in Python, as files that workers can read."""

import math
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elasticdl.cli.flags import build_config
from elasticdl.config import ModelSection
from elasticdl.data.parquet import ParquetReader
from elasticdl.errors import ConfigError, DataError, JobFailedError, LaunchError, ModelError
from elasticdl.job.status import EpochScores, no_status
from elasticdl.launchers.process.folder import held
from elasticdl.model_spec import load_model_spec
from elasticdl.packages.notebooks import inputs, models, notebook, tables
from elasticdl.packages.notebooks.job import Job, history_of, settings_of_prediction, train
from elasticdl.packages.notebooks.predictor import imports_of


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """A module of the user's."""
    path = tmp_path / "cells.py"
    path.write_text("def forward():\n    return 3\n")
    module = types.ModuleType("cells")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "cells", module)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


def loaded(place):
    section = ModelSection(model_zoo=place.model_zoo, model_def=place.model_def)
    with imports_of(place.model_zoo):
        return load_model_spec(section)


def test_functions_and_values_of_two_jobs_are_those_of_each(cells, tmp_path):
    given = {"custom_model": cells.forward, "feed": len, "loss": "mse", "metrics": ["mae"]}
    first = models.place_of({**given, "optimizer": "adam"}, tmp_path / "first")
    second = models.place_of({**given, "custom_model": lambda: 4}, tmp_path / "second")
    assert first == (tmp_path / "first", "model.custom_model")
    assert ((tmp_path / "first").stat().st_mode & 0o777) == 0o700
    specs = [loaded(place) for place in (first, second, first)]
    assert [spec.model() for spec in specs] == [3, 4, 3]
    assert (specs[0].loss, specs[0].eval_metrics_fn(), specs[0].optimizer()) == (
        "mse",
        ["mae"],
        "adam",
    )
    assert "model" not in sys.modules


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({"forward": 3}, "expected a function or a class as 'forward', found an object of int"),
        ({"feed": len}, "expected a function 'forward' that makes the model, found 'feed'"),
        ({"forward": len, "a b": len}, "expected the name of a function, found 'a b'"),
        (
            {"forward": len, "loss": lambda labels, predictions: 0.0, "loss_weights": [1, 2]},
            "loss is a function here: expected it to add its weighted losses",
        ),
    ],
)
def test_what_makes_no_model_is_refused(functions, words, tmp_path):
    with pytest.raises(ModelError, match=words):
        models.place_of(functions, tmp_path / "inputs")


def test_a_made_model_is_no_function_that_makes_one(tmp_path):
    made = type("Model", (), {"trainable_variables": (), "__call__": len})()
    with pytest.raises(ModelError, match="found an object of Model; write def forward"):
        models.place_of({"forward": made}, tmp_path / "inputs")


def test_functions_may_stand_beside_those_by_name_and_not_beside_a_file():
    model, settings = {"forward": len, "mine": len}, {"loss": "mse", "feed": "mine", "workers": 2}
    rest = {"feed": "mine", "workers": 2}
    assert models.with_settings(model, settings) == ({**model, "loss": "mse"}, rest)
    assert models.with_settings("model.py", {"loss": "mine"}) == ("model.py", {"loss": "mine"})
    with pytest.raises(ConfigError, match="loss: expected the name of a function in the model fi"):
        models.with_settings("model.py", {"loss": len})


@pytest.mark.parametrize(
    ("optimizer", "rate", "expected"),
    [
        (lambda lr=0.1: ("sgd", lr), 0.5, ("sgd", 0.5)),
        (lambda learning_rate=0.1: ("adam", learning_rate), 0.5, ("adam", 0.5)),
        ("adam", 0.5, {"class_name": "adam", "config": {"learning_rate": 0.5}}),
        (types.SimpleNamespace(learning_rate=0.1), None, types.SimpleNamespace(learning_rate=0.1)),
    ],
)
def test_an_optimizer_is_what_compile_takes(optimizer, rate, expected, cells, tmp_path):
    functions = {"forward": cells.forward, "feed": len, "optimizer": optimizer}
    place = models.place_of(functions, tmp_path / "inputs")
    section = ModelSection(model_zoo=place.model_zoo, model_def=place.model_def)
    with imports_of(place.model_zoo):
        assert load_model_spec(section, rate).optimizer() == expected


def test_a_file_a_module_and_a_name_are_taken_as_they_are(cells, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def custom_model():\n    pass\n")
    assert models.place_of(str(path), tmp_path) == (tmp_path, "mine.custom_model")
    assert models.place_of(cells, tmp_path) == (tmp_path, "cells.forward")
    assert models.place_of("mnist.model.forward", tmp_path) == (None, "mnist.model.forward")
    path.write_text("def model():\n    pass\n")
    with pytest.raises(ModelError, match="expected a function forward"):
        models.place_of(path, tmp_path)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_table_is_written_as_its_columns_and_no_index(library, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    lib = pytest.importorskip(library)
    columns = {"user": [3, 1, 2], "word": ["a", "b", "a"]}
    table = lib.table(columns) if library == "pyarrow" else lib.DataFrame(columns)
    if library == "pandas":
        table.index = ["x", "y", "z"]
        table["word"] = table["word"].astype("category")
    place = tables.place_of(table, tmp_path / "inputs", "training_data")
    written = parquet.read_table(place)
    assert written.to_pydict() == columns
    assert [str(field.type) for field in written.schema] == ["int64", "string"]


def test_a_table_of_a_class_of_the_program_is_written_without_its_index_too(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = type("Frame", (pandas.DataFrame,), {})({"id": [1, 2]}, index=[5, 7])
    reader = ParquetReader([tables.place_of(frame, tmp_path, "training_data")])
    (records,) = [records for shard in reader.shards() for records in reader.read(shard)]
    assert list(records.columns) == ["id"]


def test_durations_and_vectors_of_a_table_are_read_as_such(tmp_path):
    pa = pytest.importorskip("pyarrow")
    words = pa.array(["b", "a"], pa.string_view())
    columns = {
        "wait": pa.array([1, None], pa.duration("ms")),
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "word": pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.uint32()), words),
        "uuid": pa.array([b"0123456789abcdef", None], pa.uuid()),
    }
    reader = ParquetReader([tables.place_of(pa.table(columns), tmp_path, "training_data")])
    (records,) = [records for shard in reader.shards() for records in reader.read(shard)]
    assert records.columns["wait"].dtype == np.dtype("timedelta64[ms]")
    np.testing.assert_array_equal(records.columns["vector"], [[1, 2], [3, 4]])
    assert records.columns["word"].tolist() == ["a", "b"]
    assert records.columns["uuid"].tolist() == ["30313233-3435-3637-3839-616263646566", ""]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda pd, pl: pd.DataFrame({"m": pd.period_range("2024-01", periods=2)}), "'m' is ext"),
        (lambda pd, pl: pd.DataFrame({"m": [1, "a"]}), "column m"),
        (lambda pd, pl: pd.DataFrame([[1, 2]], columns=["m", "m"]), r"Duplicate .*'m'"),
        (lambda pd, pl: pl.DataFrame({"m": pl.Series([object()], dtype=pl.Object)}), "'m' has obj"),
    ],
    ids=["a number of months", "two kinds", "two of one name", "addresses"],
)
def test_a_column_that_a_file_would_have_as_something_else_is_refused(make, words, tmp_path):
    table = make(pytest.importorskip("pandas"), pytest.importorskip("polars"))
    with pytest.raises(DataError, match=rf"training_data: the table .*{words}"):
        tables.place_of(table, tmp_path, "training_data")


def test_data_that_is_no_table_is_refused(tmp_path):
    assert tables.place_of("s3://bucket/data", tmp_path, "training_data") == "s3://bucket/data"
    with pytest.raises(DataError, match=r"training_data: .* found numpy\.ndarray"):
        tables.place_of(np.zeros(3), tmp_path, "training_data")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_epoch": 3}, "did you mean --num_epochs"),
        ({"num_workers": 3}, "expected the argument workers"),
        ({"distribution_strategy": "Local"}, "distribution_strategy=Local is one process"),
    ],
)
def test_settings_are_the_flags_of_the_command(cells, tmp_path, monkeypatch, settings, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(ConfigError, match=words):
        train({"forward": cells.forward}, "data.csv", **settings)


def test_the_picture_of_a_notebook_has_what_the_data_is_warned_of():
    warned = ("training: 9 records", "warning: all <9> labels are 1")
    shown = notebook.picture(replace(no_status("job", 0), data_check=warned, message="ended"))
    assert shown.endswith("<div>warning: all &lt;9&gt; labels are 1</div><div>ended</div></div>")
    assert "9 records" not in shown


def test_how_files_are_read_is_not_said_of_a_table_that_is_predicted():
    words = {"data_reader_params": "skip_header=true", "minibatch_size": "64", "num_epochs": "3"}
    of_lines = {"data_reader_params": "skip_header=true", "minibatch_size": "64"}
    assert settings_of_prediction(words, "new.csv", None) == of_lines
    assert settings_of_prediction(words, np.zeros(3), None) == {"minibatch_size": "64"}
    assert settings_of_prediction({}, "new.csv", "delimiter=tab") == {
        "data_reader_params": "delimiter=tab"
    }


def test_predictions_are_made_with_the_model_and_the_reader_of_the_training():
    words = {"custom_data_reader": "of_mine", "negative_sampling_rate": "0.1", "feed": "give"}
    assert settings_of_prediction({**words, "loss": "mine"}, "new.csv", None) == words


class Finished:
    """A job that has finished."""

    name = "job"

    def end(self, timeout_seconds):
        return replace(no_status("job", 0), status="finished")


def finished(output, **more):
    words = {"model_zoo": "zoo", "model_def": "m.forward", "training_data": "data", **more}
    return Job(build_config("train", {**words, "output": output}), words, Finished())


def test_a_program_may_change_its_folder_between_training_and_predicting(tmp_path, monkeypatch):
    class Model:
        def predict(self, config, output):
            self.config = config
            output.mkdir(parents=True)
            np.savez(output / "predictions-00000000.npz", output=np.ones(2))

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    job = finished("jobs/model", statistics="statistics.json")
    model = job._model = Model()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert job.predict(str(tmp_path / "data")).tolist() == [1.0, 1.0]

    assert job.output == model.config.checkpoint.saved_model == tmp_path / "jobs" / "model"
    assert model.config.model.model_zoo == tmp_path / "zoo"
    assert str(model.config.model.statistics) == str(tmp_path / "statistics.json")


def test_predictions_that_the_model_file_takes_itself_are_not_returned_as_none(monkeypatch):
    job = finished("model")
    monkeypatch.setattr(job, "_loaded", lambda output: None)  # another framework is loaded
    monkeypatch.setattr("elasticdl.packages.notebooks.job._predict_by_job", lambda config: None)
    with pytest.raises(JobFailedError, match="has a PredictionOutputsProcessor"):
        job.predict("data")


def test_a_model_behind_a_url_is_named_as_it_is():
    job = finished("s3://bucket/model")
    assert str(job.output) == "s3://bucket/model"
    with pytest.raises(ConfigError, match="in a folder, found it at s3://bucket/model"):
        job.predict("data")


def test_the_history_has_a_value_for_each_epoch():
    epochs = [EpochScores(0.5, {"auc": 0.6}, {"auc": 0.4}), EpochScores(0.25, {}, {"auc": 0.3})]
    history = history_of(epochs)
    assert (list(history), history["loss"]) == (["loss", "auc", "val_auc"], [0.5, 0.25])
    assert history["val_auc"] == [0.4, 0.3]
    assert (history["auc"][0], math.isnan(history["auc"][1])) == (0.6, True)


def test_a_job_that_is_refused_keeps_its_inputs(tmp_path):
    job_dir, given = tmp_path / "job", tmp_path / "job-inputs"

    def write(text, error=None):
        with inputs.replaced(job_dir) as folder:
            folder.mkdir()
            (folder / "model.py").write_text(text)
            if error is not None:
                raise error

    with pytest.raises(ConfigError):
        write("wrong", ConfigError("of a new job"))
    assert not given.exists()
    write("first")
    job_dir.mkdir()
    with held(job_dir), pytest.raises(LaunchError, match="is running"):
        write("of another program")
    with pytest.raises(ConfigError):
        write("wrong", ConfigError("with other settings"))
    assert (given / "model.py").read_text() == "first"
    write("second")
    assert (given / "model.py").read_text() == "second"
    assert sorted(tmp_path.iterdir()) == [job_dir, given]


def test_of_two_programs_that_start_a_job_at_once_one_gives_it_its_inputs(tmp_path):
    with inputs.replaced(tmp_path / "job") as folder:
        folder.mkdir()
        with pytest.raises(LaunchError, match="is running"), inputs.replaced(tmp_path / "job"):
            pass
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == [folder]


def test_a_job_may_lie_where_nothing_can_be_written_beside_it():
    with inputs.replaced(Path("/proc/job")) as folder:
        assert not folder.exists()
