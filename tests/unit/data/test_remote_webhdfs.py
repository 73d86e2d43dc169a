"""Data on HDFS behind WebHDFS, by a stand-in for its servers (tests/webhdfs_server.py)."""

import re

import pytest

pytest.importorskip("requests")

from elasticdl import locations
from elasticdl._core import RecordWriter
from elasticdl.data import remote
from elasticdl.data.open import open_reader
from elasticdl.errors import ElasticdlError
from elasticdl.job import Shard
from elasticdl.locations import reach


@pytest.fixture
def hdfs(webhdfs, tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path / "_cache"))
    monkeypatch.setattr(remote, "RANGE_BYTES", 100_000)
    monkeypatch.setattr(remote, "LEAST_BYTES", 1000)
    monkeypatch.setattr(remote, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(locations, "SILENCE_SECONDS", 0.5)
    yield webhdfs
    remote.describe.cache_clear()
    reach.cache_clear()


def test_folders_and_globs_of_hdfs_are_read(hdfs, tmp_path):
    (hdfs.folder / "train").mkdir()
    values = [f"record {n}".encode() for n in range(3000)]
    for name, part in (("a", values[:1000]), ("b", values[1000:])):
        with RecordWriter(hdfs.folder / "train" / f"{name}.recordio") as writer:
            writer.write_many(part)
    for place in ("train", "train/", "train/*.recordio"):
        reader = open_reader(f"{hdfs.url}/{place}")
        assert reader.shards() == [
            Shard(f"{hdfs.url}/train/a.recordio", 0, 1000),
            Shard(f"{hdfs.url}/train/b.recordio", 0, 2000),
        ]
        chunks = [part for shard in reader.shards() for part in reader.read(shard)]
        assert [value for part in chunks for value in part.values] == values


@pytest.mark.parametrize("fault", [("break", 500), ("stall", 700)])
def test_what_breaks_off_or_stalls_is_read_again_from_there(hdfs, fault):
    text = "".join(f"{n},{'x' * (n % 7)}\n" for n in range(60_000)).encode()
    (hdfs.folder / "x.csv").write_bytes(text)
    hdfs.faults.extend([("", 0), fault, ("", 0), fault, fault])

    (shard,) = (reader := open_reader(f"{hdfs.url}/x.csv")).shards()
    lines = [line for part in reader.read(shard) for line in part.values]

    assert b"\n".join(lines) + b"\n" == text
    assert hdfs.met == [fault[0]] * 3
    assert sum(end - start for start, end in hdfs.asked) < 1.6 * len(text)  # and nothing ahead


def test_what_is_not_there_and_what_may_not_be_read_are_told(hdfs):
    with pytest.raises(ElasticdlError, match=re.escape(f"{hdfs.url}/none: no such file")):
        open_reader(f"{hdfs.url}/none").shards()
    with pytest.raises(
        ElasticdlError, match=re.escape("the server refuses without the right credentials")
    ):
        open_reader(f"{hdfs.url}/private/x.csv").shards()
