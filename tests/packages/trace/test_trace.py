"""A trace has what was trained, in files that DuckDB opens, and holds nobody up."""

import errno
import threading
import types

import duckdb
import numpy as np
import pyarrow.parquet
import pytest

from elasticdl.backends.base import (
    Initializer,
    Minibatch,
    ModelDescription,
    OptimizerSpec,
    StepResult,
    TableDescription,
)
from elasticdl.cli.flags import build_config
from elasticdl.errors import ConfigError, ModelError
from elasticdl.job import Lease, Shard, Task, TaskKind
from elasticdl.packages.trace import files as trace_files
from elasticdl.packages.trace.files import TraceFiles
from elasticdl.packages.trace.settings import TraceChoice
from elasticdl.packages.trace.tracer import TracedStep, Tracer
from elasticdl.worker.parameters import Committed
from elasticdl.worker.running import Item, Running

SIZE = 6
SITES = [1, 0, 1]


class Given:
    """What a pull has brought."""

    version = 7

    def __init__(self, rows):
        self.rows = rows
        self.dense = np.arange(3, dtype=np.float32)


def model_of(*names):
    tables = tuple(
        TableDescription(name, 2, Initializer("constant", {"value": 0.0}), OptimizerSpec("sgd"))
        for name in names
    )
    return ModelDescription(tables, (), (), OptimizerSpec("sgd"), 0)


def item_of(task_id, index, labels=None, flat_site=False):
    rng = np.random.default_rng([task_id, index])
    shapes = [(SIZE,), (SIZE, 3), (2 * SIZE,) if flat_site else (SIZE, 1)]
    ids = [rng.integers(0, 99, shape) for shape in shapes]
    rows = [rng.random((*shape, 2)).astype(np.float32) for shape in shapes]
    result = StepResult(
        loss=0.25,
        row_grads=[-row for row in rows],
        dense_grad=np.ones(3, np.float32),
        state_delta=np.zeros(0, np.float32),
        predictions={"ctr": rng.random((SIZE, 1)), "cvr": rng.random(SIZE)},
    )
    lease = Lease(Task(task_id, TaskKind.TRAINING, Shard("s", 0, 60), epoch=2), 3)
    return Item(
        Running(lease),
        index,
        minibatch=Minibatch(None, labels, SIZE),
        ids=ids,
        parameters=Given(rows),
        result=result,
        learning_rate=0.5,
    )


def read(folder, what="*"):
    return duckdb.sql(
        f"select {what} from '{folder}/*.parquet' order by task, minibatch, record"
    ).fetchall()


def traced(folder, choice, steps=((0, 0),), **item):
    tracer = Tracer.of(TraceChoice.of(choice), model_of("item", "user"), SITES, 10, folder, 4)
    for step in steps:
        tracer.handed_in(item_of(*step, **item), Committed(9, 1))
    tracer.close()


def test_each_record_is_a_row_with_all_that_was_chosen(tmp_path):
    traced(
        tmp_path,
        "every=1; records=4; tensors=ids,rows,gradients,predictions,labels",
        labels=np.arange(SIZE),
    )
    item, given = item_of(0, 0), read(tmp_path)
    assert len(given) == 4
    named = duckdb.sql(f"select * from '{tmp_path}/*.parquet' order by record").fetchnumpy()
    numbers = {"worker": 4, "epoch": 2, "task": 0, "lease": 3, "minibatch": 0, "version": 7}
    numbers |= {"staleness": 1, "learning_rate": 0.5, "loss": 0.25, "dropped": 0}
    for name, value in numbers.items():
        assert named[name].tolist() == [value] * 4
    for site, name in enumerate(["user", "item", "user_1"]):
        for tensor, arrays in (
            ("ids", item.ids),
            ("rows", item.parameters.rows),
            ("gradients", item.result.row_grads),
        ):
            expected = arrays[site][:4].reshape(4, -1)
            np.testing.assert_array_equal(np.stack(named[f"{tensor}_{name}"]), expected)
    np.testing.assert_array_equal(
        np.concatenate(named["predictions_cvr"]), item.result.predictions["cvr"][:4]
    )
    assert [label.tolist() for label in named["labels"]] == [[0], [1], [2], [3]]


def test_the_chosen_minibatches_are_those_of_the_data_whoever_trains_them(tmp_path):
    steps = [(task, index) for task in (0, 1, 3) for index in range(10)]
    traced(tmp_path, "every=4; records=1; tensors=predictions", steps)
    found = read(tmp_path, "task, minibatch")
    assert found == [(task, index) for task, index in steps if (task * 10 + index) % 4 == 0]


def test_tables_are_chosen_by_name_and_one_that_is_not_there_is_told(tmp_path):
    traced(tmp_path, "every=1; tables=item; records=all")
    names = duckdb.sql(f"select * from '{tmp_path}/*.parquet'").columns
    assert {"ids_item", "rows_item", "gradients_item"} <= set(names)
    assert not any("user" in name for name in names)
    assert len(read(tmp_path)) == SIZE
    with pytest.raises(ModelError, match=r"tables=users: the model has no .* item, user"):
        traced(tmp_path, "tables=users")


def test_what_belongs_to_no_record_goes_with_the_first_one(tmp_path):
    traced(tmp_path, "every=1; tensors=ids,dense,dense_gradients", [(0, 0), (0, 1)], flat_site=True)
    for minibatch in (0, 1):
        rows = [
            row
            for row in read(tmp_path, "minibatch, record, ids_user_1, dense")
            if row[0] == minibatch
        ]
        assert rows[0][2] == item_of(0, minibatch, flat_site=True).ids[2].tolist()
        assert rows[0][3] == [0.0, 1.0, 2.0]
        assert all(row[2:] == (None, None) for row in rows[1:])


def step_of(num_bytes=8_000):
    array = np.zeros((1, num_bytes // 4), np.float32)
    return TracedStep(1, {"task": 0, "minibatch": 0}, {"rows": array}, {})


@pytest.mark.timeout(60)
def test_a_writer_that_stands_still_holds_nobody_and_what_is_dropped_is_counted(
    tmp_path, monkeypatch
):
    goes_on, real = threading.Event(), trace_files.table_of

    def stalled(*given):
        goes_on.wait()
        return real(*given)

    monkeypatch.setattr(trace_files, "table_of", stalled)
    monkeypatch.setattr(trace_files, "_MOST_BYTES", 80_000)
    monkeypatch.setattr(trace_files, "_GROUP_SECONDS", 0.01)
    files = TraceFiles(tmp_path, 0, 1 << 20, 60)
    num_put = 1_000
    for _ in range(num_put):
        files.put(step_of())  # returns, though nothing is written
    assert num_put - 20 <= files.num_dropped < num_put
    goes_on.set()
    files.close()
    assert files.num_written + files.num_dropped == num_put
    assert max(row[0] for row in read(tmp_path, "dropped, task, minibatch, record")) >= 0


@pytest.mark.timeout(60)
def test_a_file_that_is_large_is_followed_by_another(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "_GROUP_SECONDS", 0.0)
    rng = np.random.default_rng(0)
    files = TraceFiles(tmp_path, 0, 40_000, 60)
    for number in range(20):
        noise = rng.random((1, 2_000)).astype(np.float32)
        files.put(TracedStep(1, {"task": 0, "minibatch": number}, {"rows": noise}, {}))
        while files.num_written <= number:
            threading.Event().wait(0.001)
    files.close()
    assert len(list(tmp_path.glob("*.parquet"))) > 2
    assert not list(tmp_path.glob(".*.part"))
    assert [row[0] for row in read(tmp_path, "minibatch, task, record")] == list(range(20))


def test_workers_of_two_jobs_may_write_to_one_folder(tmp_path):
    for _ in range(2):
        files = TraceFiles(tmp_path, 0, 1 << 20, 60)
        files.put(step_of())
        files.close()
    assert len(list(tmp_path.glob("worker-0-*.parquet"))) == 2


def test_a_trace_that_cannot_be_written_ends_and_the_training_goes_on(tmp_path, monkeypatch):
    files = TraceFiles(tmp_path / "trace", 0, 1 << 20, 60)
    (tmp_path / "trace").rmdir()
    files.put(step_of())
    files.close()
    assert (files.num_written, files.num_dropped) == (0, 1)


@pytest.mark.parametrize("fails_at", ["write_table", "close"])
def test_a_disk_that_fills_loses_the_file_and_what_it_had_counts_as_dropped(
    tmp_path, monkeypatch, fails_at
):
    monkeypatch.setattr(trace_files, "_GROUP_SECONDS", 0.01)
    is_full = threading.Event()

    class FullLater(pyarrow.parquet.ParquetWriter):
        def __getattribute__(self, name):
            if name == fails_at and is_full.is_set():
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().__getattribute__(name)

    files = TraceFiles(tmp_path, 0, 1 << 20, 60)
    files._parquet = types.SimpleNamespace(ParquetWriter=FullLater)
    files.put(step_of())
    while not files.num_written:
        threading.Event().wait(0.001)
    is_full.set()
    files.put(step_of())
    files.close()
    assert (files.num_written, files.num_dropped) == (0, 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("evry=3", "'evry=3' is not known"),
        ("every=0", "every=0: expected a whole number above 0"),
        ("records=none", "records=none: expected a whole number above 0, or all"),
        ("tensors=ids,weights", "tensors=weights: expected some of ids, rows"),
    ],
)
def test_a_choice_that_says_nothing_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        TraceChoice.of(text)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"trace_dir": "folder"}, "--trace_dir needs --trace"),
        ({"trace": "every=0"}, "every=0: expected a whole number above 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(words, error):
    job = {"model_zoo": "zoo", "model_def": "a.forward", "training_data": "data"}
    strategy = {"distribution_strategy": "ParameterServerStrategy"}
    with pytest.raises(ConfigError, match=error):
        build_config("train", job | strategy | words)
