"""Data in a bucket, with moto's server of S3 on this machine."""

import re
import secrets

import pytest

from elasticdl._core import RecordWriter
from elasticdl.data import remote
from elasticdl.data.open import open_reader
from elasticdl.errors import ElasticdlError
from elasticdl.job import Shard
from elasticdl.locations import reach

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """The address of a new bucket, and the file system that has it."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path / "_cache"))
    monkeypatch.setattr(remote, "_FIRST_WAIT_SECONDS", 0.01)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    remote.describe.cache_clear()
    reach.cache_clear()
    files = s3fs.S3FileSystem(use_listings_cache=False)
    name = f"data-{secrets.token_hex(4)}"  # what is in one server is in all of this process
    files.mkdir(name)
    yield f"s3://{name}", files
    remote.describe.cache_clear()
    reach.cache_clear()
    server.stop()


def test_folders_and_globs_of_a_bucket_are_read(bucket, tmp_path):
    url, files = bucket
    values = [f"record {n}".encode() for n in range(3000)]
    for name, part in (("a", values[:1000]), ("b", values[1000:])):
        with RecordWriter(tmp_path / f"{name}.recordio") as writer:
            writer.write_many(part)
        files.put_file(str(tmp_path / f"{name}.recordio"), f"{url}/train/{name}.recordio")
    # Consoles and other writers mark folders by empty files.
    for mark in ("train/", "train/more/"):
        files.call_s3("put_object", Bucket=url.removeprefix("s3://"), Key=mark, Body=b"")
    for place in ("train", "train/", "train/*", "train/**", "train/*.recordio"):
        reader = open_reader(f"{url}/{place}")
        assert reader.shards() == [
            Shard(f"{url}/train/a.recordio", 0, 1000),
            Shard(f"{url}/train/b.recordio", 0, 2000),
        ]
        found = [
            value
            for shard in reader.shards()
            for part in reader.read(shard)
            for value in part.values
        ]
        assert found == values


def test_parquet_in_a_bucket_is_read_by_columns(bucket):
    url, files = bucket
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    with files.open(f"{url}/x.parquet", "wb") as file:
        pq.write_table(pa.table({"x": range(10_000), "y": ["text"] * 10_000}), file)
    reader = open_reader(f"{url}/x.parquet", "columns=x")
    (shard,) = reader.shards()
    found = [x for part in reader.read(shard) for x in part.columns["x"]]
    assert found == list(range(10_000))


def test_what_is_not_there_and_what_lacks_credentials_are_told(bucket, monkeypatch):
    url, files = bucket
    with pytest.raises(ElasticdlError, match=re.escape(f"{url}/none: no such file or folder")):
        open_reader(f"{url}/none").shards()

    files.pipe_file(f"{url}/x.csv", b"1\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    files.clear_instance_cache()
    reach.cache_clear()
    with pytest.raises(
        ElasticdlError, match=re.escape(f"{url}/x.csv: the server refuses without the right")
    ):
        open_reader(f"{url}/x.csv").shards()
