"""One value is one word and one number, whatever the format that a table comes in."""

import datetime
import decimal
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.open import open_reader
from elasticdl.errors import DataError, ElasticdlError
from elasticdl.job import Mode

pytestmark = pytest.mark.keras


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_csv(values):
    lines = ["v,y", *(f"{'' if v is None else v},1" for v in values)]
    Path("t.csv").write_text("\n".join(lines) + "\n")
    return "t.csv", "skip_header=true"


def write_parquet(values):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"v": pa.array(values), "y": [1] * len(values)}), "t.parquet")
    return "t.parquet", ""


def write_tables(values):
    kinds = {bool: "BOOLEAN", int: "INTEGER", float: "REAL", str: "TEXT", datetime.date: "DATE"}
    kinds |= {datetime.datetime: "TIMESTAMP", datetime.time: "TIME"}
    kind = kinds[type(values[0])]
    if isinstance(values[0], datetime.date | datetime.time):
        values = [str(value) for value in values]  # SQLite keeps times as text
    with sqlite3.connect("t.db") as database:
        database.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {kind}, y INTEGER)")
        database.executemany("INSERT INTO t (v, y) VALUES (?, 1)", [(v,) for v in values])
    return "sqlite:///t.db", "table=t"


FORMATS = {"csv": write_csv, "parquet": write_parquet, "tables": write_tables}


def minibatches(written, column):
    """Run a table's feed over what is in a file, as a job does."""
    from elasticdl.packages.keras.feed.runner import FeedRunner
    from elasticdl.preprocessing.tabular import Label, Table

    reader = open_reader(written[0], written[1])
    runner = FeedRunner(Table([column], Label("y")).feed, reader.metadata)
    for shard in reader.shards():
        yield from runner.minibatches(reader.read(shard), Mode.TRAINING, 4, 0)


def words_of(written, vocabulary=1000):
    from elasticdl.preprocessing.tabular import Category

    found = minibatches(written, Category("v", vocabulary))
    return sorted(word.decode() for batch in found for word in batch.features["v"].numpy().ravel())


NOON = datetime.datetime(2024, 2, 29, 12, 30, 1)
VALUES = {
    "truth": [True, False, True, None],
    "whole": [7, -12, 0],
    "whole with holes": [7, None, 123456789],
    "real": [0.5, 1.0, 1e-7, -2.25, 1e20],
    "text": ["a", "1_2", "007", ""],
    "date": [datetime.date(2024, 2, 29), datetime.date(1969, 12, 31)],
    "time": [NOON, NOON.replace(microsecond=250_000)],
    "time of day": [NOON.time(), datetime.time(12, 30, 1, 250_000)],
    "decimal": [decimal.Decimal("1.50"), decimal.Decimal("-0.05")],
}
NOT_IN = {"tables": ("decimal",)}  # SQLite has no such type


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_value_is_one_word_in_every_format(kind, values):
    if values in NOT_IN.get(kind, ()):
        pytest.skip("the database has no such type")

    found = words_of(FORMATS[kind](VALUES[values]))

    assert found == sorted("" if v is None else str(v) for v in VALUES[values])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("vocabulary", [["False", "True"], ["false", "true"], ["0", "1"]])
def test_truth_is_written_as_the_vocabulary_writes_it(kind, vocabulary):
    if kind == "csv" and vocabulary[0] == "0":
        pytest.skip("text is its own word")

    assert words_of(FORMATS[kind]([True, False]), vocabulary) == sorted(vocabulary)


@pytest.mark.parametrize(
    "text", ["1_2", "0x10", "\uff11\uff12", "12\u00a0", "1e", "nan(1)", "1e39", "a"], ids=ascii
)
def test_what_is_no_number_by_the_rule_is_refused_with_its_line_and_column(text):
    from elasticdl.preprocessing.tabular import Number

    written = write_csv([1, 2, text, 4])

    with pytest.raises(DataError, match="column 'v': expected a number that float32 holds"):
        list(minibatches(written, Number("v")))


@pytest.mark.parametrize("values", ["date", "time"])
def test_a_time_is_no_number_in_columns_as_in_lines(values):
    from elasticdl.preprocessing.tabular import Number

    for write in (FORMATS["parquet"], FORMATS["csv"]):
        with pytest.raises(
            DataError, match=r"'v'.*(numbers here, and has dates|expected a number)"
        ):
            list(minibatches(write(VALUES[values]), Number("v")))


def test_a_real_number_that_float32_does_not_hold_is_refused_in_columns_too():
    from elasticdl.preprocessing.tabular import Number

    with pytest.raises(ElasticdlError, match="'v' is float32 here, which does not hold 1e\\+39"):
        list(minibatches(write_parquet([1.0, 1e39]), Number("v")))


@pytest.mark.parametrize("value", [1e19, float("inf"), 2**64 - 1, 0.5], ids=str)
def test_a_number_that_int64_does_not_hold_is_refused_in_columns_too(value):
    from elasticdl.preprocessing.tabular import Category

    with pytest.raises(ElasticdlError, match="'v' is int64 here, which does not hold "):
        list(minibatches(write_parquet(np.array([value])), Category("v", 10, dtype="int64")))


def test_a_duration_is_no_word():
    with pytest.raises(DataError, match=r"'v' is words here, and has durations, .* \(us\): write"):
        words_of(write_parquet([datetime.timedelta(1), None]))


def test_a_list_is_no_value():
    with pytest.raises(DataError, match="column 'v' is one value in each record here, and has lis"):
        words_of(write_parquet([["a"], ["b", "c"]]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"v,y\n1,1\n\xe9,1\n", "line 3 .*column 'v': expected UTF-8, found the byte 0xe9"),
        (b"v,y\n1,1\na\0,1\n", "line 3 .*column 'v': expected UTF-8, found a zero byte"),
        (b"v,v\n1,1\n", "line 1: columns 1 and 2 are both called 'v'"),
        (b'v,"y"z\n1,1\n', "its header line does not parse"),
        (b"\xff\xfev\0,\0", "its header line: expected UTF-8, found the byte 0xff; convert"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(content, said):
    from elasticdl.preprocessing.tabular import Category

    Path("t.csv").write_bytes(content)

    with pytest.raises(DataError, match=said):
        list(minibatches(("t.csv", "skip_header=true"), Category("v", 10)))
