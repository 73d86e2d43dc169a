"""Models and data that are given in Python, as files that workers can read."""

import importlib.util
import math
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from elasticdl.cli.interactive import model_source, notebook, tables
from elasticdl.cli.interactive.job import settings_of_prediction, train
from elasticdl.data.parquet import ParquetReader
from elasticdl.errors import ConfigError, DataError, ModelError
from elasticdl.job import no_status

CELLS = """
import math as m
from collections import OrderedDict

RATE, NAMES = 0.5, ["a", "b"]
TABLE = object()


def helper(x):
    return m.sqrt(x) + RATE


def forward(rate=RATE):
    return OrderedDict((name, helper(4)) for name in NAMES)


def lookup():
    return TABLE


def maker(count):
    def inner():
        return count
    return inner


inner = maker(3)


def round(x):
    return x + 1


def marked():
    return round(2.4)


marked.is_batched = True


SIZE = 3


def older(size=SIZE):
    return size


class Net:
    width = 4


def wide():
    return Net.width


square = lambda x: x * x  # noqa: E731


def squared():
    return square(3)


SIZE, Net.width = 4, 8
"""


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """A module as a notebook has it: what its functions use is around them."""
    path = tmp_path / "cells.py"
    path.write_text(CELLS)
    module = types.ModuleType("cells")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "cells", module)
    exec(compile(CELLS, str(path), "exec"), vars(module))
    return module


def imported(path):
    spec = importlib.util.spec_from_file_location("written", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_are_written_with_the_modules_values_and_functions_that_they_use(cells, tmp_path):
    place = model_source.place_of({"custom_model": cells.forward}, tmp_path / "inputs")
    assert place == (tmp_path / "inputs", "model.forward")
    written = imported(tmp_path / "inputs" / "model.py")
    expected = {"a": math.sqrt(4) + 0.5, "b": math.sqrt(4) + 0.5}
    assert dict(written.custom_model()) == expected == dict(cells.forward())


def test_what_has_the_name_of_a_builtin_and_the_marks_of_a_function_are_written(cells, tmp_path):
    model_source.place_of({"forward": cells.forward, "feed": cells.marked}, tmp_path)
    written = imported(tmp_path / "model.py")
    assert (written.feed(), written.feed.is_batched) == (3.4, True)


def test_what_cannot_be_written_is_refused_by_its_name(cells, tmp_path):
    for name, words in [
        ("older", "older has 3 as its default of size, and SIZE is 4 now"),
        ("wide", "Net.width was set after the class was defined"),
        ("squared", "squared uses a lambda"),
        ("lookup", "lookup uses TABLE, which is an object"),
        ("inner", "inner takes count from the function around it"),
    ]:
        functions = {"forward": cells.forward, name: getattr(cells, name)}
        with pytest.raises(ModelError, match=words):
            model_source.place_of(functions, tmp_path / "inputs")
    with pytest.raises(ModelError, match="expected a function or a class as 'forward'"):
        model_source.source_of({"forward": 3})


def test_a_file_a_module_and_a_name_are_taken_as_they_are(cells, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def custom_model():\n    pass\n")
    assert model_source.place_of(str(path), tmp_path) == (tmp_path, "mine.custom_model")
    assert model_source.place_of(cells, tmp_path) == (tmp_path, "cells.forward")
    assert model_source.place_of("mnist.model.forward", tmp_path) == (None, "mnist.model.forward")
    path.write_text("def model():\n    pass\n")
    with pytest.raises(ModelError, match="expected a function forward"):
        model_source.place_of(path, tmp_path)


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


def test_durations_and_vectors_of_a_table_are_read_as_such(tmp_path):
    pa = pytest.importorskip("pyarrow")
    words = pa.array(["b", "a"], pa.string_view())
    columns = {
        "wait": pa.array([1, None], pa.duration("ms")),
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "word": pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.uint32()), words),
    }
    reader = ParquetReader([tables.place_of(pa.table(columns), tmp_path, "training_data")])
    (records,) = [records for shard in reader.shards() for records in reader.read(shard)]
    assert records.columns["wait"].dtype == np.dtype("timedelta64[ms]")
    np.testing.assert_array_equal(records.columns["vector"], [[1, 2], [3, 4]])
    assert records.columns["word"].tolist() == ["a", "b"]


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
