import gzip

import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]


def test_learns(commands, strategy, load_zoo):
    adult = commands("adult.model.forward")
    prepare = load_zoo("adult.prepare")
    prepare.generate(adult.folder / "train.csv", 6000, seed=1)
    prepare.generate(adult.folder / "test.csv", 2000, seed=2)

    summary = adult.run(
        "train",
        "--training_data=train.csv",
        "--validation_data=test.csv",
        "--data_reader_params=skip_header=true",
        "--minibatch_size=64",
        "--num_epochs=2",
        *strategy,
    )

    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [6000, 6000]
    assert summary["metrics"]["auc"] > 0.75


def test_original_files_are_cleaned(tmp_path, load_zoo):
    prepare = load_zoo("adult.prepare")
    line = "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Not-in-family, White, Male, "
    text = f"|1x3 Cross validator\n{line}2174, 0, 40, United-States, <=50K.\n\n"
    (tmp_path / "adult.test.gz").write_bytes(gzip.compress(text.encode()))

    assert prepare.convert(tmp_path / "adult.test.gz", tmp_path / "out" / "test.csv") == 1

    header, record = (tmp_path / "out" / "test.csv").read_text().splitlines()
    assert header.startswith("age,workclass,")
    assert record == (
        "39,State-gov,77516,Bachelors,13,Never-married,,Not-in-family,White,Male,2174,0,40,"
        "United-States,<=50K"
    )
    (tmp_path / "bad").write_text("1, 2\n")
    with pytest.raises(SystemExit, match="bad, line 1: expected 15 fields, found 2"):
        prepare.convert(tmp_path / "bad", tmp_path / "out.csv")
