"""Each prediction stands beside the record that it is of, or is refused."""

import errno
import os

import numpy as np
import pytest

from elasticdl.errors import DataError, ModelError
from elasticdl.job import Shard, Task, TaskKind
from elasticdl.worker.predictions import FileSink, Predicted, ProcessorSink

TASK = Task(7, TaskKind.PREDICTION, Shard("a.csv", 10, 14))


def predicted(*numbers, outputs=None):
    outputs = np.array(numbers, np.float32) / 2 if outputs is None else outputs
    return Predicted(outputs, np.array(numbers, np.int64))


class Keeping:
    def __init__(self):
        self.calls = []

    def process(self, predictions, worker_id):
        self.calls.append((predictions.tolist(), worker_id))


class KeepingRecords:
    def __init__(self):
        self.calls = []

    def process(self, predictions, worker_id, source, record):
        self.calls.append((predictions.tolist(), source, record.tolist()))


def written(folder, *minibatches):
    FileSink(folder).write(TASK, minibatches)
    with np.load(folder / "predictions-00000007.npz") as file:
        return {name: file[name].tolist() for name in file.files}


def test_a_disk_that_is_full_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    def save(file, **arrays):
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", save)
    with pytest.raises(DataError, match=r"predictions-00000007.npz: cannot be written: No space"):
        written(tmp_path, predicted(10, 11, 12, 13))
    assert not list(tmp_path.iterdir())


def test_a_process_that_lost_its_lease_does_not_write_into_the_file_of_the_next(
    tmp_path, monkeypatch
):
    save, minibatches = np.savez, [predicted(10, 11, 12, 13)]

    def save_late(file, **arrays):
        monkeypatch.setattr(np, "savez", save)
        FileSink(tmp_path).write(TASK, minibatches, attempt=2)
        file.write(b"half")

    monkeypatch.setattr(np, "savez", save_late)
    with pytest.raises(DataError, match="cannot be written"):
        FileSink(tmp_path).write(TASK, minibatches, attempt=1)
    with np.load(tmp_path / "predictions-00000007.npz") as file:
        assert file["record"].tolist() == [10, 11, 12, 13]
    assert [path.name for path in tmp_path.iterdir()] == ["predictions-00000007.npz"]


@pytest.mark.parametrize("name", ["record", "source", "file"])
def test_an_output_of_a_name_that_is_taken_is_refused(tmp_path, name):
    outputs = {name: np.zeros(4, np.float32)}
    with pytest.raises(ModelError, match=f"has an output named '{name}'"):
        written(tmp_path, predicted(10, 11, 12, 13, outputs=outputs))


def test_a_file_has_each_row_beside_its_record(tmp_path):
    assert written(tmp_path, predicted(10, 11), predicted(12, 13)) == {
        "source": "a.csv",
        "record": [10, 11, 12, 13],
        "output": [5.0, 5.5, 6.0, 6.5],
    }


def test_a_file_has_rows_in_the_order_of_records_left_out_and_made_twice(tmp_path):
    # Record 11 was left out, two examples were made of 12, and the order is another.
    found = written(tmp_path, predicted(13, 12), predicted(12, 10))
    assert found["record"] == [10, 12, 12, 13]
    assert found["output"] == [5.0, 6.0, 6.0, 6.5]


def test_a_file_of_a_task_of_which_all_records_were_left_out_has_no_rows(tmp_path):
    assert written(tmp_path) == {"source": "a.csv", "record": []}


@pytest.mark.parametrize("sink", [FileSink, lambda _: ProcessorSink(Keeping(), 0)])
@pytest.mark.parametrize("outputs", [np.zeros((3, 1)), np.float32(0.5)], ids=["rows", "scalar"])
def test_a_model_that_gives_other_rows_than_examples_is_refused(sink, outputs, tmp_path):
    with pytest.raises(ModelError, match=r"output of 2 examples of a.csv has shape \[(3, 1)?\]"):
        sink(tmp_path).write(TASK, [predicted(10, 11, outputs=outputs), predicted(12, 13)])


def test_a_processor_gets_one_row_for_each_record_in_order():
    processor = Keeping()
    ProcessorSink(processor, 3).write(TASK, [predicted(10, 11), predicted(12, 13)])
    assert processor.calls == [([5.0, 5.5], 3), ([6.0, 6.5], 3)]


@pytest.mark.parametrize("numbers", [(10, 12, 13), (10, 11, 13, 12), (10, 11, 12, 13, 13)])
def test_a_processor_that_is_not_told_the_records_refuses_other_rows(numbers):
    processor = Keeping()
    with pytest.raises(ModelError, match="add the parameters source and record"):
        ProcessorSink(processor, 0).write(TASK, [predicted(*numbers)])
    assert processor.calls == []


def test_a_processor_that_asks_for_the_records_is_told_them():
    processor = KeepingRecords()
    ProcessorSink(processor, 0).write(TASK, [predicted(13, 10), predicted(12)])
    assert processor.calls == [([6.5, 5.0], "a.csv", [13, 10]), ([6.0], "a.csv", [12])]
