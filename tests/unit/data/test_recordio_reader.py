import logging
import os
import subprocess
import sys
import threading

import pytest

from elasticdl import _core
from elasticdl.data.recordio import RecordIOReader
from elasticdl.errors import DataError
from elasticdl.job import Shard

RECORDS = [f"record {number}".encode() for number in range(1000)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.recordio"
    with _core.RecordWriter(path, codec="zstd", block_bytes=1000) as writer:
        writer.write_many(RECORDS)
    return path


def names(folder):
    return sorted(os.listdir(folder))


def test_an_exception_leaves_no_new_file(tmp_path):
    with pytest.raises(RuntimeError), _core.RecordWriter(tmp_path / "a.rio") as writer:  # noqa: PT012 - the writer is what is tested
        writer.write(b"x")
        raise RuntimeError
    with pytest.raises(RuntimeError), _core.TFRecordWriter(tmp_path / "a.tfrecord") as writer:  # noqa: PT012 - the writer is what is tested
        writer.write(b"x")
        raise RuntimeError
    assert names(tmp_path) == []


def test_an_exception_while_appending_restores_the_file(path):
    before = path.read_bytes()
    with pytest.raises(RuntimeError), _core.RecordWriter(path, append=True) as writer:  # noqa: PT012 - the writer is what is tested
        writer.write_many([bytes(100_000)] * 20)
        raise RuntimeError
    assert path.read_bytes() == before


def test_a_closed_writer_says_so(tmp_path):
    writer = _core.RecordWriter(tmp_path / "a.rio")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"x")


def test_an_unknown_codec_is_refused_with_those_that_exist(tmp_path):
    with pytest.raises(ValueError, match='"lz4": expected one of none, zstd, deflate'):
        _core.RecordWriter(tmp_path / "a.rio", codec="lz4")
    assert names(tmp_path) == []


def test_a_record_that_is_not_bytes_is_refused(tmp_path):
    with _core.RecordWriter(tmp_path / "a.rio") as writer:
        with pytest.raises(TypeError):
            writer.write("text")
        with pytest.raises(TypeError):
            writer.write_many([b"good", "bad"])
    assert _core.RecordReader(tmp_path / "a.rio").read(0, 1) == [b"good"]


def test_blocks_tell_what_the_file_holds(path):
    blocks = _core.RecordReader(path).blocks()
    assert sum(block.num_records for block in blocks) == 1000
    assert [block.first_record for block in blocks] == sorted(b.first_record for b in blocks)
    assert {block.codec for block in blocks} == {"zstd"}
    assert all(block.stored_bytes < block.raw_bytes for block in blocks)


def test_a_torn_tail_is_an_error_that_names_file_offset_and_whole_records(path):
    last = _core.RecordReader(path).blocks()[-1]
    os.truncate(path, last.offset + 50)
    with pytest.raises(DataError) as caught:
        RecordIOReader([str(path)]).shards()
    message = str(caught.value)
    assert str(path) in message
    assert f"torn tail at offset {last.offset}" in message
    assert f"{last.first_record} whole records" in message

    reader = _core.RecordReader(path, allow_torn=True)
    assert reader.torn[0] == last.offset
    assert reader.read(0, reader.num_records) == RECORDS[: last.first_record]


def test_a_file_that_was_never_closed_is_read_with_a_warning(path, caplog):
    last = _core.RecordReader(path).blocks()[-1]
    os.truncate(path, last.offset + 36 + last.stored_bytes)
    with caplog.at_level(logging.WARNING):
        assert RecordIOReader([str(path)]).shards() == [Shard(str(path), 0, 1000)]
    assert "its writer has not closed it" in caplog.text


def test_a_foreign_file_is_named_as_such(tmp_path):
    path = tmp_path / "a.recordio"
    path.write_bytes(b"PAR1....PAR1")
    with pytest.raises(DataError, match=r"a\.recordio: not a RecordIO file \(magic 50 41 52 31"):
        RecordIOReader([str(path)]).shards()


def test_a_missing_file_is_a_data_error(tmp_path):
    for kind in (_core.RecordReader, _core.TFRecordReader, _core.LineReader):
        with pytest.raises(DataError, match="none: cannot open"):
            kind(tmp_path / "none")


def test_a_damaged_block_names_its_records(path):
    block = _core.RecordReader(path).blocks()[2]
    data = bytearray(path.read_bytes())
    data[block.offset + 40] ^= 1
    path.write_bytes(data)
    reader = RecordIOReader([str(path)])
    shard = reader.shards()[0]
    with pytest.raises(DataError, match=rf"damaged at offset {block.offset}: block of records"):
        list(reader.read(shard))


def test_a_shard_of_another_file_is_refused(path):
    with pytest.raises(DataError, match="not one of the 1 files"):
        list(RecordIOReader([str(path)]).read(Shard("other", 0, 1)))


def test_files_without_records_have_no_shard(path, tmp_path):
    empty = tmp_path / "empty.recordio"
    _core.RecordWriter(empty).close()
    assert len(RecordIOReader([str(empty), str(path)]).shards()) == 1


def test_chunks_of_large_records_stay_small(tmp_path):
    path = tmp_path / "large.recordio"
    with _core.RecordWriter(path) as writer:
        writer.write_many([bytes(1 << 20)] * 40)
    chunks = list(RecordIOReader([str(path)]).read(Shard(str(path), 0, 40)))
    assert sum(map(len, chunks)) == 40
    assert max(map(len, chunks)) <= 9


def test_threads_read_one_file_at_once(path):
    reader = _core.RecordReader(path)
    failures = []

    def read(seed):
        for turn in range(100):
            start = (seed * 37 + turn * 101) % 900
            if reader.read(start, start + 100) != RECORDS[start : start + 100]:
                failures.append(start)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


APPEND_AND_DIE = """
import os, sys
from elasticdl._core import RecordWriter
writer = RecordWriter(sys.argv[1], append=True, block_bytes=1000)
writer.write_many([b"flushed"] * 10)
writer.flush()
writer.write_many([b"more" * 50] * 100)
os.kill(os.getpid(), 9)
"""


def test_a_killed_appender_leaves_all_that_was_there_and_what_it_flushed(path):
    killed = subprocess.run([sys.executable, "-c", APPEND_AND_DIE, str(path)], timeout=200)
    assert killed.returncode == -9
    _core.repair_recordio(path)
    reader = _core.RecordReader(path)
    assert reader.index_state == "stored"
    assert reader.read(0, 1010) == RECORDS + [b"flushed"] * 10
    with _core.RecordWriter(path, append=True) as writer:  # the lock died with its owner
        writer.write(b"again")
    reader = _core.RecordReader(path)
    assert reader.read(reader.num_records - 1, reader.num_records) == [b"again"]


def test_a_full_disk_leaves_no_file(tmp_path):
    resource = pytest.importorskip("resource")
    code = (
        "import resource, signal, sys\n"
        "from elasticdl._core import RecordWriter\n"
        "from elasticdl.errors import DataError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    with RecordWriter(sys.argv[1]) as writer:\n"
        "        writer.write_many([bytes(1000)] * 1000)\n"
        "except DataError as error:\n"
        "    print(error)\n"
    )
    assert resource is not None
    path = tmp_path / "a.rio"
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=200
    )
    assert f"{path}: cannot write: File too large" in result.stdout
    assert names(tmp_path) == []
