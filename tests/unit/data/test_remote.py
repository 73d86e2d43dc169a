"""Files behind URLs: read by ranges, and again from where a server broke off or went silent."""

import gzip
import re
import resource
import threading
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

from elasticdl._core import RecordWriter, TFRecordWriter
from elasticdl.cli.main import run_command
from elasticdl.data import remote
from elasticdl.data.copies import readable
from elasticdl.data.open import open_reader
from elasticdl.errors import DataError, ElasticdlError
from elasticdl.job import Shard
from elasticdl.locations import reach
from tests.loopback_server import LoopbackServer


class FaultyServer:
    """Serves files by ranges. Each fault is for one GET: how many bytes to send, then what."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.faults: deque[tuple[str, int]] = deque()
        self.asked: list[tuple[int, int]] = []
        self.met: list[str] = []
        self.sent: list[int] = []  # bytes of answers that were taken whole
        self.knows_ranges = True
        self.time = ""  # Last-Modified of all files
        self.packs = False  # if it is asked by somebody who can unpack
        self.done = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(send=False)

            def do_GET(self):
                self.answer(send=True)

            def answer(self, send):
                name = self.path.partition("?")[0].lstrip("/")
                if name == "private":
                    return self.head(403, 0)
                if name not in outer.files:
                    return self.head(404, 0)
                content = outer.files[name]
                start, end = 0, len(content)
                if outer.packs and "gzip" in self.headers.get("Accept-Encoding", ""):
                    self.packed(gzip.compress(content), send)
                    return None
                asked = self.headers.get("Range") if outer.knows_ranges else None
                if asked:
                    first, _, last = asked.removeprefix("bytes=").partition("-")
                    start, end = int(first), min(len(content), int(last) + 1 if last else 2**62)
                place = (start, end, len(content)) if outer.knows_ranges else None
                self.head(206 if asked else 200, end - start, place)
                if not send:
                    return None
                outer.asked.append((start, end))
                kind, num_bytes = outer.faults.popleft() if outer.faults else ("", end - start)
                with suppress(OSError):
                    self.wfile.write(content[start : start + min(num_bytes, end - start)])
                    self.wfile.flush()
                    outer.sent.append(min(num_bytes, end - start))
                if kind:
                    outer.met.append(kind)
                    if kind == "stall":
                        outer.done.wait(60)
                    self.close_connection = True
                return None

            def packed(self, content, send):
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Encoding", "gzip")
                self.end_headers()
                if send:
                    self.wfile.write(content)

            def head(self, status, length, place=None):
                self.send_response(status)
                self.send_header("Content-Length", str(length))
                if outer.time:
                    self.send_header("Last-Modified", outer.time)
                if outer.knows_ranges:
                    self.send_header("Accept-Ranges", "bytes")
                if place:
                    self.send_header("Content-Range", f"bytes {place[0]}-{place[1] - 1}/{place[2]}")
                self.end_headers()

        self.server = LoopbackServer(Handler)

    def url(self, name):
        return f"http://127.0.0.1:{self.server.server_port}/{name}"

    def add(self, path):
        self.files[path.name] = path.read_bytes()
        return self.url(path.name)

    def close(self):
        self.done.set()
        self.server.close()


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path / "_cache"))
    monkeypatch.setattr(remote, "RANGE_BYTES", 100_000)
    monkeypatch.setattr(remote, "LEAST_BYTES", 1000)
    monkeypatch.setattr(remote, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(remote, "TIMEOUT_SECONDS", 0.5)
    remote.describe.cache_clear()
    reach.cache_clear()
    server = FaultyServer()
    yield server
    server.close()
    remote.describe.cache_clear()
    reach.cache_clear()


def text(num_lines=60_000):
    return "".join(f"{n},{'x' * (n % 7)}\n" for n in range(num_lines)).encode()


def read_lines(url, params=""):
    reader = open_reader(url, params)
    return [
        line for shard in reader.shards() for part in reader.read(shard) for line in part.values
    ]


@pytest.mark.parametrize("fault", [("break", 500), ("break", 0), ("stall", 700), ("stall", 0)])
def test_what_breaks_off_is_read_again_from_there(server, fault):
    server.files["x.csv"] = text()
    server.faults.extend([("", 10**9), fault, ("", 10**9), fault, fault])  # the format comes first

    lines = read_lines(server.url("x.csv"))

    assert b"\n".join(lines) + b"\n" == server.files["x.csv"]
    assert server.met == [fault[0]] * 3
    begins = [start for start, _ in server.asked[1:]]
    assert begins == sorted(begins)  # nothing that had come whole was asked for again


def test_a_server_that_always_breaks_off_is_given_up_with_the_place(server):
    server.files["x.csv"] = text()
    server.faults.extend([("", 10**9), ("", 10**9)] + [("break", 10)] * 100)
    with pytest.raises(DataError, match=r"x\.csv: at byte 100,000: cannot be read"):
        read_lines(server.url("x.csv"))
    assert server.met == ["break"] * remote.TRIES
    assert not [path for path in Path("_cache").iterdir() if path.is_file()]


def test_every_format_reads_as_from_the_file(server, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = [f"record {n}".encode() for n in range(5000)]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"\n".join(values)))
    for name, kind in (("a.recordio", RecordWriter), ("a.tfrecord", TFRecordWriter)):
        with kind(tmp_path / name) as writer:
            writer.write_many(values)
    pq.write_table(pa.table({"x": range(5000), "y": [1] * 5000}), tmp_path / "a.parquet")

    for name in ("a.csv.gz", "a.recordio", "a.tfrecord"):
        url = server.add(tmp_path / name)
        assert read_lines(url) == values
        assert open_reader(url).shards() == [Shard(url, 0, 5000)]
    url = server.add(tmp_path / "a.parquet")
    reader = open_reader(url, "columns=x")
    (shard,) = reader.shards()
    found = [x for part in reader.read(shard) for x in part.columns["x"]]
    assert found == list(range(5000))


def test_records_are_counted_and_columns_read_without_the_rest(server, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    import os

    with RecordWriter(tmp_path / "a.recordio") as writer:
        writer.write_many([os.urandom(10_000) for _ in range(100)])
    url = server.add(tmp_path / "a.recordio")
    assert open_reader(url).shards() == [Shard(url, 0, 100)]
    assert sum(end - start for start, end in server.asked) < 1000

    server.asked.clear()
    wide = {f"c{n}": [os.urandom(1000) for _ in range(100)] for n in range(20)}
    pq.write_table(pa.table(wide), tmp_path / "a.parquet", use_dictionary=False)
    url = server.add(tmp_path / "a.parquet")
    reader = open_reader(url, "columns=c7")
    (records,) = reader.read(reader.shards()[0])
    assert records.columns["c7"].tolist() == wide["c7"]
    assert sum(end - start for start, end in server.asked) < 800_000  # of 2 MB


@pytest.mark.parametrize("content", [b"1\n2\n3\n", b"3\n4\n"], ids=["longer", "as long"])
def test_a_copy_is_kept_until_the_file_changes(server, content):
    server.files["x.csv"], server.time = b"1\n2\n", "Sun, 01 Nov 2026 10:00:00 GMT"
    url = server.url("x.csv?signature=abc")
    assert read_lines(url) == [b"1", b"2"]
    asked = len(server.asked)
    assert read_lines(url) == [b"1", b"2"]
    assert len(server.asked) == asked + 1  # the format alone

    server.files["x.csv"], server.time = content, "Sun, 01 Nov 2026 11:00:00 GMT"
    remote.describe.cache_clear()  # as in another process

    assert read_lines(url) == content.splitlines()


@pytest.mark.timeout(60)
def test_a_copy_is_made_once_though_many_want_it_at_the_same_time(server, monkeypatch):
    server.files["x.csv"] = b"1\n2\n"
    url, ranges, made = server.url("x.csv"), remote.ranges, []
    everybody = threading.Barrier(4)

    def slow(of):
        made.append(of)
        everybody.wait()  # until the others are on their way
        yield from ranges(of)

    def want():
        if threading.current_thread() is not threads[0]:
            everybody.wait()
        found.append(readable(url))

    monkeypatch.setattr(remote, "ranges", slow)
    found, threads = [], []
    threads += [threading.Thread(target=want, daemon=True) for _ in range(4)]
    threads[0].start()
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made, len(set(found))) == ([url], 1)
    assert [path.name for path in Path("_cache").iterdir()] == [Path(found[0]).name]


def test_a_file_that_changes_while_it_is_copied_is_told(server, tmp_path, monkeypatch):
    server.files["x.csv"] = text()
    read_range = remote.read_range

    def read_and_change(*args):
        found = read_range(*args)
        server.files["x.csv"] = b"0" + text()
        return found

    monkeypatch.setattr(remote, "read_range", read_and_change)
    with pytest.raises(DataError, match=r"x\.csv: has changed while it was read, from 588,884 to"):
        read_lines(server.url("x.csv"))
    assert list((tmp_path / "_cache").iterdir()) == []
    assert read_lines(server.url("x.csv"))[0] == b"00,"  # the new one is read anew


def test_servers_of_one_name_may_have_marks_of_their_own(monkeypatch):
    marks = iter("bcad")
    file = remote.RemoteFile("https://host/x", 3, "a")

    class Driver:
        def info(self, path):
            return {"size": 3, "ETag": next(marks)}

    monkeypatch.setattr(remote, "_reach", lambda url: (Driver(), url))
    remote.require_same(file)
    marks = iter("bbbb")
    with pytest.raises(DataError, match=r"x: has changed while it was read, from version a to b"):
        remote.require_same(file)


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_a_copy_for_which_there_is_no_room_is_told(server, tmp_path, name):
    content = b"1\n" * 100_000
    server.files |= {"x.csv": content, "x.csv.gz": gzip.compress(content)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(DataError, match=rf"{name}: its copy cannot be written to .*_cache: "):
            read_lines(server.url(name))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(list((tmp_path / "_cache").iterdir())) == name.count(".gz")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.csv", "none.csv: no such file"),
        ("private", "private: the server refuses without the right credentials"),
    ],
)
def test_what_is_not_given_is_told(server, name, said):
    with pytest.raises(ElasticdlError, match=re.escape(said)):
        open_reader(server.url(name)).shards()


def test_a_server_without_ranges_is_read_where_files_are_small_and_told_else(server):
    server.knows_ranges = False
    server.files |= {"small.csv": b"1\n2\n", "large.csv": b"1\n" * (16 << 20)}
    assert read_lines(server.url("small.csv")) == [b"1", b"2"]
    num_asked = len(server.asked)

    with pytest.raises(
        ElasticdlError, match=re.escape("the server does not send ranges of a file")
    ):
        open_reader(server.url("large.csv")).shards()
    assert len(server.asked) <= num_asked + 3  # and is not asked again
    assert max(server.sent) < 100  # 32 MiB were not read into memory


def test_a_server_that_packs_what_it_sends_is_asked_not_to(server):
    server.packs = True
    server.files["x.csv"] = text()
    assert read_lines(server.url("x.csv"))[-1] == b"59999,xx"


def test_what_a_copy_of_a_file_lacks_is_told_of_its_url(server):
    server.files |= {"cut.csv.gz": gzip.compress(b"1\n2\n")[:-4], "empty.csv.gz": b""}
    for name, said in (("cut.csv.gz", "cannot be unpacked"), ("empty.csv.gz", "is empty")):
        with pytest.raises(ElasticdlError, match=re.escape(f"{server.url(name)}: {said}")):
            open_reader(server.url(name)).shards()


def test_a_driver_that_connects_at_once_is_told(monkeypatch):
    def refused(*_):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(remote, "reach", refused)
    with pytest.raises(
        ElasticdlError, match=re.escape("ftp://nowhere/x.csv: cannot be reached: ConnectionRefused")
    ):
        open_reader("ftp://nowhere/x.csv").shards()


def test_a_url_without_a_driver_names_what_to_install():
    with pytest.raises(ElasticdlError, match=re.escape("nothing://x/y.csv: ")):
        open_reader("nothing://x/y.csv").shards()


def test_raw_lines_are_converted_and_files_inspected_from_a_url(server, capsys):
    pytest.importorskip("elasticdl.packages.data_tools")
    pytest.importorskip("pyarrow")
    line = "\t".join(["1", *["5"] * 13, *["0123abcd"] * 26])
    server.files["train.txt"] = f"{line}\n".encode() * 3000
    server.faults.extend([("break", 5), ("", 10**9), ("break", 50_000)])
    assert run_command(["data", "convert", server.url("train.txt"), "out", "--from=criteo"]) == 0
    assert "3,000 records" in capsys.readouterr().out
    assert server.met == ["break", "break"]
    server.files["part.recordio"] = Path("out/part-00000.recordio").read_bytes()
    assert run_command(["data", "inspect", server.url("part.recordio")]) == 0
    assert "3,000" in capsys.readouterr().out


def test_folders_and_globs_of_a_store_are_listed():
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("data/b.csv", "data/a.csv", "data/_SUCCESS", "data/more/c.csv"):
        memory.pipe_file(f"/{name}", b"1\n")
    from elasticdl.data.paths import expand_paths

    assert expand_paths("memory://data") == ["memory://data/a.csv", "memory://data/b.csv"]
    assert expand_paths("memory://data/*/*.csv") == ["memory://data/more/c.csv"]
    assert expand_paths("memory://data/*") == ["memory://data/a.csv", "memory://data/b.csv"]
    everything = [f"memory://data/{name}.csv" for name in ("a", "b", "more/c")]
    assert expand_paths("memory://data/**") == expand_paths("memory://data/**/*") == everything
    assert expand_paths("memory://data/a.csv") == ["memory://data/a.csv"]
    memory.pipe_file("/data/more/_temporary/0/d.csv", b"1\n")
    assert expand_paths("memory://data/**/*.csv") == everything
    memory.pipe_file("/done/all/_SUCCESS", b"")
    for place, said in (
        ("data/none*", "no such file or folder"),
        ("done", "no files: only folders; give memory://done/** for"),
        ("done/all", "no data files; names that begin with _"),
    ):
        with pytest.raises(DataError, match=re.escape(f"memory://{place}: {said}")):
            open_reader(f"memory://{place}")


def test_a_server_is_asked_about_several_files_at_a_time(tmp_path, monkeypatch):
    import fsspec

    with RecordWriter(tmp_path / "a.rio") as writer:
        writer.write(b"1")
    for name in ("a.rio", "b.rio"):
        content = (tmp_path / "a.rio").read_bytes()
        fsspec.filesystem("memory").pipe_file(f"/several/{name}", content)
    both, read_range = threading.Barrier(2, timeout=30), remote.read_range

    def read_beside_another(*given):
        both.wait()
        return read_range(*given)

    monkeypatch.setattr(remote, "read_range", read_beside_another)
    reader = open_reader("memory://several")
    assert [shard.num_records for shard in reader.shards()] == [1, 1]
