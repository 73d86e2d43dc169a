"""`--shuffle=records`: an order of records over all data, the same for everybody."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.cli.flags import build_config
from elasticdl.config import TrainingSection
from elasticdl.data.base import Metadata, Records
from elasticdl.data.shuffled import NAME, ShuffledReader, with_shuffle
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard, Task, TaskKind
from elasticdl.worker.records import located, read_all


class Numbered:
    """Files of these sizes; record n of file k is the text `k:n`, or the columns k and n."""

    def __init__(self, counts, columns=False, first=0, chunk=7):
        self._shards = [Shard(f"file {k}", first, first + n) for k, n in enumerate(counts) if n]
        self._columns, self._chunk = columns, chunk
        self.metadata = Metadata()

    def shards(self):
        return self._shards

    def read(self, shard):
        known = {known.name: known for known in self._shards}[shard.name]
        assert known.start <= shard.start < shard.end <= known.end
        file = int(shard.name.split()[1])
        for start in range(shard.start, shard.end, self._chunk):
            numbers = np.arange(start, min(start + self._chunk, shard.end))
            if self._columns:
                columns = {"file": np.full(len(numbers), file), "number": numbers}
                yield Records(start, columns=columns)
            else:
                yield Records(start, [f"{file}:{n}".encode() for n in numbers.tolist()])


def values_of(reader, start, end, epoch=0):
    chunks = reader.of_epoch(epoch).read(Shard(NAME, start, end))
    return [value for chunk in chunks for value in chunk.values]


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 90), min_size=1, max_size=4).filter(any),
    block=st.integers(1, 20),
    task=st.integers(1, 50),
    epoch=st.integers(0, 3),
)
def test_each_record_comes_once_an_epoch_however_it_is_cut_into_tasks(counts, block, task, epoch):
    reader = ShuffledReader(Numbered(counts), seed=3, block_records=block)
    (shard,) = reader.shards()
    assert shard == Shard(NAME, 0, sum(counts))

    read = Counter()
    for start in range(0, shard.end, task):
        read.update(values_of(reader, start, min(start + task, shard.end), epoch))

    expected = [f"{k}:{n}".encode() for k, count in enumerate(counts) for n in range(count)]
    assert read == Counter(expected)


def test_a_task_is_the_same_for_every_reader_and_another_in_each_epoch():
    one, other = (ShuffledReader(Numbered([400, 600], chunk=c), 5, 4) for c in (7, 100))

    assert values_of(one, 200, 300) == values_of(other, 200, 300)
    assert set(values_of(one, 200, 300)) != set(values_of(one, 200, 300, epoch=1))
    assert values_of(one, 0, 100) != values_of(ShuffledReader(Numbered([400, 600]), 6, 4), 0, 100)


def test_a_task_has_records_from_all_over_the_data_and_not_in_their_order():
    reader = ShuffledReader(Numbered([5000, 5000]), seed=0, block_records=10)

    (chunk,) = reader.read(Shard(NAME, 0, 640))

    share = np.mean(chunk.numbers < 5000)
    assert 0.3 < share < 0.7
    assert len(set((chunk.numbers // 1000).tolist())) == 10
    assert np.abs(np.diff(chunk.numbers)).mean() > 1000


def test_columns_stay_beside_each_other_and_records_keep_their_numbers():
    reader = ShuffledReader(Numbered([30, 50], columns=True, first=100), 1, 8)

    (chunk,) = reader.read(Shard(NAME, 0, 80))

    placed = [reader.place_of(number) for number in chunk.numbers.tolist()]
    files = chunk.columns["file"].tolist()
    assert placed == [
        (f"file {k}", n) for k, n in zip(files, chunk.columns["number"].tolist(), strict=True)
    ]


def test_a_worker_reads_the_order_of_the_tasks_epoch():
    reader = ShuffledReader(Numbered([500]), 0, 5)
    task = Task(7, TaskKind.TRAINING, Shard(NAME, 100, 200), epoch=2)

    values = [value for chunk in read_all(reader, task) for value in chunk.values]

    assert values == values_of(reader, 100, 200, epoch=2)


def test_an_error_of_a_record_names_its_file():
    reader = ShuffledReader(Numbered([30, 50]), 0, 5)

    error = located(
        reader, Shard(NAME, 0, 80), DataError("record 42 does not parse in feed: no", 42)
    )

    assert str(error) == "record 42 does not parse in feed: no (record 12 of file 1)"


def test_data_that_became_shorter_is_told():
    class Shrunk(Numbered):
        def read(self, shard):
            for chunk in super().read(shard):
                yield Records(chunk.start, chunk.values[:1])

    reader = ShuffledReader(Shrunk([100]), 0, 10)

    with pytest.raises(DataError, match=r"file 0: Shrunk.read gave \d+ records for \["):
        list(reader.read(Shard(NAME, 0, 50)))
    with pytest.raises(DataError, match="has the data changed since it was counted"):
        list(reader.read(Shard(NAME, 0, 101)))


def test_data_without_records_has_no_shard():
    assert ShuffledReader(Numbered([0]), 0, 10).shards() == []


def test_the_flag_decides_and_a_block_is_a_64th_of_a_task():
    reader = Numbered([1000])
    assert with_shuffle(reader, TrainingSection()) is reader

    training = TrainingSection(shuffle="records", minibatch_size=64, num_minibatches_per_task=10)
    shuffled = with_shuffle(reader, training)

    assert isinstance(shuffled, ShuffledReader)
    assert shuffled._size == 10


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"shuffle": "records", "shuffle_tasks": "false"}, "leave out --shuffle_tasks=false"),
        ({"shuffle_block_records": "10"}, "goes only with --shuffle=records"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build_config("train", {"model_def": "m.f", "training_data": "data"} | flags)
