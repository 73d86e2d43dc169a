"""Whatever is wrong, the command says what, where and what to do; nothing half-written stays."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from elasticdl._core import RecordWriter
from elasticdl.backends.backend import Backend
from tests.elastic.running_job import in_process

ROOT = Path(__file__).resolve().parents[2]
TRAIN_COUNTING = ["--model_def=counting.model.forward", f"--model_zoo={ROOT / 'model_zoo'}"]
PS = ["--distribution_strategy=ParameterServerStrategy", "--num_ps_pods=1", "--num_workers=1"]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch):
    """No model file is known and no framework; lines are long enough for every message."""
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(Backend, "is_imported", lambda backend: False)
    monkeypatch.setenv("COLUMNS", "300")


def refused(done, *expected, code=1):
    """Check that a command failed with all of some words on stderr, and without a stack trace."""
    assert done.returncode == code, done.stdout + done.stderr
    for words in expected:
        assert words in done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def write_records(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with RecordWriter(str(path)) as writer:
        for line in lines:
            writer.write(line)


@pytest.fixture
def data(tmp_path):
    write_records(tmp_path / "data" / "a.recordio", [b"%d %d" % (n, n + 1) for n in range(200)])
    return tmp_path / "data"


@pytest.fixture
def zoo(tmp_path):
    """Write a model file that is the counting model with some functions replaced."""

    def make(source):
        folder = tmp_path / "zoo"
        folder.mkdir()
        counting = (ROOT / "model_zoo" / "counting" / "model.py").read_text()
        (folder / "mine.py").write_text(counting + "\n" + textwrap.dedent(source))
        return [f"--model_zoo={folder}", "--model_def=mine.forward"]

    return make


def left_behind(tmp_path):
    return sorted(
        path.name
        for path in tmp_path.rglob("*")
        if ".partial" in path.name or path.name.startswith(("export", "version-"))
    )


def test_an_unknown_flag_is_answered_with_the_nearest_known_one(tmp_path):
    done = in_process("train", "--num_worker=2", cwd=tmp_path)
    refused(done, "--num_worker", "--num_workers", code=2)


def test_a_missing_model_function_is_answered_with_file_and_nearest_name(data, tmp_path):
    done = in_process(
        "train",
        f"--model_zoo={ROOT / 'model_zoo'}",
        "--model_def=counting.model.forwrd",
        f"--training_data={data}",
        cwd=tmp_path,
    )
    assert done.returncode != 0
    for words in ("model.py", "forwrd", "forward"):
        assert words in done.stderr


def test_a_folder_without_data_is_named(tmp_path):
    done = in_process("train", *TRAIN_COUNTING, "--training_data=nowhere", cwd=tmp_path)
    assert done.returncode != 0
    assert "nowhere" in done.stderr


def test_a_feed_of_a_wrong_shape_says_expected_and_found(data, zoo, tmp_path):
    model = zoo("""
        def feed(records, mode, metadata):
            return np.zeros((1, 2), np.int64), np.zeros(1, np.float32)
    """)
    done = in_process("train", *model, f"--training_data={data}", "--output=export", cwd=tmp_path)
    refused(done, "feed() was given 64 records and gave features of shape (1, 2)", "expected 64")
    assert left_behind(tmp_path) == []


def test_a_model_function_that_raises_is_named_with_its_line(data, zoo, tmp_path):
    model = zoo("""
        def forward():
            raise KeyError("no such layer")
    """)
    done = in_process("train", *model, f"--training_data={data}", cwd=tmp_path)
    refused(done, "mine.forward", "KeyError", "no such layer", "mine.py:")


@pytest.mark.parametrize(
    "strategy", [[], pytest.param(PS, marks=pytest.mark.long)], ids=["Local", "PS"]
)
def test_a_table_that_outgrows_its_memory_is_named_and_what_was_trained_is_kept(strategy, tmp_path):
    lines = [b"%d %d" % (n * 2, n * 2 + 1) for n in range(10_000)]
    write_records(tmp_path / "data" / "a.recordio", lines)
    words = ("--training_data=data", "--checkpoint_dir=kept", "--ps_memory_limit=150KiB")
    done = in_process("train", *TRAIN_COUNTING, *strategy, *words, cwd=tmp_path)
    refused(done, "error: table 'count' cannot take", "153600 bytes", "--ps_memory_limit")
    (kept,) = (tmp_path / "kept").iterdir()
    version = json.loads((kept / "manifest.json").read_text())["replicas"][0]["version"]
    assert version > 0


NAN_MODEL = """
    def _nan(dense, rows, features, labels):
        loss, *others = _gradients(dense, rows, features, labels)
        return (float("nan") if (features == 77).any() else loss), *others

    def forward():
        import dataclasses
        model = _counting()
        return dataclasses.replace(model, gradients=_nan)
"""


@pytest.fixture
def nan_model(zoo):
    return zoo("_counting = forward\n" + textwrap.dedent(NAN_MODEL))


def test_a_loss_that_is_nan_stops_the_job_and_names_task_and_minibatch(data, nan_model, tmp_path):
    done = in_process(
        "train",
        *nan_model,
        f"--training_data={data}",
        "--minibatch_size=10",
        "--output=export",
        "--summary=summary.json",
        cwd=tmp_path,
    )
    refused(done, "loss is nan in task", "minibatch", "--on_nan=skip")
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"
    assert left_behind(tmp_path) == []


def test_a_loss_that_is_nan_can_be_skipped_and_is_reported(data, nan_model, tmp_path):
    done = in_process(
        "train",
        *nan_model,
        f"--training_data={data}",
        "--minibatch_size=10",
        "--on_nan=skip",
        "--summary=summary.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    (epoch,) = summary["ledger"]
    # Ids 76 and 77 stand in records 76 and 77: in one minibatch of the shuffled task, or in two.
    assert epoch["lost"] in (10, 20)
    assert epoch["trained_once"] == 200 - epoch["lost"]
    assert len(summary["skipped"]) == epoch["lost"] // 10


# What a worker says of a record or of the model comes to the user in one way: this shows it.
@pytest.mark.parametrize("strategy", [[], PS], ids=["Local", "PS"])
def test_a_record_that_does_not_parse_is_named_with_its_file(strategy, tmp_path):
    lines = [b"%d %d" % (n, n) for n in range(200)]
    lines[150] = b"not numbers"
    write_records(tmp_path / "data" / "b.recordio", lines)
    done = in_process(
        "train",
        *TRAIN_COUNTING,
        *strategy,
        "--training_data=data",
        "--minibatch_size=10",
        "--num_minibatches_per_task=2",
        "--output=export",
        "--summary=summary.json",
        cwd=tmp_path,
    )
    refused(done, "b.recordio", "record 150", "not")
    (kept,) = left_behind(tmp_path)  # what was trained is not thrown away
    assert kept.startswith("version-")
    (epoch,) = json.loads((tmp_path / "summary.json").read_text())["ledger"]
    assert 180 <= epoch["trained_once"] < 200
    assert epoch["lost"] == 200 - epoch["trained_once"]


def test_a_torn_file_is_reported_with_its_offset(data, tmp_path):
    file = data / "a.recordio"
    os.truncate(file, file.stat().st_size - 40)
    done = in_process("train", *TRAIN_COUNTING, f"--training_data={data}", cwd=tmp_path)
    refused(done, "a.recordio", "torn", "offset")


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "c.recordio").write_text("a,b\n1,2\n" * 100)
    done = in_process("train", *TRAIN_COUNTING, "--training_data=data", cwd=tmp_path)
    refused(done, "c.recordio", "not a RecordIO file")


def test_a_port_that_is_taken_is_named(data, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = in_process(
            "train",
            *TRAIN_COUNTING,
            *PS,
            f"--training_data={data}",
            f"--master_port={port}",
            cwd=tmp_path,
        )
    refused(done)
    assert done.stderr.startswith(f"error: --master_port={port}: the port is taken")
    assert done.stderr.count("\n") == 1


def test_a_checkpoint_of_another_model_is_refused(data, zoo, tmp_path):
    first = in_process(
        "train",
        *TRAIN_COUNTING,
        f"--training_data={data}",
        "--checkpoint_dir=checkpoints",
        cwd=tmp_path,
    )
    assert first.returncode == 0, first.stderr
    other = zoo("""
        def forward():
            table = ArrayTable("count", dim=3)
            return ArrayModel(tables=[table], ids=lambda f: [f], predict=None, gradients=None)
    """)
    for strategy in ([], PS):
        done = in_process(
            "train",
            *other,
            *strategy,
            f"--training_data={data}",
            "--checkpoint_dir_for_init=checkpoints",
            cwd=tmp_path,
        )
        refused(done, "checkpoint", "'count'", "dim")


def test_a_full_disk_leaves_the_previous_checkpoint_valid(data, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        train = ["train", *TRAIN_COUNTING, f"--training_data={data}", "--checkpoint_dir=disk"]
        first = in_process(*train, cwd=tmp_path)
        assert first.returncode == 0, first.stderr
        (kept,) = disk.glob("version-*")
        (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
        second = in_process(*train, "--num_epochs=2", cwd=tmp_path)
        refused(second, "disk", "No space left")
        assert [path.name for path in disk.glob("version-*")] == [kept.name]
        (disk / "filler").unlink()
        evaluated = in_process(
            "evaluate",
            *TRAIN_COUNTING,
            f"--validation_data={data}",
            f"--checkpoint_dir_for_init={kept}",
            cwd=tmp_path,
        )
        assert evaluated.returncode == 0, evaluated.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_lines_for_a_saved_model_in_another_order_than_it_was_trained_on_are_refused(zoo, tmp_path):
    """The order is in the export: a job that predicts has no training data to compare with."""
    model = zoo("""
        def feed(records, mode, metadata):
            ids = np.array([[int(word) for word in r.split(b",")] for r in records], np.int64)
            return ids if mode == "prediction" else (ids, np.zeros(len(ids), np.float32))
    """)
    for name, header in (("same", "user,item"), ("swapped", "item,user")):
        (tmp_path / f"{name}.csv").write_text(f"{header}\n" + "1,2\n" * 20)
    usual = [*model, "--distribution_strategy=Local", "--data_reader_params=skip_header=true"]
    done = in_process("train", *usual, "--training_data=same.csv", "--output=model", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    predict = ["predict", *usual, "--saved_model=model", "--output=predictions"]
    done = in_process(*predict, "--prediction_data=swapped.csv", cwd=tmp_path)
    refused(done, "have the fields item,user, those of --training_data have user,item")
    done = in_process(*predict, "--prediction_data=same.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
