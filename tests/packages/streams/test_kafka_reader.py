"""The reader of a topic (packages/streams/kafka_reader.py) with a broker that is a list."""

from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.cli.main import run_command
from elasticdl.data.aligned import aligned
from elasticdl.data.base import HasHoles, Stream
from elasticdl.data.open import open_reader
from elasticdl.data.params import Params
from elasticdl.data.shuffled import with_shuffle
from elasticdl.errors import AwayError, ConfigError, DataError
from elasticdl.job import Shard, Task, TaskKind
from elasticdl.packages.data_tools.sample import take_sample
from elasticdl.packages.streams.kafka import Extent
from elasticdl.packages.streams.kafka_reader import KafkaReader
from elasticdl.packages.streams.messages import format_of
from elasticdl.packages.streams.topic import Topic
from elasticdl.worker.records import read_all

END, GONE, AWAY = -191, -140, -195
CODES = SimpleNamespace(
    _PARTITION_EOF=END, _AUTO_OFFSET_RESET=GONE, UNKNOWN_TOPIC_OR_PART=3, _UNKNOWN_PARTITION=-190
)


class Message:
    def __init__(self, offset, value=None, error=None):
        self.offset, self.value = lambda: offset, lambda: value
        self.timestamp = lambda: (1, 1000 * offset + 500)
        found = error and SimpleNamespace(code=lambda: error, str=lambda: "trouble")
        self.error = lambda: found


class Broker:
    """One partition: values by offset, and what is left of it; stands for client and consumer."""

    def __init__(self, values, low=0, high=None):
        self.values = values
        self.low, self.high = low, max(values) + 1 if high is None else high
        self.assigned, self.queue, self.trouble, self.waits_for = [], [], "", ""

    def assign(self, places):
        (at,) = places
        self.assigned.append(at)
        if not self.low <= at <= self.high:
            self.queue = [Message(at, error=GONE)]
            return
        offsets = [offset for offset in sorted(self.values) if offset >= max(at, self.low)]
        self.queue = [Message(offset, self.values[offset]) for offset in offsets]
        self.queue.append(Message(self.high, error=END))

    def consume(self, count, timeout):
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken

    def poll(self, timeout):
        return (self.consume(1, 0) or [None])[0]

    def consumer(self):
        return self

    def position(self, partition, offset):
        return offset

    def extent(self, partition):
        return Extent(self.low, self.high)

    def extents(self, patience_seconds=None):
        return {0: self.extent(0)}

    def error_codes(self):
        return CODES

    def refused(self, error):
        return None


def reader_of(
    broker, start="earliest", is_endless=True, skips_gaps=False, params="", sets_aside=False
):
    topic, form = Topic("b", "t", start, is_endless), format_of(Params(params))
    return KafkaReader(topic, broker, form, skips_gaps, sets_aside)


def read(reader, start, end):
    found = {}
    for records in reader.read(Shard("t-0", start, end)):
        found.update(zip(records.numbers.tolist(), records.values, strict=True))
    return found


WITH_HOLES = {0: b"a", 1: b"b", 5: b"c", 6: b"d", 9: b"e"}


@pytest.mark.parametrize("step", [1, 2, 3, 5, 11])
def test_ranges_with_holes_give_each_message_once_at_its_position(step):
    broker = Broker(WITH_HOLES, high=11)
    reader, found = reader_of(broker), {}
    for start in range(0, 11, step):
        part = read(reader, start, min(start + step, 11))
        assert all(start <= offset < start + step for offset in part)
        assert not found.keys() & part.keys()
        found |= part
    assert found == WITH_HOLES


def test_a_range_that_follows_is_read_on_without_asking_anew():
    broker = Broker({offset: b"%d" % offset for offset in range(6)})
    reader = reader_of(broker)
    assert list(read(reader, 0, 3)) == [0, 1, 2]
    assert list(read(reader, 3, 6)) == [3, 4, 5]
    assert broker.assigned == [0]
    assert list(read(reader, 1, 3)) == [1, 2]
    assert broker.assigned == [0, 1]


def test_what_others_read_is_passed_over_if_it_is_little(monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.kafka_reader._CHUNK_RECORDS", 2)
    broker = Broker({offset: b"%d" % offset for offset in range(40)})
    reader = reader_of(broker)
    assert list(read(reader, 0, 3)) == [0, 1, 2]
    assert list(read(reader, 6, 9)) == [6, 7, 8]
    assert broker.assigned == [0]
    assert list(read(reader, 20, 24)) == [20, 21, 22, 23]
    assert broker.assigned == [0, 20]
    assert list(read(reader, 38, 40)) == [38, 39]


def test_a_message_without_a_value_is_no_record():
    assert read(reader_of(Broker({0: b"a", 1: None, 2: b""})), 0, 3) == {0: b"a", 2: b""}


def test_a_client_that_gives_nothing_is_asked_anew(monkeypatch, caplog):
    monkeypatch.setattr("elasticdl.packages.streams.kafka_reader._TELL_SECONDS", 0.0)
    broker = Broker({offset: b"%d" % offset for offset in range(6)})
    reader = reader_of(broker)
    read(reader, 0, 2)
    broker.queue = []  # as of a broker that was killed
    assert list(read(reader, 2, 4)) == [2, 3]
    assert broker.assigned == [0, 2]
    assert "t-0: nothing came of positions [2, 4)" in caplog.text


def test_a_broker_that_refuses_each_time_is_shown_and_asked_anew(monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.kafka_reader._TELL_SECONDS", 0.0)
    broker = Broker({0: b"a"})
    reader, assign, shown, made = reader_of(broker), broker.assign, [], []

    def refuse(places):
        shown.append(reader.waits_for)
        assign(places)
        if len(shown) < 9:
            broker.queue = [Message(0, error=29)]

    broker.assign = refuse
    broker.consumer = lambda: made.append(1) or broker
    assert list(read(reader, 0, 1)) == [0]
    assert shown[-1] == "t-0: nothing came of positions [0, 1) (trouble)"
    assert len(made) > 2
    assert reader.waits_for == ""


def test_what_was_deleted_unread_is_an_error_that_names_it():
    broker = Broker({offset: b"x" for offset in range(10)}, low=4)
    with pytest.raises(
        DataError, match=r"t-0: positions \[2, 4\) were deleted.*--on_gap=skip"
    ) as it:
        read(reader_of(broker), 2, 8)
    assert it.value.is_certain
    with pytest.raises(DataError, match=r"t-0: positions \[0, 3\) were deleted"):
        read(reader_of(broker), 0, 3)


def test_a_range_that_failed_is_asked_for_anew_when_it_is_tried_again():
    broker = Broker({offset: b"x" for offset in range(10)}, low=4)
    reader = reader_of(broker)
    for _ in range(2):
        with pytest.raises(DataError, match="were deleted"):
            read(reader, 2, 8)
    assert broker.assigned == [2, 2]


def test_what_was_deleted_unread_is_skipped_when_asked_for(caplog):
    broker = Broker({offset: b"x" for offset in range(10)}, low=4)
    assert list(read(reader_of(broker, skips_gaps=True), 2, 8)) == [4, 5, 6, 7]
    assert "t-0: positions [2, 4) were deleted" in caplog.text
    assert list(read(reader_of(broker, skips_gaps=True), 0, 3)) == []


def test_positions_that_were_deleted_unread_are_counted_and_not_asked_for_again(monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.kafka_reader._TELL_SECONDS", 0.0)
    broker = Broker({offset: b"x" for offset in range(10)}, low=4)
    reader = reader_of(broker, skips_gaps=True)

    def counts(start, end):
        found = list(reader.read(Shard("t-0", start, end)))
        return sum(len(each) for each in found), sum(each.num_gone for each in found)

    assert (counts(0, 3), counts(1, 6), counts(2, 4), counts(6, 8)) == (
        (0, 3),
        (2, 3),
        (0, 2),
        (2, 0),
    )
    assert broker.assigned == [0, 4]
    broker.low = 9
    assert (counts(3, 10), counts(8, 10)) == ((1, 6), (1, 1))


def test_a_topic_that_was_made_anew_is_told():
    with pytest.raises(DataError, match=r"\[20, 30\).*has \[0, 10\).*created again"):
        read(reader_of(Broker({offset: b"x" for offset in range(10)})), 20, 30)


def test_where_a_job_begins():
    broker = Broker({offset: b"x" for offset in range(10)}, low=4)
    assert reader_of(broker).beginning() == [Shard("t-0", 4, 10)]
    assert reader_of(broker, "latest").beginning() == [Shard("t-0", 10, 10)]
    assert reader_of(broker, "latest").shards() == [Shard("t-0", 4, 10)]
    assert isinstance(reader_of(broker), HasHoles)
    assert isinstance(reader_of(broker), Stream)


def test_records_of_a_topic_are_not_shuffled():
    training = SimpleNamespace(shuffle="records")
    with pytest.raises(ConfigError, match="--shuffle=records"):
        with_shuffle(reader_of(Broker({0: b"x"})), training)


@pytest.mark.parametrize("params", ["format=json;columns=n:int64", "format=csv;columns=n:int64"])
def test_a_message_that_is_not_of_its_format_is_told_or_set_aside(params):
    good = b'{"n": 7}' if "json" in params else b"7"
    broker = Broker({0: good, 1: b"seven", 2: None, 4: good})
    with pytest.raises(DataError, match=r"t-0: the message at 1 cannot be read.*bad_message_dir"):
        list(reader_of(broker, params=params).read(Shard("t-0", 0, 5)))
    (records,) = reader_of(broker, params=params, sets_aside=True).read(Shard("t-0", 0, 5))
    assert len(records) == 2
    assert records.numbers.tolist() == [0, 4]
    assert [(bad.position, bad.value) for bad in records.aside] == [(1, b"seven")]
    assert records.times.tolist() == [0.5, 4.5]


def test_messages_whose_columns_have_another_order_may_have_holes_too():
    broker = Broker({0: b'{"a": 1, "b": 2}', 3: b"none", 5: b'{"a": 3, "b": 4}'}, high=7)
    params = "format=json;columns=b:int64,a:int64"
    own = reader_of(broker, params=params, sets_aside=True)
    like = reader_of(broker, params="format=json;columns=a:int64,b:int64").metadata
    reader = aligned(own, like)
    assert isinstance(reader, HasHoles)
    found = []
    for start, end in ((0, 2), (2, 4), (4, 7)):
        task = Task(0, TaskKind.EVALUATION, Shard("t-0", start, end))
        found += read_all(reader, task)
    assert [list(records.columns) for records in found] == [["a", "b"], [], ["a", "b"]]
    assert found[2].columns["b"].tolist() == [4]
    assert [len(records.aside) for records in found] == [0, 1, 0]


def test_settings_of_the_name_count_more_than_those_for_all_data():
    place = "kafka://b/t?format=json&columns=a,b:float"
    reader = open_reader(place, "columns=x,y;delimiter=tab")
    assert reader.metadata.column_names == ("a", "b")
    assert reader.metadata.column_dtypes["b"] == np.float64


@pytest.mark.parametrize(
    ("first", "shard"), [({0: 3}, Shard("t-0", 3, 5)), ({}, Shard("t-0", 5, 5))]
)
def test_a_job_that_starts_at_a_time_reads_from_the_first_message_of_it(first, shard):
    broker = Broker({0: b"a", 1: b"b", 3: b"c", 4: b"d"})
    broker.positions_at = lambda milliseconds: first
    bounded = reader_of(broker, "2026-01-31T12:00:00Z", is_endless=False)
    assert bounded.shards() == bounded.beginning() == [shard]
    endless = reader_of(broker, "2026-01-31T12:00:00Z")
    assert endless.beginning() == [shard]
    assert endless.look() == endless.shards() == [Shard("t-0", 0, 5)]


def test_a_sample_of_a_topic_counts_positions_and_the_records_that_it_has():
    sample = take_sample(reader_of(Broker(WITH_HOLES, high=11), is_endless=False))
    assert (sample.size, sample.num_looked_at, sample.is_all) == ("11 positions", 5, True)


def test_inspect_shows_messages_of_a_partition_that_has_some(monkeypatch, capsys):
    broker = Broker({0: b"hello"})
    broker.extents = lambda patience_seconds=None: {0: Extent(0, 0), 1: Extent(0, 1)}
    reader = reader_of(broker)
    monkeypatch.setattr("elasticdl.data.open.open_reader", lambda place, params: reader)
    assert run_command(["data", "inspect", "kafka://b/t"]) == 0
    assert "hello" in capsys.readouterr().out


def test_between_two_looks_at_all_there_is_only_ends_are_asked_for():
    broker = Broker({0: b"a", 1: b"b"})
    broker.ends = lambda partitions: {at: 9 for at in partitions}
    reader = reader_of(broker)
    assert reader.look() == [Shard("t-0", 0, 2)]
    broker.low = 1
    assert reader.look() == [Shard("t-0", 0, 9)]

    def gone(partitions):
        raise AwayError("nobody answers")

    broker.ends = gone
    assert reader.look() == [Shard("t-0", 1, 2)]


def test_news_are_waited_for_once_a_look_has_found_none(monkeypatch):
    waited = []
    monkeypatch.setattr(
        "elasticdl.packages.streams.kafka_watch.PartitionWatch.wait",
        lambda *at: waited.append(at[1]),
    )
    broker = Broker({0: b"a", 1: b"b"})
    broker.ends = lambda partitions: {0: 2}
    reader = reader_of(broker)
    reader.look()
    reader.wait()
    assert waited == []
    reader.look()
    reader.wait()
    assert waited == [{0: 2}]
