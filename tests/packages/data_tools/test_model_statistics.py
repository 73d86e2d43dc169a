"""What a model file is told of its data, and what without any statistics."""

import json

import pytest

from elasticdl.config import ModelSection
from elasticdl.errors import ConfigError
from elasticdl.model_spec import load_model_spec
from elasticdl.preprocessing import statistics

FILE = {
    "format": "elasticdl-statistics",
    "version": 1,
    "source": {"path": "train", "num_files": 1},
    "num_records": 10,
    "columns": {
        "age": {
            "kind": "int64", "count": 10, "missing": 0, "num_values": 10,
            "min": 17, "max": 90, "mean": 38.5, "stddev": 13.6, "boundaries": [25, 40],
            "distinct": {"count": 4},
            "vocabulary": {"values": [30, 17, 90], "counts": [6, 3, 1]},
        },
        "city": {
            "kind": "text", "count": 9, "missing": 1, "num_values": 9,
            "distinct": {"count": 3},
            "vocabulary": {"values": ["b", "a"], "counts": [5, 4], "threshold": 3},
        },
        "empty": {
            "kind": "float", "count": 0, "missing": 10, "num_values": 0, "distinct": {"count": 0},
        },
    },
}  # fmt: skip


@pytest.fixture
def analysed(tmp_path, monkeypatch):
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps(FILE))
    monkeypatch.setenv("ELASTICDL_STATISTICS", str(path))
    return path


def test_a_model_file_gets_what_was_found(analysed):
    assert statistics.get_min("age", 0) == 17
    assert statistics.get_max("age", 0) == 90
    assert statistics.get_avg("age", 0) == 38.5
    assert statistics.get_stddev("age", 1) == 13.6
    assert statistics.get_bucket_boundaries("age", []) == [25, 40]
    assert statistics.get_distinct_count("city", 0) == 3
    assert statistics.get_vocabulary("city", []) == ["b", "a"]
    assert statistics.get_vocabulary("age", [], min_count=3) == [30, 17]
    assert statistics.get_vocabulary("age", [], max_size=1) == [30]


def test_without_statistics_defaults_hold(monkeypatch):
    monkeypatch.delenv("ELASTICDL_STATISTICS", raising=False)

    assert statistics.get_avg("age", 40) == 40
    assert statistics.get_bucket_boundaries("age", (1, 2)) == [1, 2]
    assert statistics.get_distinct_count("city", 7) == 7
    assert statistics.get_vocabulary("city", ["x"]) == ["x"]


def test_a_column_without_a_value_has_the_default(analysed):
    assert statistics.get_avg("empty", 3) == 3
    assert statistics.get_bucket_boundaries("empty", [1]) == []


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: statistics.get_min("ages", 0), "no column 'ages'; they have age, city, empty"),
        (lambda: statistics.get_avg("city", 0), "'city' have no mean, because its values are text"),
        (lambda: statistics.get_bucket_boundaries("city", []), "have no boundaries"),
        (lambda: statistics.get_vocabulary("empty", []), "have no vocabulary, .* are float"),
        (lambda: statistics.get_vocabulary("city", [], min_count=2), "fewer than 3 times"),
    ],
)
def test_what_the_file_does_not_have_is_said(analysed, ask, words):
    with pytest.raises(ConfigError, match=words):
        ask()


def test_a_model_file_reads_the_file_of_the_flag(analysed, tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTICDL_STATISTICS", "somewhere/else")  # and put back after the test
    (tmp_path / "ages.py").write_text(
        "from elasticdl.preprocessing import statistics\n"
        "MEAN = statistics.get_avg('age', 0)\n"
        "def forward(): return MEAN\n"
        "def feed(dataset, mode, metadata): return dataset\n"
    )

    section = ModelSection(model_zoo=tmp_path, model_def="ages.forward", statistics=analysed)

    assert load_model_spec(section).model() == 38.5
