import numpy as np
import pytest

from elasticdl.cli.flags import build_config
from elasticdl.data.base import Records
from elasticdl.data.open import open_reader
from elasticdl.data.shuffled import ShuffledReader
from elasticdl.data.split import SplitReader, is_held_out
from elasticdl.errors import DataError, JobFailedError
from elasticdl.job import Shard
from elasticdl.master.__main__ import load_data
from elasticdl.worker.records import located

NUM_RECORDS = 150_000  # of more than one block


class Numbers:
    """Two files of which a record is its number, in several shards, read in chunks."""

    metadata = None

    def shards(self):
        return [Shard("a/x", 0, 90_000), Shard("a/x", 90_000, NUM_RECORDS), Shard("a/y", 0, 10)]

    def read(self, shard):
        for start in range(shard.start, shard.end, 1000):
            numbers = np.arange(start, min(shard.end, start + 1000))
            yield Records(start, columns={"name": np.full(len(numbers), shard.name), "n": numbers})


def pairs(chunk):
    return zip(chunk.columns["name"].tolist(), chunk.columns["n"].tolist(), strict=True)


def records(reader, size=7777):
    """Read all ranges of tasks of so many records."""
    found = []
    for shard in reader.shards():
        for start in range(shard.start, shard.end, size):
            piece = Shard(shard.name, start, min(shard.end, start + size))
            chunks = list(reader.read(piece))
            assert sum(map(len, chunks)) == piece.num_records
            for chunk in chunks:
                found += pairs(chunk)
    return found


def test_each_record_is_of_one_part_and_neither_depends_on_where_it_lies():
    parts = [SplitReader(Numbers(), 0.1, held_out) for held_out in (True, False)]
    held_out, others = map(records, parts)
    assert sorted(held_out + others) == sorted(records(Numbers()))
    assert held_out == records(SplitReader(Numbers(), 0.1, True), 100)
    numbers = np.array([number for _, number in held_out])
    by_place = np.histogram(numbers, 15)[0]
    assert by_place.min() > 900
    assert by_place.max() < 1100
    by_last_digit = np.bincount(numbers % 10)
    assert by_last_digit.min() > 1350
    assert by_last_digit.max() < 1650


def test_files_of_one_name_in_folders_of_columns_give_up_different_records():
    def held_out(folder):
        return [is_held_out(f"{folder}/d={day}/h=0/x", 0, 3, 0.5).tolist() for day in range(400)]

    found = held_out("a")
    assert 500 < np.sum(found) < 700
    assert found == held_out("s3://b/c")
    assert found[0] != is_held_out("a/x", 0, 3, 0.5).tolist()


def test_records_are_shuffled_within_their_part_and_errors_say_which_one_it_is():
    part = SplitReader(Numbers(), 0.1, False)
    shuffled = ShuffledReader(part, seed=3, block_records=20)
    (chunk,) = shuffled.read(Shard(shuffled.shards()[0].name, 0, 500))
    others = set(records(part))
    assert set(pairs(chunk)) <= others
    number = int(chunk.columns["n"][7])
    error = located(shuffled, Shard("s", 0, 500), DataError("bad", int(chunk.numbers[7])))
    assert f"record {number}: bad" in str(error)


@pytest.mark.parametrize("suffix", ["csv", "recordio", "parquet"])
def test_files_of_every_format_are_split_alike_from_whatever_folder(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"x.{suffix}"
    words = [f"{number}" for number in range(1000)]
    if suffix == "csv":
        path.write_text("\n".join(words) + "\n")
    elif suffix == "recordio":
        from elasticdl._core import RecordWriter

        with RecordWriter(path, codec="none") as writer:
            writer.write_many([word.encode() for word in words])
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"n": words}), path, row_group_size=300)

    def held_out(place):
        reader = SplitReader(open_reader(place), 0.2, True)
        chunks = [chunk for shard in reader.shards() for chunk in reader.read(shard)]
        found = [v for c in chunks for v in (c.values or c.columns["n"].tolist())]
        assert [int(v) for v in found] == np.concatenate([c.numbers for c in chunks]).tolist()
        return found

    found = held_out(str(path))
    monkeypatch.chdir(tmp_path)
    assert found == held_out(path.name)
    assert 150 < len(found) < 250


def test_the_master_has_each_record_in_training_or_in_validation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("def forward(): ...\n")
    (tmp_path / "x.csv").write_text("1\n" * 1000)
    (tmp_path / "few.csv").write_text("1\n")
    words = {"model_zoo": ".", "model_def": "m.forward", "validation_split": "0.1"}
    data = load_data(build_config("train", words | {"training_data": "x.csv"}))
    trained, evaluated = (sum(s.num_records for s in d) for d in (data.training, data.validation))
    assert trained + evaluated == 1000
    assert 70 < evaluated < 130
    with pytest.raises(JobFailedError, match=r"=0\.1: none of the records of few\.csv"):
        load_data(build_config("train", words | {"training_data": "few.csv"}))
