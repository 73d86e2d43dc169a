import bz2
import gzip
import lzma
import re
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter, TFRecordWriter
from elasticdl.data.base import Metadata, Records
from elasticdl.data.custom import adapt_reader
from elasticdl.data.open import open_reader
from elasticdl.data.parquet import ParquetReader
from elasticdl.data.recordio import RecordIOReader
from elasticdl.data.text import TextReader
from elasticdl.data.tfrecord import TFRecordReader
from elasticdl.errors import ConfigError, DataError, ModelError
from elasticdl.job import Shard


def recordio(path):
    with RecordWriter(path) as writer:
        writer.write(b"x")


def tfrecord(path):
    with TFRecordWriter(path) as writer:
        writer.write(b"x")


def parquet(path):
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), path)


def text(path):
    path.write_text("1,2\n")


@pytest.mark.parametrize(
    ("name", "write", "params", "kind"),
    [
        ("a.recordio", recordio, "", RecordIOReader),
        ("a.rio", recordio, "", RecordIOReader),
        ("a.data", recordio, "", RecordIOReader),
        ("a.tfrecord", tfrecord, "", TFRecordReader),
        ("a.tfrecord-00000-of-00002", tfrecord, "", TFRecordReader),
        ("part-00000", tfrecord, "", TFRecordReader),
        ("a.parquet", parquet, "", ParquetReader),
        ("part-00000", parquet, "", ParquetReader),
        ("a.CSV", text, "", TextReader),
        ("a.txt", text, "", TextReader),
        ("part-00000", text, "format=csv", TextReader),
    ],
)
def test_the_format_is_told_by_first_bytes_extension_or_setting(
    tmp_path, name, write, params, kind
):
    write(tmp_path / name)
    reader = open_reader(str(tmp_path / name), params)
    assert type(reader) is kind
    assert [shard.num_records for shard in reader.shards()] == [1]


def test_an_unknown_format_says_how_to_name_it(tmp_path):
    text(tmp_path / "part-00000")
    with pytest.raises(DataError, match=r"no known format .*--data_reader_params=format="):
        open_reader(str(tmp_path))
    with pytest.raises(ConfigError, match="format=xml: expected one of recordio, tfrecord"):
        open_reader(str(tmp_path), "format=xml")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.data", gzip.compress(b"1,2\n"), "gzip, and its name does not"),
        ("a.csv.bz2", bz2.compress(b"1,2\n"), "bzip2; unpack it"),
        ("a.csv.xz", lzma.compress(b"1,2\n"), "xz; unpack it"),
        ("a.csv.zip", b"PK\x03\x04" + bytes(20), "zip; unpack it"),
    ],
    ids=["gzip", "bzip2", "xz", "zip"],
)
def test_a_compressed_file_says_what_to_do(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: compressed by {said}"):
        open_reader(str(tmp_path))


def test_settings_of_other_formats_are_refused(tmp_path):
    recordio(tmp_path / "a.rio")
    with pytest.raises(ConfigError, match="the recordio reader has no setting 'skip_header'"):
        open_reader(str(tmp_path), "skip_header=true")


class Minimal:
    def __init__(self, data_path, times=1):
        self.args = (data_path, times)

    def shards(self):
        return [Shard(self.args[0], 0, self.args[1])]

    def read(self, shard):
        yield Records(shard.start, values=[b"x"] * shard.num_records)


def test_a_custom_reader_is_given_path_and_params_and_needs_no_metadata():
    reader = open_reader("odps://table", "times=3", Minimal)
    assert reader.shards() == [Shard("odps://table", 0, 3)]
    assert reader.metadata == Metadata()
    assert [len(records) for records in reader.read(reader.shards()[0])] == [3]


def test_columns_of_other_lengths_are_told():
    class Uneven(Minimal):
        def read(self, shard):
            yield Records(shard.start, columns={"x": np.arange(3), "label": np.arange(2)})

    reader = open_reader("there", "times=3", Uneven)
    with pytest.raises(ModelError, match=r"other lengths for \[0, 3\) of there: {'x': 3"):
        list(reader.read(Shard("there", 0, 3)))


def test_an_older_function_names_its_argument_as_it_likes():
    def custom_data_reader(data_origin, records_per_task=None, **kwargs):
        return Minimal(data_origin, kwargs["times"])

    assert open_reader("there", "times=2", custom_data_reader).shards() == [Shard("there", 0, 2)]


def test_params_that_a_custom_reader_does_not_take_are_named():
    with pytest.raises(ModelError, match=r"Minimal\(data_path=\.\.\., colour\): .*colour"):
        open_reader("there", "colour=red", Minimal)


def test_an_object_that_is_no_reader_is_refused():
    with pytest.raises(ModelError, match="custom_data_reader returned NoneType: expected"):
        adapt_reader(None)


class Older:
    metadata = Metadata(("a", "b"))

    def __init__(self, records, shards=None):
        self.records, self.all_shards = records, shards

    def create_shards(self):
        return self.all_shards

    def read_records(self, task):
        return iter(self.records[task.start : task.end])


@pytest.mark.parametrize("dtype", [{}, {"a": np.bytes_}])
def test_bytes_in_rows_keep_their_zero_bytes(dtype):
    older = Older([(b"ab\0\0", "x\0"), (b"long\0", "y")])
    older.metadata = Metadata(("a", "b"), dtype)
    (records,) = adapt_reader(older).read(Shard("s", 0, 2))
    assert records.columns["a"].tolist() == [b"ab\0\0", b"long\0"]
    assert records.columns["b"].tolist() == ["x\0", "y"]


def test_older_readers_that_break_their_word_are_named():
    with pytest.raises(DataError, match=r"Older\.create_shards\(\) returned list: expected a dict"):
        adapt_reader(Older([], [])).shards()
    with pytest.raises(DataError, match=r"create_shards\(\) returned {'a': 7}: expected a dict of"):
        adapt_reader(Older([], {"a": 7})).shards()
    broken = Older([])
    broken.create_shards = lambda: 1 / 0
    with pytest.raises(ModelError, match=r"Older\.create_shards\(\) raised ZeroDivisionError"):
        adapt_reader(broken).shards()
    reader = adapt_reader(Older([b"x"] * 3))
    with pytest.raises(DataError, match=r"gave 3 records for \[0, 5\), expected 5"):
        list(reader.read(Shard("s", 0, 5)))
    endless = Older([])
    endless.read_records = lambda task: iter(lambda: b"x", None)
    chunks = adapt_reader(endless).read(Shard("s", 0, 5))
    assert len(next(chunks)) == 5
    with pytest.raises(DataError, match=r"gave more records for \[0, 5\), expected 5"):
        next(chunks)
    reader = adapt_reader(Older([b"x", (1, 2, 3)]))
    with pytest.raises(DataError, match="s: record 0 is bytes of 0 values"):
        list(reader.read(Shard("s", 0, 2)))


@pytest.mark.parametrize(
    ("rows", "dtypes", "said"),
    [
        ([{"a": 1, "b": 2}], {}, "s: record 0 is dict of 0 values: expected .* a row of the 2"),
        ([(1, 2**53 + 1), (1, float("nan"))], {}, r"s: column 'b' .* it has 9007199254740993 bes"),
        ([(None, 2)], {"a": np.int64}, r"s: column .a. of .* is not an array: .*None"),
    ],
    ids=["a dict", "ids beside NaN", "no value"],
)
def test_rows_of_older_readers_that_are_no_columns_are_told(rows, dtypes, said):
    older = Older(rows)
    older.metadata = Metadata(("a", "b"), dtypes)
    with pytest.raises(DataError, match=said):
        list(adapt_reader(older).read(Shard("s", 0, len(rows))))


def test_older_readers_may_give_text_or_rows():
    records = list(adapt_reader(Older(["é", "b"])).read(Shard("s", 0, 2)))
    assert records[0].values == ["é".encode(), b"b"]
    (records,) = adapt_reader(Older([(1, "x"), (2, "y")])).read(Shard("s", 0, 2))
    assert records.columns["a"].tolist() == [1, 2]
    assert records.columns["b"].tolist() == ["x", "y"]


def reader_of_the_page():
    """Return `custom_data_reader` as docs/data.md has it, and how many lines that takes."""
    page = (Path(__file__).parents[3] / "docs/data.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (code,) = (code for code in found if "def shards(" in code)  # others read in order alone
    names = {}
    exec(compile(code, "data.md", "exec"), names)
    return names["custom_data_reader"], sum(1 for line in code.splitlines() if line.strip())


def test_a_reader_of_ones_own_takes_twenty_lines(tmp_path):
    function, num_lines = reader_of_the_page()
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"age": {n}, "label": {n % 2}}}\n' for n in range(10)))
    reader = open_reader(str(path), custom_data_reader=function)
    assert reader.shards() == [Shard(str(path), 0, 10)]
    (records,) = reader.read(Shard(str(path), 3, 6))
    assert records.columns["age"].tolist() == [3, 4, 5]
    assert num_lines <= 20


class Own:
    """A reader of one's own that may be wrong."""

    def __init__(self, shards, chunks=()):
        self.shards = lambda: shards
        self.read = lambda shard: iter(chunks)


def raising(data_path):
    raise OSError("no such host")


@pytest.mark.parametrize(
    ("use", "error", "said"),
    [
        (lambda: open_reader("x", "", raising), ModelError,
         r"raising raised OSError: no such host \(.*test_open_reader.py:\d+\)"),
        (lambda: adapt_reader(Own({"a": (0, 5)})).shards(), ModelError,
         r"Own.shards\(\) has 'a': expected elasticdl.job.Shard"),
        (lambda: adapt_reader(Own(None)).shards(), ModelError, r"Own.shards\(\) raised TypeError"),
        (lambda: list(adapt_reader(Own([], [[b"x"]])).read(Shard("s", 0, 1))), ModelError,
         "Own.read yields list: expected elasticdl.data.base.Records"),
        (lambda: list(adapt_reader(Own([], [Records(0, [b"x"])])).read(Shard("s", 0, 2))),
         DataError,
         r"s: Own.read gave 1 records for \[0, 2\), expected 2"),
    ],
    ids=["raises", "no shards", "nothing", "no records", "too few"],
)  # fmt: skip
def test_what_a_reader_of_ones_own_gets_wrong_is_told(use, error, said):
    with pytest.raises(error, match=said):
        use()


def test_a_compressed_file_needs_no_name_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path / "_cache"))
    with TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_many([b"x", b"y"])
    plain = (tmp_path / "a.tfrecord").read_bytes()
    for name, content in (("b.tfrecord", plain), ("b.csv", b"x\ny\n")):
        path = tmp_path / name
        path.write_bytes(gzip.compress(content))
        assert open_reader(str(path)).shards() == [Shard(str(path), 0, 2)]
    assert open_reader(str(tmp_path / "a.tfrecord")).shards()[0].num_records == 2
    assert len(list((tmp_path / "_cache").glob("*-b.*"))) >= 2


def test_times_that_a_reader_gives_in_several_units_are_refused():
    class Times:
        def shards(self):
            return [Shard("a", 0, 1), Shard("b", 0, 1)]

        def read(self, shard):
            unit = {"a": "us", "b": "ns"}[shard.name]
            yield Records(0, columns={"at": np.array([1], f"datetime64[{unit}]")})

    reader = open_reader("there", custom_data_reader=lambda data_path: Times())
    first, second = reader.shards()
    list(reader.read(first))
    with pytest.raises(DataError, match=r"b: column 'at' is datetime64\[ns\], in a it is"):
        list(reader.read(second))
