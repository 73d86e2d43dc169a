import gzip
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


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


@pytest.mark.timeout(1200)  # five trainings, each with TensorFlow to load
def test_a_file_sorted_by_its_label_trains_like_a_shuffled_one(commands, load_zoo):
    adult = commands("adult.model.forward")
    prepare = load_zoo("adult.prepare")
    prepare.generate(adult.folder / "train.csv", 6000, seed=1)
    prepare.generate(adult.folder / "test.csv", 2000, seed=2)
    header, *lines = (adult.folder / "train.csv").read_text().splitlines(keepends=True)
    lines.sort(key=lambda line: line.endswith(">50K\n"))
    (adult.folder / "sorted.csv").write_text("".join([header, *lines]))
    test = str(adult.folder / "test.csv")

    def auc(data, *flags):
        common = ["--data_reader_params=skip_header=true", "--minibatch_size=64", "--num_epochs=2"]
        data_flags = [f"--training_data={data}", f"--validation_data={test}"]
        return adult.run("train", *data_flags, *common, *flags)["metrics"]["auc"]

    def fit(seed):
        script = Path(__file__).parents[2] / "benchmarks" / "peers" / "zoo_fit.py"
        flags = {"model_def": "adult.model.forward", "train": adult.folder / "train.csv"}
        flags |= {"test": test, "minibatch_size": 64, "num_epochs": 2, "seed": seed}
        flags["data_reader_params"] = "skip_header=true"
        words = [sys.executable, str(script), *(f"--{k}={v}" for k, v in flags.items())]
        done = subprocess.run(words, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["auc"]

    shuffled = [fit(seed) for seed in range(3)]
    allowed = max(0.01, 2 * statistics.stdev(shuffled))
    assert auc("sorted.csv", "--shuffle=records") > statistics.fmean(shuffled) - allowed
    assert auc("sorted.csv") < statistics.fmean(shuffled) - allowed  # tasks alone do not do


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
