"""`elasticdl data analyze`, compared with pandas and NumPy on the same data."""

import datetime
import json
import resource
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from elasticdl.cli.main import run_command
from elasticdl.data.open import open_reader
from elasticdl.job import Shard
from elasticdl.packages.data_tools.example import encode_examples
from elasticdl.packages.data_tools.statistics import read_statistics

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")

NUM_ROWS = 30_000


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(3)
    whole = pd.array(np.floor(rng.lognormal(3, 1.5, NUM_ROWS)).astype(np.int64) - 2, dtype="Int64")
    whole[rng.random(NUM_ROWS) < 0.2] = pd.NA
    real = rng.normal(5, 2, NUM_ROWS)
    real[rng.random(NUM_ROWS) < 0.1] = np.nan
    text = np.array([f"é{n}" for n in rng.zipf(1.3, NUM_ROWS) % 5000], dtype=object)
    text[rng.random(NUM_ROWS) < 0.05] = None
    return pd.DataFrame({"whole": whole, "real": real, "text": pd.Series(text, dtype="object")})


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def analyze(capsys):
    def run(*words):
        code = run_command(["data", "analyze", *words, "--output=s.json"])
        return code, capsys.readouterr()

    return run


def write_csv(frame, path, **options):
    frame.to_csv(path, index=False, **options)


def write_examples(frame, path):
    columns = {name: [None if pd.isna(value) else value for value in frame[name]] for name in frame}
    with RecordWriter(path, codec="zstd") as writer:
        writer.write_many(encode_examples(columns))


WRITERS = {
    "parquet": (lambda frame, path: frame.to_parquet(path, row_group_size=4000), ""),
    "csv": (write_csv, "skip_header=true"),
    "tsv": (lambda frame, path: write_csv(frame, path, sep="\t"), "skip_header=true"),
    "recordio": (write_examples, ""),
}


def write(frame, format_name):
    """Write two files of the frame; return the words of the command."""
    write_one, params = WRITERS[format_name]
    half = len(frame) // 2
    Path("in").mkdir()
    write_one(frame[:half], Path(f"in/a.{format_name}"))
    write_one(frame[half:], Path(f"in/b.{format_name}"))
    return ("in", f"--data_reader_params={params}")


@pytest.mark.parametrize("format_name", WRITERS)
def test_statistics_are_those_of_pandas(analyze, frame, format_name):
    code, captured = analyze(*write(frame, format_name), "--vocabulary_limit=1000")
    assert code == 0, captured.err
    statistics = read_statistics("s.json")

    assert statistics.num_records == NUM_ROWS
    assert statistics.source.num_files == 2
    for name, kind in (("whole", "int64"), ("real", "float"), ("text", "text")):
        column, present = statistics.column(name), frame[name].dropna()
        assert column.kind == kind
        assert (column.count, column.missing) == (len(present), NUM_ROWS - len(present))
        if not (name == "real" and format_name == "recordio"):  # features are float32
            assert column.distinct.count == present.nunique()
        assert column.distinct.is_exact
    for name, tolerance in (("whole", 1e-12), ("real", 1e-6)):
        column = statistics.column(name)
        present = frame[name].dropna().to_numpy(dtype=np.float64)
        found = (column.min, column.max, column.mean, column.stddev)
        expected = (present.min(), present.max(), present.mean(), present.std())
        assert found == pytest.approx(expected, rel=tolerance)
        levels = np.linspace(0, 1, 101)
        exact = np.quantile(present, levels, method="inverted_cdf")
        assert column.quantiles == pytest.approx(exact, rel=tolerance)
        assert column.quantile_error == 0
    assert statistics.column("real").vocabulary is None


@pytest.mark.parametrize("format_name", WRITERS)
def test_a_vocabulary_has_the_most_frequent_values_with_their_counts(analyze, frame, format_name):
    analyze(*write(frame, format_name), "--vocabulary_limit=50")
    for name in ("whole", "text"):
        vocabulary = read_statistics("s.json").column(name).vocabulary
        counts = frame[name].dropna().value_counts()
        expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:50]
        assert list(zip(vocabulary.values, vocabulary.counts, strict=True)) == expected
        assert not vocabulary.is_complete


def test_a_threshold_leaves_rare_values_out(analyze, frame):
    analyze(*write(frame, "parquet"), "--vocabulary_threshold=10")
    vocabulary = read_statistics("s.json").column("text").vocabulary
    counts = frame["text"].value_counts()
    assert dict(zip(vocabulary.values, vocabulary.counts, strict=True)) == dict(
        counts[counts >= 10]
    )
    assert (vocabulary.threshold, vocabulary.is_complete) == (10, True)


def test_buckets_have_about_equally_many_values(analyze, frame):
    analyze(*write(frame, "parquet"), "--num_buckets=8")
    for name in ("whole", "real"):
        boundaries = read_statistics("s.json").column(name).boundaries
        assert boundaries == sorted(set(boundaries))
        present = frame[name].dropna().to_numpy(dtype=np.float64)
        sizes = np.bincount(np.searchsorted(boundaries, present, side="right"))
        assert len(sizes) == 8
        assert sizes.min() > 0.6 * len(present) / 8


def test_one_value_that_fills_several_buckets_has_one_boundary(analyze):
    pq.write_table(pa.table({"x": [0] * 90 + [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}), "x.parquet")
    analyze("x.parquet", "--num_buckets=20")
    assert read_statistics("s.json").column("x").boundaries == [1, 6]


def test_above_the_limit_columns_are_estimated_within_what_is_said(analyze):
    rng = np.random.default_rng(0)
    num_rows = 400_000
    frequent = rng.integers(0, 20, num_rows)
    ids = np.where(rng.random(num_rows) < 0.5, frequent, rng.integers(10**6, 10**9, num_rows))
    real = rng.exponential(3, num_rows)
    text = pa.array(ids).cast(pa.string())
    pq.write_table(pa.table({"ids": ids, "real": real, "text": text}), "x.parquet")

    code, captured = analyze("x.parquet", "--distinct_limit=10000", "--vocabulary_limit=20")

    assert code == 0, captured.err
    statistics = read_statistics("s.json")
    for name, values in (("ids", ids), ("real", real), ("text", ids)):
        column = statistics.column(name)
        assert not column.distinct.is_exact
        assert 0 < column.distinct.relative_error < 0.05
        exact = len(np.unique(values))
        assert abs(column.distinct.count / exact - 1) < 4 * column.distinct.relative_error
        if name != "text":
            assert (column.min, column.max) == (values.min(), values.max())
            assert (column.mean, column.stddev) == pytest.approx(
                (values.mean(), values.std()), rel=1e-9
            )
            ranks = np.searchsorted(np.sort(values), column.quantiles, side="right") / num_rows
            tops = np.linspace(0, 1, 101)
            assert 0 < column.quantile_error < 0.005
            below = np.searchsorted(np.sort(values), column.quantiles, side="left") / num_rows
            assert np.all(below <= tops + column.quantile_error + 1e-9)
            assert np.all(ranks >= tops - column.quantile_error - 1e-9)
    counts = np.bincount(frequent[ids < 20], minlength=20)
    found = statistics.column("ids").vocabulary
    assert dict(zip(found.values, found.counts, strict=True)) == dict(enumerate(counts))
    assert not found.is_complete
    text = statistics.column("text").vocabulary
    assert (text.values, text.counts) == ([str(value) for value in found.values], found.counts)


def test_the_error_of_hyperloglog_is_what_is_said():
    import duckdb

    from elasticdl.packages.data_tools.analyze import HYPERLOGLOG_ERROR

    size = 20_000
    query = "SELECT approx_count_distinct(i + {} * 10000000) FROM range({}) t(i)"
    errors = [duckdb.sql(query.format(n, size)).fetchall()[0][0] / size - 1 for n in range(60)]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(HYPERLOGLOG_ERROR, rel=0.4)


def test_lists_count_by_their_values(analyze):
    lists = [[1, 2, 2], [], None, [5]]
    pq.write_table(pa.table({"x": lists, "t": [["a"], ["b", "b"], [], None]}), "x.parquet")
    assert analyze("x.parquet")[0] == 0
    column = read_statistics("s.json").column("x")
    assert (column.count, column.missing, column.num_values) == (2, 2, 4)
    assert (column.min, column.max, column.mean, column.distinct.count) == (1, 5, 2.5, 3)
    vocabulary = read_statistics("s.json").column("t").vocabulary
    assert (vocabulary.values, vocabulary.counts) == (["b", "a"], [2, 1])


def test_a_list_without_a_value_is_missing(analyze):
    day = datetime.datetime(2026, 1, 2)
    columns = {
        "n": [[None, None], [1, None], []],
        "f": [[np.nan, None], [None, 2.0], [np.nan]],
        "t": [["", None], ["a", ""], [None]],
        "d": [[None], [day, None], None],
    }
    pq.write_table(pa.table(columns), "x.parquet")
    assert analyze("x.parquet")[0] == 0
    found = [read_statistics("s.json").column(name) for name in columns]
    assert [(c.count, c.missing, c.num_values) for c in found] == [(1, 2, 1)] * 4


def test_a_few_long_lists_are_estimated_within_what_is_said(analyze):
    low, high = np.linspace(0, 1, 300_000), np.linspace(100, 101, 300_000)
    pq.write_table(pa.table({"x": [low, high]}), "x.parquet")
    assert analyze("x.parquet", "--distinct_limit=1000")[0] == 0
    column = read_statistics("s.json").column("x")
    ranks = [np.mean(np.concatenate([low, high]) <= value) for value in column.quantiles]
    assert np.abs(ranks - np.linspace(0, 1, 101)).max() <= column.quantile_error


def test_infinite_and_missing_numbers_are_told_apart(analyze):
    pq.write_table(pa.table({"x": [1.0, np.inf, -np.inf, np.nan, None, 3.0]}), "x.parquet")
    analyze("x.parquet")
    column = read_statistics("s.json").column("x")
    assert (column.count, column.missing, column.infinite) == (4, 2, 2)
    assert (column.min, column.max, column.mean, column.stddev) == (1, 3, 2, 1)


def test_types_of_parquet_become_numbers_or_text(analyze):
    import datetime

    day = datetime.date(2024, 2, 29)
    table = pa.table(
        {
            "bool": [True, False],
            "small": pa.array([1, 2], pa.int8()),
            "decimal": pa.array([1, 2]).cast(pa.decimal128(21, 2)),
            "day": [day, day],
            "bytes": [b"ab", b""],
            "blob": [b"\xff\xfe", b"\xff"],
            "category": pa.array(["x", "y"]).dictionary_encode(),
            "nothing": pa.array([None, None], pa.int64()),
            "clock": [datetime.time(12, 30, 1, 500_000), datetime.time(1, 2, 3)],
            "uuid": pa.array([b"0123456789abcdef", None], pa.uuid()),
            'a {b} "c"': [1, 2],
        }
    )
    pq.write_table(table, "x.parquet")
    code, captured = analyze("x.parquet")
    assert code == 0, captured.err
    columns = read_statistics("s.json").columns
    assert [columns[name].kind for name in table.column_names] == [
        *("int64", "int64", "float", "text", "text", "text", "text", "int64"),
        *("text", "text", "int64"),
    ]
    assert columns["day"].vocabulary.values == ["2024-02-29"]
    assert (columns["bytes"].vocabulary.values, columns["bytes"].missing) == (["ab"], 1)
    # The words that a job has for the same values.
    (records,) = open_reader("x.parquet").read(Shard("x.parquet", 0, 2))
    for name in ("clock", "uuid"):
        words = sorted(filter(None, records.columns[name].tolist()))
        assert columns[name].vocabulary.values == words
    assert columns["blob"].vocabulary is None
    assert columns["blob"].distinct.count == 2
    assert (columns["nothing"].min, columns["nothing"].missing) == (None, 2)
    assert columns["nothing"].vocabulary.values == []


def test_a_column_of_structs_is_refused_with_what_to_do(analyze):
    pq.write_table(pa.table({"s": [{"a": 1}], "x": [1]}), "x.parquet")
    code, captured = analyze("x.parquet", "--data_reader_params=columns=x")
    assert code == 0, captured.err
    code, captured = analyze("x.parquet")
    assert code == 1
    assert "'s'" in captured.err
    assert "columns=" in captured.err


def test_text_that_comes_late_in_a_column_of_numbers_makes_it_text(analyze):
    lines = ["a,b", *(f"{n},{n}" for n in range(60_000)), "x,0.7"]
    Path("x.csv").write_text("\n".join(lines) + "\n")
    code, captured = analyze("x.csv", "--data_reader_params=skip_header=true")
    assert code == 0, captured.err
    columns = read_statistics("s.json").columns
    assert [columns[name].kind for name in "ab"] == ["text", "float"]
    assert (columns["b"].min, columns["b"].mean) == (0, (sum(range(60_000)) + 0.7) / 60_001)


def test_types_may_be_given_and_what_is_missing_too(analyze):
    Path("x.csv").write_text("zip,n\n00123,-\n4,7\n,8\n")
    words = ("--data_reader_params=skip_header=true", "--types=zip=bytes", "--missing=-")
    code, captured = analyze("x.csv", *words)
    assert code == 0, captured.err
    columns = read_statistics("s.json").columns
    assert columns["zip"].vocabulary.values == ["00123", "4"]
    assert (columns["n"].kind, columns["n"].missing, columns["n"].mean) == ("int64", 1, 7.5)


@pytest.mark.parametrize(
    ("name", "content", "words", "said"),
    [
        (
            "x.csv",
            "a,b\n1,2\n3\n",
            ("skip_header=true",),
            "x.csv: line 3 (record 1): has 1 fields",
        ),
        (
            "x.csv",
            'a\n"1\n2"\n',
            ("skip_header=true",),
            "give --data_reader_params=quoted_newline",
        ),
        ("x.csv", "1,2\n", ("",), "names for the columns"),
        ("x.txt", "hello\nyou\n", ("",), "names for the columns"),
        ("x.csv", "", ("skip_header=true",), "there are no records"),
        ("x.parquet", "PAR1 and nothing", ("",), "x.parquet"),
    ],
)
def test_bad_data_is_told_and_no_file_is_written(analyze, name, content, words, said):
    Path(name).write_text(content)
    code, captured = analyze(name, f"--data_reader_params={words[0]}")
    assert code == 1
    assert said in captured.err
    assert not Path("s.json").exists()


@pytest.mark.parametrize(
    ("ids", "kind", "distinct"),
    [
        (["1234567890123456788", "1234567890123456789"], "int64", 2),
        (["99999999999999999998", "99999999999999999999"], "text", 2),
        (["99999999999999999998", "0.5"], "float", 2),
    ],
)
def test_large_ids_are_told_apart(analyze, ids, kind, distinct):
    Path("ids.csv").write_text("\n".join(["id", *ids]) + "\n")
    assert analyze("ids.csv", "--data_reader_params=skip_header=true")[0] == 0
    column = read_statistics("s.json").columns["id"]
    assert (column.kind, column.distinct.count) == (kind, distinct)


def test_a_value_that_is_not_of_the_given_type_is_told(analyze):
    Path("x.csv").write_text("n\n1\n2.5\n")
    code, captured = analyze("x.csv", "--data_reader_params=skip_header=true", "--types=n=int64")
    assert code == 1
    assert "line 3 (record 1), column 'n': expected a whole number" in captured.err


def test_records_without_columns_are_refused(analyze):
    with RecordWriter("x.rio") as writer:
        writer.write_many([b"\xff\xff"])
    code, captured = analyze("x.rio")
    assert code == 1
    assert "x.rio: record 0 is not a tf.train.Example" in captured.err


def test_features_that_come_late_are_columns_too(analyze):
    with RecordWriter("x.rio") as writer:
        writer.write_many(encode_examples({"a": list(range(5000))}))
        writer.write_many(encode_examples({"b": ["x"]}))
    assert analyze("x.rio")[0] == 0
    columns = read_statistics("s.json").columns
    assert (columns["a"].missing, columns["b"].missing) == (1, 5000)


def test_the_file_is_json_and_the_table_is_shown(analyze, frame):
    _, captured = analyze(*write(frame, "parquet"))
    assert json.loads(Path("s.json").read_text())["format"] == "elasticdl-statistics"
    assert "30,000 records" in captured.out
    assert "whole" in captured.out


def test_numbers_of_two_types_and_lists_are_one_column(analyze):
    columns = [{"x": list(range(500)), "t": [[b"a"] * (n % 3) for n in range(500)]}, {"x": [0.5]}]
    with RecordWriter("x.recordio") as writer:
        for each in columns:
            writer.write_many(encode_examples(each))
    code, captured = analyze("x.recordio")
    assert code == 0, captured.err
    found = read_statistics("s.json")
    x, t = found.column("x"), found.column("t")
    assert (x.kind, x.min, x.max, found.num_records) == ("float", 0, 499, 501)
    assert (t.missing, t.num_values) == (168, 499)


def test_a_damaged_file_is_told_by_its_block(analyze):
    with RecordWriter("x.recordio", block_bytes=100) as writer:
        writer.write_many(encode_examples({"x": list(range(500))}))
    data = bytearray(Path("x.recordio").read_bytes())
    data[3000] ^= 1
    Path("x.recordio").write_bytes(data)
    code, captured = analyze("x.recordio")
    assert code == 1
    assert "x.recordio" in captured.err
    assert "checksum" in captured.err or "block" in captured.err
    assert not Path("s.json").exists()


def test_a_folder_in_place_of_the_output_is_told_before_the_data_are_read(tmp_path, capsys):
    for place in (".", str(tmp_path)):
        assert run_command(["data", "analyze", "none.csv", f"--output={place}"]) == 1
        assert f"{place}: is a folder; name a file in it" in capsys.readouterr().err


def test_of_equally_frequent_values_the_same_are_kept_each_time(analyze):
    words = np.array([f"w{number:04}" for number in range(1000)] * 30)
    np.random.default_rng(0).shuffle(words)
    pq.write_table(pa.table({"word": words}), "x.parquet", row_group_size=1000)
    code, _ = analyze("x.parquet", "--distinct_limit=10", "--vocabulary_limit=5")
    assert code == 0
    found = read_statistics("s.json").column("word").vocabulary
    assert found.values == [f"w000{n}" for n in range(5)]


def test_the_sample_of_many_files_is_not_of_the_same_rows_of_each(analyze, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.data_tools.analyze.SAMPLE_RECORDS", 400)
    Path("parts").mkdir()
    for number in range(100):  # each is sorted
        values = np.linspace(0, 1, 100) + number * 1e-6
        pq.write_table(pa.table({"x": values}), f"parts/{number}.parquet")
    code, told = analyze("parts", "--distinct_limit=10")
    assert code == 0, told
    column = read_statistics("s.json").column("x")
    middle = [column.quantiles[place] for place in (25, 50, 75)]
    np.testing.assert_allclose(middle, [0.25, 0.5, 0.75], atol=2 * column.quantile_error)


def test_no_room_for_the_copy_of_the_data_is_told(analyze):
    Path("x.csv").write_text("a\n" + "".join(f"word {number}\n" for number in range(50_000)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        code, told = analyze("x.csv", "--data_reader_params=skip_header=true")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert "the copy of the data cannot be written: " in told.err
    assert "TMPDIR names another folder" in told.err
