"""Records of a source that is read once: captured exactly, wherever the reading is cut off."""

import itertools
import os
import select
import struct
import threading

import numpy as np
import pytest

from elasticdl.config import JobConfig
from elasticdl.data.base import Records
from elasticdl.data.custom import adapt_reader
from elasticdl.errors import ConfigError, DataError, ModelError
from elasticdl.job import Shard
from elasticdl.packages.streams.capture import command
from elasticdl.packages.streams.capture.capture import Capture
from elasticdl.packages.streams.capture.chunks import (
    chunks_in,
    end_of,
    records_of,
    state_after,
    write_chunk,
)
from elasticdl.packages.streams.capture.command import CommandSource
from elasticdl.packages.streams.capture.process import CaptureProcess
from elasticdl.packages.streams.capture.reader import NAME, CapturedReader, CapturedStream
from elasticdl.packages.streams.capture.settings import check_captured, is_captured_as_it_trains
from elasticdl.packages.streams.capture.source import are_alike, as_source, join

SECONDS = 30.0


class CutOffError(Exception):
    """The reading ends here, as by a kill."""


class Counter:
    """Yields the numbers below an end, and ends early as often as it is told."""

    def __init__(self, end, cut_at=None, size=1):
        self._end, self._cut_at, self._size, self._at = end, cut_at, size, 0

    def read(self):
        while self._at < self._end:
            if self._cut_at is not None and self._at >= self._cut_at:
                raise CutOffError
            numbers = range(self._at, min(self._at + self._size, self._end))
            self._at = numbers.stop
            yield [str(number) for number in numbers]

    def state(self):
        return {"at": self._at}

    def restore(self, state):
        self._at = state["at"]


def read_all(folder):
    reader = CapturedReader(folder)
    (shard,) = reader.shards()
    assert shard.start == 0
    return [value for records in reader.read(shard) for value in records.values]


@pytest.mark.timeout(60)
def test_a_source_that_is_cut_off_again_and_again_gives_each_record_once(tmp_path, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.capture.capture._CHUNK_RECORDS", 7)
    for cut_at in range(5, 100, 5):
        with pytest.raises(CutOffError):
            Capture(tmp_path, Counter(100, cut_at)).run()
        assert end_of(tmp_path) is None
    Capture(tmp_path, Counter(100)).run()
    Capture(tmp_path, Counter(0)).run()  # it is at its end, and not read again
    assert read_all(tmp_path) == [b"%d" % number for number in range(100)]
    assert end_of(tmp_path) == 100


def test_each_chunk_has_the_state_of_the_source_behind_it(tmp_path, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.capture.capture._CHUNK_RECORDS", 10)
    Capture(tmp_path, Counter(25, size=4)).run()
    found = [(chunk.start, chunk.end, state_after(chunk)["at"]) for chunk in chunks_in(tmp_path)]
    assert found == [(0, 12, 12), (12, 24, 24), (24, 25, 25)]


@pytest.mark.timeout(60)
def test_what_a_source_has_given_is_written_while_it_gives_nothing_more(tmp_path):
    class Waiting(Counter):
        def read(self):
            self._at = 1
            yield b"first"
            reader = CapturedReader(tmp_path)
            assert reader.shards() == [Shard(NAME, 0, 1)]  # waits for the first chunk

    Capture(tmp_path, Waiting(1)).run()
    assert end_of(tmp_path) == 1


@pytest.mark.timeout(60)
def test_a_source_waits_for_what_is_not_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.capture.capture._CHUNK_RECORDS", 10)
    seen = []

    class Watched(Counter):
        def read(self):
            yield from super().read()

        def state(self):
            seen.append((self._at, capture._may_go_on()))
            threading.Timer(0, capture.trained, (self._at,)).start()
            return super().state()

    capture = Capture(tmp_path, Watched(20, size=10), most_bytes_ahead=0)
    capture.run()
    assert [at for at, _ in seen] == [10, 20]


@pytest.mark.parametrize(
    "columns",
    [
        {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "id": np.array([3, 1, 2])},
        {"word": np.array(["a", "", "ü"], object), "raw": np.array([b"\0", b"", b"x"], object)},
        {"when": np.array(["2026-01-01", "2026-01-02", "NaT"], "M8[D]"), "s": np.array(["a"] * 3)},
    ],
)
def test_columns_come_back_as_they_were(tmp_path, columns):
    chunk = write_chunk(tmp_path, 5, Records(columns=columns), '{"offset": [1, "x", null]}')
    found = records_of(chunk)
    assert (found.start, len(found), state_after(chunk)) == (5, 3, {"offset": [1, "x", None]})
    for name, column in columns.items():
        np.testing.assert_array_equal(found.columns[name], column)
        assert found.columns[name].dtype == column.dtype


def test_text_of_other_widths_is_in_one_chunk(tmp_path):
    parts = [Records(columns={"s": np.array(words)}) for words in (["a"], ["long", "b"])]
    assert are_alike(*parts)
    assert not are_alike(parts[0], Records(columns={"s": np.array([b"a"])}))
    found = records_of(write_chunk(tmp_path, 0, join(parts), "0"))
    assert found.columns["s"].tolist() == ["a", "long", "b"]


def test_a_torn_chunk_and_values_of_no_kind_are_told(tmp_path):
    chunk = write_chunk(tmp_path, 0, Records(values=[b"one", b"two"]), "0")
    data = chunk.path.read_bytes()
    chunk.path.write_bytes(data[:-1] + b"?")
    with pytest.raises(DataError, match="is torn"):
        records_of(chunk)
    missing = Records(columns={"word": np.array(["a", None], object)})
    with pytest.raises(DataError, match="column 'word' has None among its values"):
        write_chunk(tmp_path, 2, missing, "0")


def test_ranges_are_read_across_chunks_and_forgotten_ones_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.capture.capture._CHUNK_RECORDS", 10)
    Capture(tmp_path, Counter(40, size=10)).run()
    reader, stream = CapturedReader(tmp_path), CapturedStream(tmp_path, process=None)
    parts = list(reader.read(Shard(NAME, 8, 23)))
    assert [(part.start, len(part)) for part in parts] == [(8, 2), (10, 10), (20, 3)]
    assert [v for part in parts for v in part.values] == [b"%d" % n for n in range(8, 23)]
    stream.forget({NAME: 25})
    assert reader.shards() == [Shard(NAME, 0, 10), Shard(NAME, 20, 40)]
    assert (stream.look(), stream.is_over) == ([Shard(NAME, 0, 40)], True)
    with pytest.raises(DataError, match=r"has no records \[40, 41\)"):
        list(reader.read(Shard(NAME, 40, 41)))


def test_a_source_of_which_all_is_forgotten_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.streams.capture.capture._CHUNK_RECORDS", 10)
    with pytest.raises(CutOffError):
        Capture(tmp_path, Counter(50, cut_at=40, size=10)).run()
    stream = CapturedStream(tmp_path, process=None)
    stream.forget({NAME: 40})
    assert stream.shards() == [Shard(NAME, 0, 40)]
    Capture(tmp_path, Counter(50, size=10)).run()
    found = [(chunk.start, chunk.end) for chunk in chunks_in(tmp_path)]
    assert found == [(0, 10), (30, 40), (40, 50)]


@pytest.mark.timeout(120)
def test_the_process_of_a_source_that_has_ended_ends_in_order(tmp_path):
    flags = {"distribution_strategy": "ParameterServerStrategy", "num_epochs": 1}
    config = config_of({"reader_command": "seq 10"}, **flags)
    cluster = config.cluster.model_copy(update={"job_dir": tmp_path})
    process = CaptureProcess(config.model_copy(update={"cluster": cluster}))
    process.keep_running()
    try:
        process.trained(0)
        assert process._process.wait() == 0
        assert end_of(tmp_path / "captured") == 10
    finally:
        process.close()


class TestCommandSource:
    def values(self, command, framing="lines", state=None):
        source = CommandSource(command, framing)
        if state is not None:
            source.restore(state)
        return list(itertools.chain.from_iterable(source.read())), source.state()

    def test_lines_are_records_and_the_last_one_needs_no_newline(self):
        assert self.values("printf 'a\\n\\nb c\\nlast'")[0] == [b"a", b"", b"b c", b"last"]

    def test_framed_records_have_any_bytes(self, tmp_path):
        records = [b"a\nb", b"", bytes(range(256)) * 5_000]
        (tmp_path / "framed").write_bytes(b"".join(struct.pack("<I", len(r)) + r for r in records))
        assert self.values(f"cat {tmp_path}/framed", "framed")[0] == records
        with pytest.raises(DataError, match="ended within a record, 3 bytes"):
            self.values(r"printf '\1\0\0\0a\1\0\0'", "framed")
        with pytest.raises(DataError, match="expected a length of four bytes"):
            self.values("echo text that has no lengths", "framed")

    @pytest.mark.parametrize("block_bytes", [1, 3, 5])
    def test_a_record_may_come_in_many_blocks(self, tmp_path, monkeypatch, block_bytes):
        monkeypatch.setattr(command, "_BLOCK_BYTES", block_bytes)
        records = [b"abc", b"", b"0123456789" * 3, b"x"]
        (tmp_path / "framed").write_bytes(b"".join(struct.pack("<I", len(r)) + r for r in records))
        assert self.values(f"cat {tmp_path}/framed", "framed")[0] == records
        assert self.values("printf 'abc\n\n0123456789\nx'")[0] == [b"abc", b"", b"0123456789", b"x"]

    def test_a_line_without_an_end_is_told(self, monkeypatch):
        monkeypatch.setattr(command, "_MOST_BYTES", 1000)
        with pytest.raises(
            DataError, match=r"has printed .* bytes without the end of a line"
        ) as it:
            self.values("yes | tr -d '\n'")
        assert it.value.is_certain

    def test_a_command_that_is_started_again_goes_on_behind_what_was_taken(self):
        source = CommandSource("seq 100000")
        taken = next(source.read())
        rest, _ = self.values("seq 100000", state=source.state())
        assert taken + rest == [b"%d" % n for n in range(1, 100_001)]

    def test_a_command_that_prints_something_else_is_told(self):
        _, state = self.values("seq 10")
        for other in ("seq 2 20", "seq 9"):
            with pytest.raises(DataError, match="its first 10 records are not those"):
                self.values(other, state=state)

    @pytest.mark.timeout(60)
    def test_a_command_without_an_end_is_not_waited_for_once_it_is_wrong(self):
        _, state = self.values("seq 10")
        with pytest.raises(DataError, match="its first 10 records are not those"):
            self.values("seq 2 20; exec sleep 3600", state=state)

    def test_a_pipeline_fails_where_any_part_of_it_does(self):
        with pytest.raises(DataError, match="exit code 3, after 1 records"):
            self.values("(echo one; exit 3) | cat")

    @pytest.mark.parametrize("is_left", [True, False])
    def test_a_command_that_prints_nothing_ends_with_all_that_it_has_started(self, is_left):
        source = CommandSource("echo one; sleep 1000 | cat")
        records = source.read()
        assert next(records) == [b"one"]
        if is_left:
            records.close()
            return
        source.end()
        with pytest.raises(DataError, match="exit code -9"):
            next(records)

    def test_what_a_command_was_writing_when_it_was_killed_is_no_record(self):
        source = CommandSource("echo one; printf tw; kill -9 $$")
        records = source.read()
        assert next(records) == [b"one"]
        with pytest.raises(DataError, match="exit code -9, after 1 records"):
            next(records)


def test_a_command_that_prints_nothing_ends_with_the_capture(tmp_path):
    fifo = tmp_path / "alive"  # the command, and what it has started, can write there
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    command = f"exec 9> {fifo}; echo here >&9; sleep 1000 | cat"
    config = config_of({"reader_command": command}, distribution_strategy="ParameterServerStrategy")
    cluster = config.cluster.model_copy(update={"job_dir": tmp_path / "job"})
    process = CaptureProcess(config.model_copy(update={"cluster": cluster}))
    try:
        while not select.select([reader], [], [], 0.05)[0]:
            process.keep_running()
        assert os.read(reader, 10) == b"here\n"
    finally:
        process.close()
    assert select.select([reader], [], [], SECONDS)[0]
    assert os.read(reader, 10) == b""  # nobody can
    os.close(reader)


def test_what_is_no_source_is_told():
    with pytest.raises(ModelError, match=r"returned list without read\(\) and state\(\)"):
        as_source([])
    with pytest.raises(ModelError, match="expected --reader_state=true, and only as --training_d"):
        adapt_reader(Counter(1))


def test_columns_of_a_source_may_be_lists(tmp_path):
    class Lists(Counter):
        def read(self):
            for number in (1, 2):
                yield Records(columns={"n": [number], "raw": [b"a\0"]})

    Capture(tmp_path, Lists(1)).run()
    found = records_of(chunks_in(tmp_path)[0]).columns
    assert (found["n"].dtype, found["raw"][0]) == (np.int64, b"a\0")


def test_text_in_records_is_captured_as_bytes(tmp_path):
    class Texts(Counter):
        def read(self):
            yield Records(values=["é", b"b"])

    Capture(tmp_path, Texts(1)).run()
    assert read_all(tmp_path) == ["é".encode(), b"b"]


UNEVEN = Records(columns={"a": np.arange(3), "b": np.arange(2)})


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (7, "yields int"),
        ([7], "yields list of int"),
        (None, "yields NoneType"),
        (Records(values=[7]), "yields list of int"),
        (UNEVEN, "yields columns of other lengths: {'a': 3, 'b': 2}"),
    ],
)
def test_items_that_are_no_records_are_told(tmp_path, item, words):
    class Wrong(Counter):
        def read(self):
            yield item

    with pytest.raises(ModelError, match=f"Wrong.read {words}"):
        Capture(tmp_path, Wrong(1)).run()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (object(), r"Wrong.state\(\) returned object, which JSON cannot"),
        ({"offsets": [{0: 7}]}, "a dict with the key 0, which JSON turns into text"),
        ({None: 7}, "a dict with the key None, which"),
    ],
)
def test_a_state_that_cannot_be_kept_is_told(tmp_path, state, words):
    class Wrong(Counter):
        def state(self):
            return state

    with pytest.raises(ModelError, match=words):
        Capture(tmp_path, Wrong(1)).run()


def config_of(data, **training):
    return JobConfig.model_validate(
        {
            "command": "train",
            "model": {"model_zoo": ".", "model_def": "m.forward"},
            "data": data,
            "training": training,
        }
    )


def test_a_job_captures_while_it_trains_or_before():
    ps = {"distribution_strategy": "ParameterServerStrategy", "num_epochs": 1}
    command = {"reader_command": "seq 3"}
    assert is_captured_as_it_trains(config_of(command, **ps))
    assert check_captured(config_of(command, **ps)) == []
    for other in ({"distribution_strategy": "Local"}, {"num_epochs": 2}, {"shuffle": "records"}):
        config = config_of(command, **(ps | other))
        assert not is_captured_as_it_trains(config)
        assert "is read to its end before training begins" in check_captured(config)[0]
    with pytest.raises(ConfigError, match="give --evaluation_steps"):
        check_captured(config_of(command | {"validation_data": "v"}, **ps))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"reader_command": "x", "training_data": "y"}, "expected no --training_data, found y"),
        ({"reader_command": "x", "reader_state": True}, "expected one of them"),
        ({"reader_framing": "framed", "training_data": "y"}, "needs --reader_command"),
        ({"reader_state": True}, "needs --training_data"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(data, words):
    with pytest.raises(ValueError, match=words):
        config_of(data)
