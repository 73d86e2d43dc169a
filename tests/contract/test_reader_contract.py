"""What every data reader promises (elasticdl/data/base.py), checked of each with the same rows."""

import csv
import gzip
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter, TFRecordWriter
from elasticdl.data.base import DataReader, Metadata
from elasticdl.data.open import open_reader
from elasticdl.job import Shard

COUNTS = (10_000, 1, 777)  # records of each file: several chunks, one record, less than a chunk
START, END = 4090, 4110  # spans the end of a reader's chunk


def row(file: int, number: int) -> tuple[int, str]:
    return file * 1_000_000 + number, "é" * (number % 5)


def line(file: int, number: int) -> bytes:
    index, text = row(file, number)
    return f"{index},{text}".encode()


@dataclass(frozen=True)
class Source:
    """Files with the same rows in one format, and how their reader is made."""

    open: Callable[[], DataReader]
    names: tuple[str, ...]


def write_recordio(path: Path, lines: list[bytes], codec: str) -> None:
    with RecordWriter(path, codec=codec, block_bytes=4000) as writer:
        writer.write_many(lines)


def write_tfrecord(path: Path, lines: list[bytes]) -> None:
    with TFRecordWriter(path) as writer:
        writer.write_many(lines)


def write_csv(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"index,text\r\n" + b"".join(one + b"\r\n" for one in lines))


def write_parquet(path: Path, lines: list[bytes]) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = list(csv.reader(one.decode() for one in lines))
    table = arrow.table({"index": [int(one[0]) for one in rows], "text": [one[1] for one in rows]})
    parquet.write_table(table, path, row_group_size=3000)


def write_compressed(path: Path, lines: list[bytes]) -> None:
    write_csv(path, lines)
    raw = path.read_bytes()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(raw))
    else:
        arrow = pytest.importorskip("pyarrow")
        path.write_bytes(arrow.compress(raw, "zstd", asbytes=True))


def write_libsvm(path: Path, lines: list[bytes]) -> None:
    """The text is as many features as it has letters."""
    rows = csv.reader(one.decode() for one in lines)
    path.write_text(
        "".join(
            f"{index} {' '.join(f'{n}:{n}.5' for n in range(len(text)))} # why\n"
            for index, text in rows
        )
    )


def text_of_features(ids, values) -> str:
    assert values.tolist() == [n + 0.5 for n in ids.tolist()]
    return "é" * len(ids)


FILES: dict[str, tuple[str, Callable[[Path, list[bytes]], None], str]] = {
    "recordio": (".recordio", lambda path, lines: write_recordio(path, lines, "none"), ""),
    "recordio-zstd": (".rio", lambda path, lines: write_recordio(path, lines, "zstd"), ""),
    "recordio-deflate": (".rio", lambda path, lines: write_recordio(path, lines, "deflate"), ""),
    "tfrecord": (".tfrecord", write_tfrecord, ""),
    "csv": (".csv", write_csv, "skip_header=true"),
    "csv-quoted": (".csv", write_csv, "skip_header=true;quoted_newlines=true"),
    "text": (".txt", lambda path, lines: path.write_bytes(b"\n".join(lines)), ""),
    "parquet": (".parquet", write_parquet, ""),
    "csv-gzip": (".csv.gz", write_compressed, "skip_header=true"),
    "csv-zstd": (".csv.zst", write_compressed, "skip_header=true"),
    "libsvm": (".libsvm", write_libsvm, ""),
}


def open_database(folder: Path, ending: ExitStack) -> Source:
    """Tables whose keys have holes, and are not in the order of the rows."""
    pytest.importorskip("sqlalchemy")
    with closing(sqlite3.connect(folder / "data.db")) as database, database:
        for file, count in enumerate(COUNTS):
            database.execute(f"CREATE TABLE t{file} (id TEXT PRIMARY KEY, [index] INT, text TEXT)")
            rows = [(f"{3 * number:08}", *row(file, number)) for number in range(count)]
            database.executemany(f"INSERT INTO t{file} VALUES (?, ?, ?)", rows[::-1])
    url = f"sqlite:///{folder}/data.db"
    params = "table=t0,t1,t2;columns=index,text"
    names = tuple(shard.name for shard in open_reader(url, params).shards())
    return Source(lambda: open_reader(url, params), names)


def open_maxcompute(folder: Path, ending: ExitStack) -> Source:
    """Tables of a stand-in for MaxCompute's servers."""
    pytest.importorskip("odps")
    arrow = pytest.importorskip("pyarrow")
    from tests.packages.readers.maxcompute_server import MaxComputeServer

    server = MaxComputeServer()
    ending.callback(server.close)
    for file, count in enumerate(COUNTS):
        rows = [row(file, number) for number in range(count)]
        names = ("index", "text")
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        server.tables[f"t{file}"] = arrow.table(columns)
    names = tuple(f"odps://project/tables/t{file}" for file in range(len(COUNTS)))
    return Source(lambda: open_reader(",".join(names), server.params), names)


def open_webhdfs(kind: str, folder: Path, ending: ExitStack) -> Source:
    """Files of a kind on a stand-in for HDFS."""
    pytest.importorskip("requests")
    from tests.webhdfs_server import WebHdfsServer

    server = WebHdfsServer(folder / "hdfs")
    ending.callback(server.close)
    (folder / "hdfs" / "data").mkdir(parents=True)
    suffix, write, params = FILES[kind]
    names = tuple(f"part-{file}{suffix}" for file in range(len(COUNTS)))
    for file, (name, count) in enumerate(zip(names, COUNTS, strict=True)):
        lines = [line(file, number) for number in range(count)]
        write(folder / "hdfs" / "data" / name, lines)
    place = f"{server.url}/data"
    return Source(lambda: open_reader(place, params), tuple(f"{place}/{name}" for name in names))


def open_gs(kind: str, folder: Path, ending: ExitStack, url: str) -> Source:
    """Files of a kind in an emulator of Google's store."""
    import fsspec

    suffix, write, params = FILES[kind]
    names = tuple(f"part-{file}{suffix}" for file in range(len(COUNTS)))
    for file, (name, count) in enumerate(zip(names, COUNTS, strict=True)):
        write(folder / name, [line(file, number) for number in range(count)])
        fsspec.filesystem("gs").put_file(str(folder / name), f"{url}/{name}")
    return Source(lambda: open_reader(url, params), tuple(f"{url}/{name}" for name in names))


IN_BUCKETS = {
    "gs-recordio": partial(open_gs, "recordio-zstd"),
    "gs-parquet": partial(open_gs, "parquet"),
}
PLACES = {
    "sql": open_database,
    "maxcompute": open_maxcompute,
    "webhdfs-recordio": partial(open_webhdfs, "recordio-zstd"),
    "webhdfs-parquet": partial(open_webhdfs, "parquet"),
    "webhdfs-csv-gzip": partial(open_webhdfs, "csv-gzip"),
}


class ReaderOfPresentStyle:
    """As a model file's `custom_data_reader` may return it; reads one record at a time."""

    def __init__(self, data_path: str, prefix: str) -> None:
        self._folder, self._prefix = Path(data_path), prefix

    def shards(self) -> list[Shard]:
        return [Shard(f"{self._prefix}{file}", 0, count) for file, count in enumerate(COUNTS)]

    def read(self, shard: Shard):
        from elasticdl.data.base import Records

        file = int(shard.name.removeprefix(self._prefix))
        for number in range(shard.start, shard.end):
            yield Records(number, values=[line(file, number)])


class ReaderOfOlderStyle:
    """With the methods that ElasticDL's readers had."""

    def __init__(self, data_origin: str) -> None:
        self.metadata = Metadata()

    def create_shards(self) -> dict[str, tuple[int, int]]:
        return {f"shard-{file}": (0, count) for file, count in enumerate(COUNTS)}

    def read_records(self, task):
        file = int(task.shard_name.removeprefix("shard-"))
        assert (task.shard.start, task.shard.end) == (task.start, task.end)
        for number in range(task.start, task.end):
            yield line(file, number)


class ReaderOfRows:
    """In the older style, with records that are rows, as from a table."""

    metadata = Metadata(("index", "text"), {"index": np.dtype(np.int64)})

    def create_shards(self):
        return {f"shard-{file}": (0, count) for file, count in enumerate(COUNTS)}

    def read_records(self, task):
        file = int(task.shard.name.removeprefix("shard-"))
        return iter([list(row(file, number)) for number in range(task.start, task.end)])


CUSTOM: dict[str, tuple[Callable[..., object], str]] = {
    "custom": (ReaderOfPresentStyle, "prefix=file-"),
    "custom-older": (ReaderOfOlderStyle, ""),
    "custom-rows": (lambda data_path: ReaderOfRows(), ""),
}


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """What is to be ended with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Source:
    """Images, whose bytes are the text, and a letter, for no image is empty; made once."""
    folder = tmp_path_factory.mktemp("images")
    for file, count in enumerate(COUNTS):
        (folder / f"class-{file}").mkdir()
        for number in range(count):
            index, text = row(file, number)
            (folder / f"class-{file}/{index:08}.jpg").write_bytes(b"x" + text.encode())
    names = tuple(str(folder / f"class-{file}") for file in range(len(COUNTS)))
    return Source(lambda: open_reader(str(folder)), names)


@pytest.fixture(params=[*FILES, "images", *PLACES, *IN_BUCKETS, *CUSTOM])
def source(request, tmp_path, monkeypatch, ending) -> Source:
    if request.param == "images":
        return request.getfixturevalue("images")
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path / "_cache"))
    if request.param in PLACES:
        return PLACES[request.param](tmp_path, ending)
    if request.param in IN_BUCKETS:
        return IN_BUCKETS[request.param](tmp_path, ending, request.getfixturevalue("gs"))
    if request.param in CUSTOM:
        function, params = CUSTOM[request.param]
        reader = open_reader(str(tmp_path), params, function)
        names = tuple(shard.name for shard in reader.shards())
        return Source(lambda: open_reader(str(tmp_path), params, function), names)
    suffix, write, params = FILES[request.param]
    paths = [tmp_path / f"part-{file}{suffix}" for file in range(len(COUNTS))]
    for file, (path, count) in enumerate(zip(paths, COUNTS, strict=True)):
        write(path, [line(file, number) for number in range(count)])
    return Source(lambda: open_reader(str(tmp_path), params), tuple(map(str, paths)))


def rows_of(columns):
    """The rows of a chunk, however its format has them."""
    if "image" in columns:
        indexes = [int(Path(path).stem) for path in columns["path"]]
        assert columns["label"].tolist() == [index // 1_000_000 for index in indexes]
        return [(n, image.decode()[1:]) for n, image in zip(indexes, columns["image"], strict=True)]
    if "ids" in columns:
        features = map(text_of_features, columns["ids"], columns["values"])
        return list(zip(map(int, columns["label"]), features, strict=True))
    return list(zip(columns["index"], columns["text"], strict=True))


def read_lines(reader: DataReader, shard: Shard) -> list[bytes]:
    """All records of a shard as lines; checks that chunks join without gaps."""
    lines: list[bytes] = []
    for records in reader.read(shard):
        assert len(records) > 0
        assert bool(records.values) != bool(records.columns)
        assert records.start == shard.start + len(lines)
        if records.columns:
            assert all(len(column) == len(records) for column in records.columns.values())
            lines += [f"{index},{text}".encode() for index, text in rows_of(records.columns)]
        else:
            lines += records.values
    return lines


def expected(file: int, start: int, end: int) -> list[bytes]:
    return [line(file, number) for number in range(start, end)]


def test_shards_cover_every_record_of_every_file(source):
    shards = source.open().shards()
    assert list(dict.fromkeys(shard.name for shard in shards)) == list(source.names)
    for name, count in zip(source.names, COUNTS, strict=True):
        ranges = [(shard.start, shard.end) for shard in shards if shard.name == name]
        ends = [end for _, end in ranges]
        assert ranges == list(zip([0, *ends], ends, strict=False))  # they follow each other
        assert ends[-1] == count


def test_a_shard_reads_as_its_records_in_order(source):
    reader = source.open()
    for shard in reader.shards():
        file = source.names.index(shard.name)
        assert read_lines(reader, shard) == expected(file, shard.start, shard.end)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (0, 1),
        (0, 64),
        (1, 2),
        (63, 65),
        (START, END),
        (2999, 3001),
        (9_000, 10_000),
        (9_999, 10_000),
    ],
)
def test_any_range_equals_the_slice(source, start, end):
    lines = read_lines(source.open(), Shard(source.names[0], start, end))
    assert lines == expected(0, start, end)


def test_an_empty_range_gives_no_records(source):
    reader = source.open()
    for at in (0, 5000, COUNTS[0]):
        assert read_lines(reader, Shard(source.names[0], at, at)) == []


def test_two_readers_agree(source):
    one, other = source.open(), source.open()
    assert one.shards() == other.shards()
    assert one.metadata == other.metadata
    shard = Shard(source.names[2], 100, 700)
    assert read_lines(one, shard) == read_lines(other, shard)


def test_reads_of_one_reader_may_alternate(source):
    reader = source.open()
    first = reader.read(Shard(source.names[0], 0, 5000))
    second = reader.read(Shard(source.names[2], 0, 500))
    next(first)
    assert next(second).start == 0
    assert read_lines(reader, Shard(source.names[0], START, END)) == expected(0, START, END)
    assert sum(len(records) for records in second) < 500
    assert next(first).start > 0


def test_metadata_names_the_columns_that_the_format_knows(source, request):
    metadata = source.open().metadata
    format_name = request.node.callspec.params["source"]
    format_name = format_name.removeprefix("webhdfs-").removeprefix("gs-")
    has_columns = format_name.startswith(("csv", "parquet", "custom-rows", "sql", "maxcompute"))
    names = {"images": ("image", "label", "path"), "libsvm": ("label", "ids", "values")}
    expected_names = names.get(format_name, ("index", "text") if has_columns else ())
    assert metadata.column_names == expected_names
