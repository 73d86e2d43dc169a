import os
import stat

import pytest

from elasticdl import _core
from elasticdl.data.tfrecord import TFRecordReader, starts_like_tfrecord
from elasticdl.errors import DataError
from elasticdl.job import Shard

RECORDS = [f"record {number}".encode() * (number % 4) for number in range(300)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.tfrecord"
    with _core.TFRecordWriter(path) as writer:
        writer.write_many(RECORDS)
    return path


def test_the_index_is_kept_beside_the_file_and_used(path):
    assert _core.TFRecordReader(path).index_state == "written"
    assert path.with_name("file.tfrecord.idx").exists()
    assert _core.TFRecordReader(path).index_state == "loaded"


def test_a_changed_file_is_indexed_anew(path):
    _core.TFRecordReader(path)
    os.utime(path, ns=(0, 12345))
    assert _core.TFRecordReader(path).index_state == "written"


@pytest.mark.skipif(os.getuid() == 0, reason="root writes to read-only folders")
def test_a_read_only_folder_is_read_with_the_index_in_memory(path):
    path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        reader = _core.TFRecordReader(path)
    finally:
        path.parent.chmod(stat.S_IRWXU)
    assert reader.index_state == "in memory"
    assert reader.read(0, 300) == RECORDS


def test_a_folder_that_has_a_folder_in_the_index_place_is_read(path):
    path.with_name("file.tfrecord.idx").mkdir()
    reader = _core.TFRecordReader(path)
    assert reader.index_state == "in memory"
    assert reader.read(0, 300) == RECORDS


def test_a_torn_tail_names_offset_and_whole_records(path):
    end = path.stat().st_size
    os.truncate(path, end - 3)
    with pytest.raises(DataError, match=r"torn tail at offset \d+ .*299 whole records"):
        TFRecordReader([str(path)]).shards()
    assert _core.repair_tfrecord(path, dry_run=True) == _core.repair_tfrecord(path)
    assert _core.TFRecordReader(path).read(0, 299) == RECORDS[:299]


def test_a_damaged_record_names_its_number_and_offset(path):
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"damaged at offset \d+: record 299: its checksum"):
        list(TFRecordReader([str(path)]).read(Shard(str(path), 0, 300)))


def test_the_start_of_a_file_tells_whether_it_is_one(path):
    assert starts_like_tfrecord(path.read_bytes()[:12])
    assert not starts_like_tfrecord(b"index,text\r\n")
    assert not starts_like_tfrecord(b"")


@pytest.mark.keras
@pytest.mark.timeout(300)  # importing TensorFlow takes a minute on a loaded machine
def test_tensorflow_reads_ours_and_we_read_its(tmp_path, path):
    tf = pytest.importorskip("tensorflow")
    assert [r.numpy() for r in tf.data.TFRecordDataset(str(path))] == RECORDS
    theirs = tmp_path / "theirs.tfrecord"
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert theirs.read_bytes() == path.read_bytes()
    assert _core.TFRecordReader(theirs).read(0, 300) == RECORDS


def test_a_gzipped_file_says_what_to_do(tmp_path):
    import gzip

    path = tmp_path / "a.tfrecord"
    path.write_bytes(gzip.compress(b"x" * 100))
    with pytest.raises(DataError, match="compressed by gzip: unpack it first"):
        _core.TFRecordReader(path)
