import gzip
import os
import stat
import struct

import pytest

from elasticdl import _core
from elasticdl.data.open import open_reader
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


def side_index(path, kind, num_records, offsets):
    """Write an index of a file, as anybody could."""
    stat = path.stat()
    head = b"\x89EDLIDX\n" + struct.pack("<HBBI", 1, kind, 0, 64)
    head += struct.pack("<QQQ", stat.st_size, stat.st_mtime_ns, num_records)
    content = head + struct.pack(f"<{len(offsets)}Q", *offsets)
    index = path.with_name(f"{path.name}.idx")
    index.write_bytes(content + struct.pack("<I", _core.crc32c(content)))
    return index


@pytest.fixture(params=["tfrecord", "lines"])
def indexed(request, tmp_path):
    """Return a file of 300 records of one size, that size, its format, and what opens it."""
    path = tmp_path / f"file.{request.param}"
    records = [b"record %04d" % number for number in range(300)]
    if request.param == "lines":
        path.write_bytes(b"\n".join([*records, b""]))
        return path, 12, 2, lambda: _core.LineReader(path)
    with _core.TFRecordWriter(path) as writer:
        writer.write_many(records)
    return path, 11 + 16, 1, lambda: _core.TFRecordReader(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_an_index_of_another_user_is_passed_over_with_a_line(indexed, caplog):
    path, each, kind, _ = indexed
    index = side_index(path, kind, 128, [0, 64 * each])
    os.chown(index, 65534, 65534)
    reader = open_reader(str(path), "format=text" if kind == 2 else "")
    assert [shard.end for shard in reader.shards()] == [300]
    assert f"{index} belongs to another user: it is passed over" in caplog.text
    assert index.stat().st_uid == 65534


@pytest.mark.parametrize(
    ("num_records", "groups"),
    [
        (128, [0, 64]),  # fewer than there are
        (320, [0, 64, 128, 192, 256]),  # more
        (300, [0, 65, 128, 192, 256]),  # another record
        (300, [0, 64.3, 128, 192, 256]),  # none begins there
        (236, [64, 128, 192, 256]),  # the first ones are missing
        (0, []),
    ],
)
def test_an_index_that_is_not_of_the_contents_is_found_out(indexed, num_records, groups):
    path, each, kind, opened = indexed
    index = side_index(path, kind, num_records, [int(group * each) for group in groups])
    reader = opened()
    try:
        ranges = range(0, reader.num_records, 64)
        found = [r for s in ranges for r in reader.read(s, min(reader.num_records, s + 64))]
    except DataError as error:
        assert f"{index} is of an earlier file, remove it" in str(error)  # noqa: PT017
        return
    assert found == [b"record %04d" % number for number in range(300)]


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


@pytest.mark.parametrize("at", [-3, 12])
def test_damage_in_a_compressed_file_is_told_with_its_name(path, tmp_path, monkeypatch, at):
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path / "cache"))
    content = path.read_bytes()
    packed = tmp_path / "packed.tfrecord"
    packed.write_bytes(gzip.compress(content[:at] + content[at + 1 :]))
    reader = TFRecordReader([str(packed)])
    with pytest.raises(DataError, match=rf"^{packed}: its copy .*-packed\.tfrecord: "):
        list(reader.read(reader.shards()[0]))


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
    path = tmp_path / "a.tfrecord"
    path.write_bytes(gzip.compress(b"x" * 100))
    with pytest.raises(DataError, match="compressed by gzip: unpack it first"):
        _core.TFRecordReader(path)
