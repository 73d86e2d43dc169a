"""What is special of LIBSVM files, tables of a database, folders of images, compressed files."""

import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from elasticdl.cli.main import run_command
from elasticdl.data.open import open_reader
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path / "_cache"))


def read_all(reader):
    return [records for shard in reader.shards() for records in reader.read(shard)]


def count(capsys, *words):
    """Run `elasticdl data count`: the exit code and what it says on stderr."""
    code = run_command(["data", "count", *words])
    return code, capsys.readouterr().err


# --- compressed files


def test_a_compressed_file_is_unpacked_once_and_again_when_it_changes():
    Path("x.csv.gz").write_bytes(gzip.compress(b"1\n2\n"))
    assert open_reader("x.csv.gz").shards() == [Shard("x.csv.gz", 0, 2)]
    (copy,) = Path("_cache").iterdir()
    changed = copy.stat().st_mtime_ns
    assert [records.values for records in read_all(open_reader("x.csv.gz"))] == [[b"1", b"2"]]
    assert copy.stat().st_mtime_ns == changed

    Path("x.csv.gz").write_bytes(gzip.compress(b"1\n2\n3\n"))

    assert open_reader("x.csv.gz").shards() == [Shard("x.csv.gz", 0, 3)]
    assert [path for path in os.listdir("_cache") if path.endswith(".tmp")] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"1\n" * 1000)[:-6], "x.csv.gz: cannot be unpacked"),
        (b"1\n2\n", "x.csv.gz: is not compressed by gzip or zstd, as its name says"),
        (gzip.compress(b"1\n" * 1000)[:20] + b"damage" * 10, "x.csv.gz: cannot be unpacked"),
    ],
    ids=["cut off", "not compressed", "damaged"],
)
def test_a_damaged_compressed_file_is_told_and_leaves_no_copy(capsys, content, said):
    Path("x.csv.gz").write_bytes(content)
    code, err = count(capsys, "x.csv.gz")
    assert (code, said in err) == (1, True), err
    assert not Path("_cache").exists() or os.listdir("_cache") == []


def test_a_compressed_file_without_a_format_in_its_name_is_refused(capsys):
    Path("x.gz").write_bytes(gzip.compress(b"1\n"))
    assert "rename it, for example to NAME.csv.gz" in count(capsys, "x.gz")[1]


def test_tfrecord_files_may_be_compressed():
    from elasticdl._core import TFRecordWriter

    with TFRecordWriter("x.tfrecord") as writer:
        writer.write_many([b"a", b"b"])
    Path("y.tfrecord.gz").write_bytes(gzip.compress(Path("x.tfrecord").read_bytes()))
    assert [records.values for records in read_all(open_reader("y.tfrecord.gz"))] == [[b"a", b"b"]]


# --- LIBSVM


def test_libsvm_lines_become_ragged_columns():
    Path("x.svm").write_text("1 3:0.5 10:-2e1 # a comment\n\n-1\n+1.5 7:1\n")
    (records,) = read_all(open_reader("x.svm"))
    assert records.columns["label"].tolist() == [1, -1, 1.5]
    assert [ids.tolist() for ids in records.columns["ids"]] == [[3, 10], [], [7]]
    assert [values.tolist() for values in records.columns["values"]] == [[0.5, -20], [], [1]]
    assert records.columns["ids"][1].dtype == np.int64


def test_libsvm_agrees_with_scikit_learn():
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file

    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 20)).astype(np.float32) * (rng.random((500, 20)) < 0.3)
    dump_svmlight_file(features, rng.integers(0, 2, 500), "x.libsvm")
    expected, labels = load_svmlight_file("x.libsvm", zero_based=True, n_features=20)
    (records,) = read_all(open_reader("x.libsvm"))
    found = np.zeros((500, 20))
    for row, (ids, values) in enumerate(
        zip(records.columns["ids"], records.columns["values"], strict=True)
    ):
        found[row, ids] = values
    np.testing.assert_allclose(found, expected.toarray(), rtol=1e-6)
    assert records.columns["label"].tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("yes 1:2", 'expected a label that is a number, found "yes"'),
        ("1 2 3:4:5", 'expected index:value, found "2"'),
        ("1 2:", 'in "2:": expected a number'),
        ("1 1_2:1", 'in "1_2:1": expected a whole number'),
        ("3:1 2", 'expected a label that is a number, found "3:1"'),
        (f"1 {2**63}:1", "expected a whole number (digits with at most a sign, below 2^63)"),
    ],
)
def test_a_wrong_line_of_libsvm_is_told_by_its_line_and_record(line, said):
    Path("x.libsvm").write_text(f"1 1:1\n\n{line}\n0 2:2\n")
    reader = open_reader("x.libsvm")
    with pytest.raises(DataError, match=r"x\.libsvm: line 3 \(record 1\): ") as raised:
        read_all(reader)
    assert said in str(raised.value)


# --- tables of a database


@pytest.fixture
def database():
    pytest.importorskip("sqlalchemy")
    with closing(sqlite3.connect("data.db")) as connection:
        yield connection


CLICKS = "sqlite:///data.db"


def fill(database, num_rows=1000):
    database.execute(
        "CREATE TABLE clicks (id INTEGER PRIMARY KEY, n INT, x REAL, t TEXT, b BLOB, maybe INT)"
    )
    rows = [
        (7 * i - 100, i, i / 2, f"t{i}", bytes([i % 256]), None if i % 10 == 0 else i)
        for i in range(num_rows)
    ]
    database.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.commit()


def test_ranges_of_keys_are_found_by_one_scan_and_need_none_to_be_read(database):
    fill(database)
    reader = open_reader(CLICKS, "table=clicks;rows_per_shard=300")
    shards = reader.shards()
    assert [shard.num_records for shard in shards] == [300, 300, 300, 100]
    assert shards[1].name == "clicks [2000, 4093]"

    worker = open_reader(CLICKS, "table=clicks")  # never lists shards
    (records,) = worker.read(Shard(shards[1].name, 10, 20))

    assert records.start == 10
    assert records.columns["n"].tolist() == list(range(310, 320))


def test_a_name_of_a_table_may_have_blanks(database):
    database.execute('CREATE TABLE "my [ clicks" (id TEXT PRIMARY KEY)')
    database.executemany('INSERT INTO "my [ clicks" VALUES (?)', [("a [",), ("b",)])
    database.commit()
    (records,) = read_all(open_reader(CLICKS, "table=my [ clicks"))
    assert records.columns["id"].tolist() == ["a [", "b"]


def test_columns_of_a_table_have_one_type_in_every_chunk(database):
    fill(database, 5000)
    reader = open_reader(CLICKS, "table=clicks")
    chunks = read_all(reader)
    assert [len(records) for records in chunks] == [4096, 904]
    for records in chunks:
        dtypes = {name: column.dtype for name, column in records.columns.items()}
        assert dtypes == reader.metadata.column_dtypes
    first = chunks[0].columns
    assert first["n"].dtype == np.int64
    assert np.isnan(first["maybe"][0])
    assert (first["maybe"][1], first["t"][3], first["b"][3]) == (1, "t3", b"\x03")


def test_expressions_of_a_view_and_unknown_types_have_the_types_of_their_values(database):
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INT, x REAL, word STRING)")
    database.execute("INSERT INTO t VALUES (1, 3, 0.5, 'a'), (2, NULL, 2, NULL)")
    database.execute(
        "CREATE VIEW v AS SELECT id, id + 1 AS whole, n + 1 AS holes, x * 2 AS real, "
        "word || 'b' AS text, NULL AS empty, word, CASE id WHEN 1 THEN x'00' END AS b FROM t"
    )
    database.commit()
    reader = open_reader(CLICKS, "table=v;key=id")
    (records,) = read_all(reader)
    assert {name: str(column.tolist()) for name, column in records.columns.items()} == {
        "id": "[1, 2]",
        "whole": "[2, 3]",
        "holes": "[4.0, nan]",
        "real": "[1.0, 4.0]",
        "text": "['ab', '']",
        "empty": "[nan, nan]",
        "word": "['a', '']",
        "b": r"[b'\x00', b'']",
    }
    assert reader.metadata.column_kinds == dict.fromkeys(("id", "whole", "holes"), "whole")


def test_null_is_empty_text_or_empty_bytes(database):
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, t TEXT, b BLOB)")
    database.execute("INSERT INTO t VALUES (1, 'a', x'00'), (2, NULL, NULL)")
    database.commit()
    (records,) = read_all(open_reader(CLICKS, "table=t"))
    assert records.columns["t"].tolist() == ["a", ""]
    assert records.columns["b"].tolist() == [b"\0", b""]


def test_a_key_may_be_any_column_whose_values_are_different(database):
    database.execute("CREATE TABLE clicks (name TEXT, n INT)")
    database.executemany("INSERT INTO clicks VALUES (?, ?)", [("b", 1), ("a", 2), ("ü", 3)])
    database.commit()
    with pytest.raises(ConfigError, match="no primary key of one column: give key=COLUMN"):
        open_reader(CLICKS, "table=clicks")
    (records,) = read_all(open_reader(CLICKS, "table=clicks;key=name;columns=n"))
    assert records.columns["n"].tolist() == [2, 1, 3]
    with pytest.raises(ConfigError, match="key=id: table clicks has name, n"):
        open_reader(CLICKS, "table=clicks;key=id")


@pytest.mark.parametrize(
    ("rows", "said"),
    [([(1,), (1,)], "key k is 1 in two rows"), ([(None,), (1,)], "key k is None in a row")],
)
def test_a_key_that_is_none_is_refused(database, rows, said):
    database.execute("CREATE TABLE t (k INT)")
    database.executemany("INSERT INTO t VALUES (?)", rows)
    database.commit()
    with pytest.raises(DataError, match=said):
        open_reader(CLICKS, "table=t;key=k").shards()


def test_rows_that_are_gone_since_are_told(database):
    fill(database)
    (shard,) = open_reader(CLICKS, "table=clicks").shards()
    database.execute("DELETE FROM clicks WHERE n > 990")
    database.commit()
    with pytest.raises(DataError, match=r"they end at 991; has the table changed"):
        list(open_reader(CLICKS, "table=clicks").read(shard))


def test_text_in_a_column_of_numbers_is_told(database):
    fill(database)
    database.execute("UPDATE clicks SET n = 'many' WHERE n = 5")
    database.commit()
    with pytest.raises(DataError, match=r"clicks \[.*column 'n': expected int64: found 'many'"):
        read_all(open_reader(CLICKS, "table=clicks"))


@pytest.mark.parametrize(
    ("kind", "value"), [("DATETIME", 1_700_000_000), ("DATE", "soon"), ("JSON", "{"), ("TIME", "x")]
)
def test_a_value_of_another_type_is_told_with_its_column(database, kind, value):
    database.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, good DATE, bad {kind})")
    database.execute("INSERT INTO t VALUES (1, '2026-01-31', ?)", (value,))
    database.commit()
    with pytest.raises(DataError, match=rf"data.db: column 'bad' \({kind}\) has a value of anoth"):
        read_all(open_reader(CLICKS, "table=t"))
    (records,) = read_all(open_reader(CLICKS, "table=t;columns=good"))
    assert str(records.columns["good"][0]) == "2026-01-31"


@pytest.mark.parametrize(
    ("place", "params", "said"),
    [
        ("sqlite:///none.db", "table=clicks", "none.db: no such file"),
        (CLICKS, "", "expected table=NAME"),
        (CLICKS, "table=other", "no table 'other'; it has clicks"),
        (CLICKS, "table=clicks;columns=z", "columns=z: table clicks has id, n, x, t, b, maybe"),
        (CLICKS, "table=clicks;tables=x", "has no setting 'tables'; did you mean table"),
        (CLICKS, "table=clicks;rows_per_shard=0", "rows_per_shard=0: expected a whole number"),
        ("sqlite+nothing://", "table=x", "sqlite+nothing://...:"),
    ],
)
def test_what_is_wrong_with_a_database_is_told(database, capsys, place, params, said):
    fill(database, 3)
    code, err = count(capsys, place, f"--data_reader_params={params}")
    assert (code, said in err) == (1, True), err
    assert not Path("none.db").exists()


def test_user_and_password_may_be_settings_of_the_reader(monkeypatch):
    """They may be references, as all settings: nobody else sees them then."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("PASSWORD", "secret")
    urls = []
    monkeypatch.setattr(sqlalchemy, "create_engine", lambda url, **_: urls.append(url) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_reader("postgresql://h/db", "table=t;user=me;password=env:PASSWORD")
    assert urls[0].render_as_string(hide_password=False) == "postgresql://me:secret@h/db"


def test_a_password_is_never_told(capsys):
    pytest.importorskip("sqlalchemy")
    for url in ("postgresql+psycopg://me:secret@127.0.0.1/db", "mysql+x://me:secret@127.0.0.1/db"):
        code, err = count(capsys, url, "--data_reader_params=table=t")
        assert code == 1
        assert "secret" not in err
        assert err.startswith("error: ")


def test_whole_numbers_with_null_have_the_statistics_of_whole_numbers(database):
    pytest.importorskip("duckdb")
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INT, truth BOOL, x REAL, no INT)")
    row = "INSERT INTO t VALUES (1, ?, 1, 0.5, NULL), (2, NULL, NULL, NULL, NULL)"
    database.execute(row, (2**60 + 1,))
    database.commit()
    words = ["data", "analyze", CLICKS, "--output=s.json", "--data_reader_params=table=t"]
    assert run_command(words) == 0
    found = json.loads(Path("s.json").read_text())["columns"]
    assert {name: each["kind"] for name, each in found.items()} == {
        "id": "int64",
        "n": "int64",
        "truth": "int64",
        "x": "float",
        "no": "float",
    }
    assert found["no"]["missing"] == 2
    assert found["n"]["vocabulary"]["values"] == [2**60 + 1]
    assert found["n"]["missing"] == found["x"]["missing"] == 1


def test_dates_of_a_database_have_statistics(database):
    pytest.importorskip("duckdb")
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, d DATE, at DATETIME)")
    database.execute("INSERT INTO t VALUES (1, '2026-01-31', '2026-01-31 12:00:00')")
    database.execute("INSERT INTO t VALUES (2, NULL, NULL)")
    database.commit()
    words = ["data", "analyze", CLICKS, "--output=s.json", "--data_reader_params=table=t"]
    assert run_command(words) == 0
    found = json.loads(Path("s.json").read_text())["columns"]
    assert found["d"]["vocabulary"]["values"] == ["2026-01-31"]
    assert found["at"]["vocabulary"]["values"] == ["2026-01-31 12:00:00"]
    assert (found["d"]["missing"], found["at"]["missing"]) == (1, 1)


def test_statistics_and_what_is_shown_of_a_database_have_no_password(database, capsys, monkeypatch):
    pytest.importorskip("duckdb")
    fill(database, 3)
    there = open_reader(CLICKS, "table=clicks")
    monkeypatch.setattr("elasticdl.data.open.open_reader", lambda place, params: there)
    place = "postgresql+psycopg://me:swordfish@127.0.0.1/db"
    assert run_command(["data", "analyze", place, "--output=s.json"]) == 0
    assert run_command(["data", "inspect", place]) == 0
    out = capsys.readouterr()
    assert "swordfish" not in out.out + out.err + Path("s.json").read_text()
    assert "postgresql+psycopg://me:***@127.0.0.1/db" in Path("s.json").read_text()


# --- folders of images


def make_images():
    for name, files in {"cat": ["b.PNG", "a.jpg", "notes.txt"], "dog": ["c.jpeg"]}.items():
        Path("pets", name).mkdir(parents=True)
        for file in files:
            Path("pets", name, file).write_bytes(file.encode())
    Path("pets/.hidden").mkdir()


def test_a_folder_of_a_folder_a_class_is_images_with_labels():
    make_images()
    reader = open_reader("pets")
    shards = reader.shards()
    assert [(Path(s.name).name, s.num_records) for s in shards] == [("cat", 2), ("dog", 1)]
    cats, dogs = read_all(reader)
    assert cats.columns["path"].tolist() == ["cat/a.jpg", "cat/b.PNG"]
    assert cats.columns["image"].tolist() == [b"a.jpg", b"b.PNG"]
    assert (cats.columns["label"].tolist(), dogs.columns["label"].tolist()) == ([0, 0], [1])


def test_images_that_are_gone_or_empty_since_are_told():
    make_images()
    reader = open_reader("pets")
    cats, dogs = reader.shards()
    Path("pets/cat/b.PNG").write_bytes(b"")
    with pytest.raises(DataError, match=r"cat/b\.PNG: is empty; expected an image"):
        list(reader.read(cats))
    Path("pets/dog/c.jpeg").unlink()
    with pytest.raises(DataError, match=r"dog/c\.jpeg: cannot be read: No such file"):
        list(reader.read(dogs))
    with pytest.raises(DataError, match="has the folder changed"):
        list(open_reader("pets", "format=images").read(dogs))


def test_a_table_beside_a_folder_of_images_is_the_data():
    make_images()
    Path("pets/train.csv").write_text("path,label\ncat/a.jpg,7\n")
    (records,) = read_all(open_reader("pets", "skip_header=true"))
    assert records.values == [b"cat/a.jpg,7"]
    assert len(open_reader("pets", "format=images").shards()) == 2


def test_a_folder_without_images_is_told(capsys):
    Path("pets/cat").mkdir(parents=True)
    assert "no images (.jpg" in count(capsys, "pets", "--data_reader_params=format=images")[1]
    Path("pets/cat").rmdir()
    found = count(capsys, "pets", "--data_reader_params=format=images")[1]
    assert "expected a folder for each class" in found


def test_images_become_examples_and_statistics(capsys):
    """Readers of columns serve the commands for data, too."""
    pytest.importorskip("duckdb")
    make_images()
    assert run_command(["data", "analyze", "pets", "--output=s.json"]) == 0
    assert "3 records" in capsys.readouterr().out


def numeric(database, kind, values):
    database.execute(f"CREATE TABLE n (id INTEGER PRIMARY KEY, x {kind})")
    database.executemany("INSERT INTO n (x) VALUES (?)", [(value,) for value in values])
    database.commit()
    reader = open_reader("sqlite:///data.db", "table=n")
    (shard,) = reader.shards()
    (records,) = reader.read(shard)
    return records.columns["x"]


@pytest.mark.parametrize("kind", ["NUMERIC(38, 0)", "INTEGER", "DECIMAL(20, 0)"])
def test_whole_numbers_of_a_database_stay_what_they_are(database, kind):
    column = numeric(database, kind, [2**53 + 1, 2**53])
    assert column.dtype == np.int64
    assert column.tolist() == [2**53 + 1, 2**53]


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        ("NUMERIC(38, 0)", [2**53 + 1, None], "the column has null, so it is float64"),
        ("NUMERIC", [2**53 + 1], "9007199254740993, which float64 turns into 9007199254740992.0"),
    ],
)
def test_numbers_of_a_database_that_would_meet_are_refused(database, kind, values, said):
    with pytest.raises(DataError, match=rf"column 'x': expected float64: found .*{said}"):
        numeric(database, kind, values)


@pytest.mark.parametrize("more", [[], [None]])
def test_text_is_no_truth_value(database, more):
    assert numeric(database, "BOOLEAN", [1, 0, 5]).tolist() == [1, 0, 1]
    database.execute("INSERT INTO n (x) VALUES ('false')")
    database.executemany("INSERT INTO n (x) VALUES (?)", [(value,) for value in more])
    database.commit()
    for reader in (
        open_reader(CLICKS, "table=n"),
        open_reader(CLICKS, "table=n").keeping_missing(),
    ):
        with pytest.raises(DataError, match=r"column 'x': expected .*: found 'false'"):
            read_all(reader)


def test_numbers_with_places_are_the_nearest(database):
    assert numeric(database, "NUMERIC(10, 2)", [1.25, 7]).tolist() == [1.25, 7.0]


def test_a_uuid_of_a_table_is_text(monkeypatch):
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="this needs elasticdl-train[sql]")
    from sqlalchemy.dialects.sqlite import base

    # SQLite has no type of this name; what PostgreSQL gives for its own is the same.
    monkeypatch.setitem(base.ischema_names, "UUID", sqlalchemy.types.Uuid)
    with closing(sqlite3.connect("data.db")) as connection:
        connection.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY, visitor UUID)")
        connection.execute("INSERT INTO visits VALUES (1, ?), (2, NULL)", ("ab" * 16,))
        connection.commit()
    (records,) = read_all(open_reader("sqlite:///data.db", "table=visits"))
    assert list(records.columns["visitor"]) == ["abababab-abab-abab-abab-abababababab", ""]


def test_null_of_a_column_of_lists_is_an_empty_list(database, monkeypatch):
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="this needs elasticdl-train[sql]")
    from sqlalchemy.dialects.sqlite import base

    class Lists(sqlalchemy.types.ARRAY):  # as PostgreSQL has them
        def __init__(self):
            super().__init__(sqlalchemy.types.Integer())

        def result_processor(self, dialect, coltype):
            return lambda value: None if value is None else json.loads(value)

    monkeypatch.setitem(base.ischema_names, "LISTS", Lists)
    assert numeric(database, "LISTS", ["[1, 2]", None, "[3]"]).tolist() == [[1, 2], [], [3]]


def test_json_of_a_table_is_text():
    pytest.importorskip("sqlalchemy", reason="this needs elasticdl-train[sql]")
    with closing(sqlite3.connect("data.db")) as connection:
        connection.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY, seen JSON)")
        connection.execute("""INSERT INTO visits VALUES (1, '{"a": [1, null]}'), (2, NULL)""")
        connection.commit()
    (records,) = read_all(open_reader("sqlite:///data.db", "table=visits"))
    assert list(records.columns["seen"]) == ['{"a": [1, null]}', ""]
