import json

import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


def generate(folder, load_zoo):
    prepare = load_zoo("census.prepare")
    prepare.generate(folder / "train.csv", 6000, seed=1)
    prepare.generate(folder / "test.csv", 2000, seed=2)


def train(census, *flags):
    return census.run(
        "train",
        "--training_data=train.csv",
        "--validation_data=test.csv",
        "--data_reader_params=skip_header=true",
        "--minibatch_size=64",
        "--num_epochs=2",
        *flags,
    )


def test_learns(commands, strategy, load_zoo):
    census = commands("census.model.forward")
    generate(census.folder, load_zoo)

    summary = train(census, *strategy)

    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [6000, 6000]
    assert summary["metrics"]["auc"] > 0.75


def test_statistics_give_the_boundaries(commands, load_zoo):
    census = commands("census.model.forward")
    generate(census.folder, load_zoo)
    numbers = load_zoo("census.model").NUMBERS
    column = {"kind": "int64", "count": 1, "missing": 0, "num_values": 1, "distinct": {"count": 1}}
    statistics = {
        "source": {"path": "train.csv", "num_files": 1},
        "num_records": 6000,
        "columns": {name: {**column, "boundaries": [1, 2]} for name in numbers},
    }
    (census.folder / "statistics.json").write_text(json.dumps(statistics))

    summary = train(census, "--statistics=statistics.json")

    assert summary["metrics"]["auc"] > 0.7
    del statistics["columns"]["age"]
    (census.folder / "statistics.json").write_text(json.dumps(statistics))
    with pytest.raises(AssertionError, match="have no column 'age'"):
        train(census, "--statistics=statistics.json")


def test_every_fifth_record_is_for_testing_and_the_weight_is_left_out(tmp_path, load_zoo):
    prepare = load_zoo("census.prepare")
    fields = [f"f{number}" for number in range(42)]
    lines = [", ".join([str(k), *fields[1:24], "1700.09", *fields[25:]]) for k in range(11)]
    (tmp_path / "data").write_text("\n".join(lines) + "\n")

    assert prepare.convert(tmp_path / "data", tmp_path) == (8, 3)

    header, *rows = (tmp_path / "test.csv").read_text().splitlines()
    assert len(header.split(",")) == 41
    assert [row.split(",")[0] for row in rows] == ["0", "5", "10"]
    assert "1700.09" not in rows[0]
    (tmp_path / "data").write_text("1, 2\n")
    with pytest.raises(SystemExit, match="data, line 1: expected 42 fields, found 2"):
        prepare.convert(tmp_path / "data", tmp_path)
