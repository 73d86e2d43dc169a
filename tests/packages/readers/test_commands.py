"""Commands that read what this package reads, and what is checked of it before a job starts."""

import sqlite3
from pathlib import Path

import pytest

from elasticdl._core import RecordReader
from elasticdl.cli.flags import build_config
from elasticdl.cli.main import run_command
from elasticdl.cli.preflight import check
from elasticdl.data.example import decode_example
from elasticdl.errors import DataError

MODEL = "def forward(): ...\ndef optimizer(lr=0.1): ...\ndef feed(records, mode, metadata): ...\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model file and a line of text to train on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data.csv").write_text("1,2\n")
    return tmp_path


@pytest.fixture
def run(place, capsys):
    def run(*words):
        code = run_command(["data", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def config(**words):
    return build_config("train", {"model_zoo": ".", "model_def": "model.forward", **words})


def test_images_in_a_folder_for_each_class_are_better_mixed(place):
    for name in ("cat", "dog"):
        (place / "images" / name).mkdir(parents=True)
        (place / "images" / name / "1.png").write_bytes(b"")
    (note,) = check(config(training_data="images"))
    assert "--shuffle=records mixes the classes" in note
    assert check(config(training_data="images", shuffle="records")) == []
    assert check(config(training_data="data.csv")) == []


def test_folders_of_images_have_the_same_classes(place):
    for path in ("t/cat", "t/dog", "v/dog"):
        (place / path).mkdir(parents=True)
        (place / path / "a.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"--validation_data: .*dog.*--training_data.*cat, dog"):
        check(config(training_data="t", validation_data="v"))
    (place / "v" / "cat").mkdir()
    check(config(training_data="t", validation_data="v"))


def test_rows_of_a_table_become_examples_of_one_type_in_every_chunk(run):
    pytest.importorskip("sqlalchemy")
    with sqlite3.connect("in.db") as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INT, x REAL, s TEXT)")
        rows = [(n, None if n == 9999 else n, None if n == 3 else n / 2, "a") for n in range(10000)]
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    place = ("sqlite:///in.db", "--data_reader_params=table=t")
    assert run("convert", place[0], "out.rio", "--as=example", place[1])[0] == 0
    found = [decode_example(record) for record in RecordReader("out.rio").read(0, 10000)]
    assert found[3] == {"id": [3], "n": [3], "s": [b"a"]}
    assert found[9999] == {"id": [9999], "s": [b"a"], "x": [4999.5]}
    assert {type(value) for one in found for value in one.get("n", [])} == {int}
    code, out, _ = run("inspect", *place)
    assert code == 0
    assert "id int64, n float64, x float64, s object" in out
    assert "id=0  n=0.0  x=0.0  s=a" in out


def test_libsvm_becomes_examples(run):
    Path("in.svm").write_text("1 3:0.5 10:2\n0\n")
    assert run("convert", "in.svm", "out.rio", "--as=example")[0] == 0
    assert [decode_example(record) for record in RecordReader("out.rio").read(0, 2)] == [
        {"ids": [3, 10], "label": [1.0], "values": [0.5, 2.0]},
        {"label": [0.0]},
    ]


def test_images_are_inspected(run):
    for name in ("cat", "dog"):
        Path("images", name).mkdir(parents=True)
        Path("images", name, "1.png").write_bytes(b"an image")
    code, out, _ = run("inspect", "images", "--verify", "--records=1")
    assert code == 0
    assert ("images" in out, "label=0  path=cat/1.png" in out) == (True, True)
    Path("images", "dog", "1.png").write_bytes(b"")
    code, _, err = run("inspect", "images", "--verify")
    assert (code, "dog/1.png: is empty" in err) == (1, True)
