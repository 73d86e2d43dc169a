import json

import pytest

from elasticdl.errors import ConfigError, DataError
from elasticdl.packages.data_tools.statistics import Statistics, read_statistics

WRITTEN = {
    "format": "elasticdl-statistics",
    "version": 1,
    "source": {"path": "train", "num_files": 2},
    "num_records": 10,
    "columns": {
        "age": {
            "kind": "int64",
            "count": 9,
            "missing": 1,
            "num_values": 9,
            "min": 1,
            "max": 90,
            "mean": 30.5,
            "stddev": 7.25,
            "quantiles": [1, 30, 90],
            "boundaries": [20, 40],
            "distinct": {"count": 3},
        },
        "city": {
            "kind": "text",
            "count": 10,
            "missing": 0,
            "num_values": 10,
            "distinct": {"count": 2},
            "vocabulary": {"values": ["Bern", "Zürich"], "counts": [6, 4]},
        },
    },
}


def write(path, document):
    path.write_text(json.dumps(document))
    return path


def test_a_file_reads_as_what_it_says(tmp_path):
    statistics = read_statistics(write(tmp_path / "s.json", WRITTEN))

    assert statistics.num_records == 10
    assert statistics.column("age").boundaries == [20, 40]
    assert isinstance(statistics.column("age").min, int)
    assert statistics.column("city").vocabulary.values == ["Bern", "Zürich"]
    assert Statistics.model_validate_json(statistics.model_dump_json()) == statistics


def test_fields_of_later_versions_are_left_out(tmp_path):
    document = WRITTEN | {"made_by": "a later elasticdl"}
    assert read_statistics(write(tmp_path / "s.json", document)).num_records == 10


def test_an_unknown_column_is_named_with_those_that_there_are(tmp_path):
    statistics = read_statistics(write(tmp_path / "s.json", WRITTEN))
    with pytest.raises(ConfigError, match=r"no column 'town'; they have age, city"):
        statistics.column("town")


def test_a_missing_file_says_how_it_is_written(tmp_path):
    with pytest.raises(DataError, match=r"s\.json: cannot be read.*data analyze DATA --output="):
        read_statistics(tmp_path / "s.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, r"version: Input should be 1"),
        ({"format": "other"}, r"format: Input should be 'elasticdl-statistics'"),
        ({"num_records": -1}, r"num_records: .*greater than or equal to 0"),
    ],
)
def test_another_file_is_refused_with_the_place(tmp_path, change, said):
    with pytest.raises(DataError, match=said):
        read_statistics(write(tmp_path / "s.json", WRITTEN | change))


def test_values_without_counts_are_refused(tmp_path):
    document = json.loads(json.dumps(WRITTEN))
    document["columns"]["city"]["vocabulary"]["counts"] = [1]
    with pytest.raises(DataError, match=r"vocabulary.*2 values have 1 counts"):
        read_statistics(write(tmp_path / "s.json", document))
