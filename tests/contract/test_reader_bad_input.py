"""What every reader says of files that are damaged, empty, or change under it: an error that names
the file, whichever process reads."""

import os
from pathlib import Path

import pytest

from elasticdl.cli.main import run_command
from elasticdl.data.open import open_reader
from elasticdl.errors import DataError
from tests.contract.test_reader_contract import FILES, line

COUNT = 20_000
LINES = ("csv", "csv-quoted", "text", "libsvm")  # what is left of a file that was cut is lines, too


@pytest.fixture(params=FILES)
def kind(request):
    return request.param


@pytest.fixture
def file(kind, tmp_path, monkeypatch):
    """A file of a format with `COUNT` records."""
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path / "_cache"))
    suffix, write, _ = FILES[kind]
    path = tmp_path / f"data{suffix}"
    write(path, [line(0, number) for number in range(COUNT)])
    return path


def opened(kind, file):
    return open_reader(str(file), FILES[kind][2])


def read_all(kind, file, shards=None):
    reader = opened(kind, file)
    for shard in shards or reader.shards():
        for _ in reader.read(shard):
            pass


def answer(question):
    """What is answered, or what a `DataError` says."""
    try:
        return question(), ""
    except DataError as error:
        return None, str(error)


def cut(file, part):
    os.truncate(file, int(file.stat().st_size * part))


@pytest.mark.parametrize("part", [0.99, 0.5, 0.01])
def test_a_file_that_was_cut_is_told(kind, file, part):
    if kind in LINES:
        pytest.skip("its whole lines are records: nothing tells that there were more")
    cut(file, part)
    with pytest.raises(DataError, match=file.name):
        read_all(kind, file)


def test_an_empty_file_is_told_or_has_no_records(kind, file):
    os.truncate(file, 0)
    shards, error = answer(lambda: opened(kind, file).shards())
    assert shards == [] or file.name in error


def test_a_file_that_shrank_since_it_was_counted_is_told_by_another_process(kind, file):
    """A worker opens anew what the master has counted."""
    shards = opened(kind, file).shards()
    cut(file, 0.4)
    with pytest.raises(DataError, match=file.name):
        read_all(kind, file, shards)


def test_a_file_that_shrinks_while_it_is_read_is_told(kind, file):
    """Unless what is read was copied, or is held, before."""
    reader = opened(kind, file)
    (*_, last) = shards = reader.shards()
    records = reader.read(shards[0])
    first = next(records)
    cut(file, 0.2)
    others = [last] if last is not shards[0] else []
    rest, error = answer(
        lambda: sum(map(len, records)) + sum(len(x) for one in others for x in reader.read(one))
    )
    if rest is None:
        assert file.name in error
    else:
        assert len(first) + rest == sum(shard.num_records for shard in [shards[0], *others])


def test_a_command_ends_with_an_error_and_leaves_nothing(kind, file, tmp_path, capsys, monkeypatch):
    pytest.importorskip("duckdb")
    if kind in LINES:
        file.write_bytes(b"\xff,\n1 x:y,2,3\n" if kind != "text" else b"")
    else:
        cut(file, 0.5)
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in Path().iterdir()}
    params = FILES[kind][2]
    words = [f"--data_reader_params={params}"] if params else []
    code = run_command(["data", "analyze", file.name, "--output=statistics.json", *words])
    assert code == 1
    assert file.name in capsys.readouterr().err
    assert {path.name for path in Path().iterdir()} - before <= {"_cache", f"{file.name}.idx"}


@pytest.mark.parametrize("words", [["data", "count"], ["data", "analyze", "--output=s.json"]])
def test_a_folder_without_data_is_told(words, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    assert run_command([*words, str(tmp_path / "empty")]) == 1
    assert "empty: this folder has no data files" in capsys.readouterr().err
