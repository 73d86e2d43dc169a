import datetime
import decimal
import sys

import numpy as np
import pytest

from elasticdl.data.open import open_reader
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ID = decimal.Decimal(2**53 + 1)
ONE_HALF = decimal.Decimal("0.5")


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def read(path, params=""):
    reader = open_reader(str(path), params)
    chunks = [records for shard in reader.shards() for records in reader.read(shard)]
    return {name: np.concatenate([c.columns[name] for c in chunks]) for name in chunks[0].columns}


def test_every_type_has_an_array_and_the_metadata_says_which(tmp_path):
    day = datetime.date(2013, 1, 1)
    path = write(
        tmp_path / "a.parquet",
        {
            "int8": pa.array([1, 2], pa.int8()),
            "uint64": pa.array([1, 2**63], pa.uint64()),
            "float": pa.array([1.5, None], pa.float32()),
            "bool": [True, False],
            "nullable_int": [1, None],
            "nullable_bool": [None, True],
            "text": ["é", None],
            "binary": [b"x", None],
            "binary_view": pa.array([b"x", None], pa.binary_view()),
            "category": pa.array(["u", "v"]).dictionary_encode(),
            "day": [day, day],
            "time": pa.array([0, 1], pa.timestamp("ms")),
            "decimal": [decimal.Decimal("1.25"), decimal.Decimal("2.50")],
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "list": [[1, 2, 3], None],
            "days": pa.array([[day], [day]], pa.list_(pa.date32(), 1)),
            "zoned": pa.array([[0], [1]], pa.list_(pa.timestamp("us", "UTC"), 1)),
            "clock": pa.array([[0], [1]], pa.list_(pa.time32("s"), 1)),
            "empty": [[], None],
            "uuid": pa.array([b"0123456789abcdef", None], pa.uuid()),
            "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None])),
        },
    )
    columns, metadata = read(path), open_reader(path).metadata
    assert metadata.column_names == tuple(columns)
    for name, column in columns.items():
        assert column.dtype == metadata.column_dtypes[name], name
    assert columns["int8"].dtype == np.int8
    assert columns["uint64"].tolist() == [1, 2**63]
    assert columns["bool"].tolist() == [True, False]
    np.testing.assert_array_equal(columns["nullable_int"], [1.0, np.nan])
    np.testing.assert_array_equal(columns["nullable_bool"], [np.nan, 1.0])
    assert columns["text"].tolist() == ["é", ""]
    assert columns["binary"].tolist() == columns["binary_view"].tolist() == [b"x", b""]
    assert columns["category"].tolist() == ["u", "v"]
    assert columns["day"][0] == np.datetime64("2013-01-01")
    assert columns["decimal"].tolist() == [1.25, 2.5]
    assert columns["vector"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert [value.tolist() for value in columns["list"]] == [[1, 2, 3], []]
    assert columns["days"].tolist() == [[day], [day]]
    assert columns["zoned"].astype(int).tolist() == [[0], [1]]
    assert [value.tolist() for value in columns["clock"]] == [["00:00:00"], ["00:00:01"]]
    assert [value.tolist() for value in columns["empty"]] == [[], []]
    assert columns["uuid"].tolist() == ["30313233-3435-3637-3839-616263646566", ""]
    assert columns["json"].tolist() == ['{"a": 1}', ""]


def test_a_column_has_one_type_even_if_only_another_file_has_nulls(tmp_path):
    write(tmp_path / "a.parquet", {"x": pa.array([1, 2], pa.int64())})
    write(tmp_path / "b.parquet", {"x": pa.array([3, None], pa.int64())})
    reader = open_reader(str(tmp_path))
    chunks = [r for shard in reader.shards() for r in reader.read(shard)]
    assert [chunk.columns["x"].dtype for chunk in chunks] == [np.float64, np.float64]


def test_only_the_row_groups_of_a_range_are_read(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": np.arange(1000)}, row_group_size=100)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    first = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start = first.dictionary_page_offset or first.data_page_offset
    data[start : start + first.total_compressed_size] = bytes(first.total_compressed_size)
    (tmp_path / "a.parquet").write_bytes(data)
    reader = open_reader(path)
    chunks = list(reader.read(Shard(path, 150, 420)))
    got = np.concatenate([chunk.columns["x"] for chunk in chunks])
    np.testing.assert_array_equal(got, np.arange(150, 420))
    with pytest.raises(DataError, match=r"a\.parquet: column .x. in row group 0: the header"):
        list(reader.read(Shard(path, 0, 10)))


def test_columns_may_be_chosen(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [1], "y": [2], "z": [3]})
    assert list(read(path, "columns=z,x")) == ["z", "x"]
    with pytest.raises(ConfigError, match=r"columns=w: .*a\.parquet has x, y, z"):
        open_reader(path, "columns=w")


def test_an_index_of_pandas_is_no_column_unless_it_is_named(tmp_path):
    write(tmp_path / "a.parquet", {"x": [1], "__index_level_0__": [7]})
    write(tmp_path / "b.parquet", {"x": [2]})
    assert {name: column.tolist() for name, column in read(tmp_path).items()} == {"x": [1, 2]}
    path = tmp_path / "a.parquet"
    assert read(path, "columns=__index_level_0__")["__index_level_0__"].tolist() == [7]


def test_files_of_other_columns_are_refused(tmp_path):
    write(tmp_path / "a.parquet", {"x": [1]})
    write(tmp_path / "b.parquet", {"x": ["text"]})
    with pytest.raises(
        DataError, match=r"b\.parquet: column 'x' is string, in .*a\.parquet it is int64"
    ):
        open_reader(str(tmp_path)).shards()


def test_a_range_beyond_the_file_and_a_foreign_file_are_refused(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [1]})
    with pytest.raises(DataError, match=r"rows \[0, 2\) were asked for, but it has 1"):
        list(open_reader(path).read(Shard(path, 0, 2)))
    (tmp_path / "b.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"b\.parquet: not a Parquet file"):
        open_reader(str(tmp_path / "b.parquet"))


def test_a_type_without_an_array_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [{"nested": 1}]})
    with pytest.raises(DataError, match="column 'x' has the type struct"):
        open_reader(path).shards()


@pytest.mark.parametrize(
    "values", [[[[1], [2, 3]]], [[{"x": 1}]]], ids=["lists of lists", "lists of structs"]
)
def test_lists_of_what_is_no_value_are_refused_before_they_are_read(tmp_path, values):
    path = write(tmp_path / "a.parquet", {"x": values})
    with pytest.raises(DataError, match=r"a\.parquet: column 'x' has the type list"):
        open_reader(path).shards()


def test_lists_have_one_type_whatever_is_in_them(tmp_path):
    lists = {
        "whole": pa.array([[], [1, 2], None], pa.list_(pa.int32())),
        "real": pa.array([[None], [0.5], []], pa.large_list(pa.float32())),
        "text": pa.array([["a", None], [], None], pa.list_(pa.string())),
    }
    path = write(tmp_path / "a.parquet", lists)
    columns = read(path)
    assert [row.dtype for row in columns["whole"]] == [np.int32] * 3
    assert [row.tolist() for row in columns["whole"]] == [[], [1, 2], []]
    assert [row.dtype for row in columns["real"]] == [np.float32] * 3
    assert [str(row.tolist()) for row in columns["real"]] == ["[nan]", "[0.5]", "[]"]
    assert [row.tolist() for row in columns["text"]] == [["a", ""], [], []]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([[1, None]], pa.list_(pa.int64())), "has null in a list"),
        (pa.array([[1.0], None], pa.list_(pa.float32(), 1)), "has null instead of a vector"),
        (pa.array([[1], [None]], pa.list_(pa.int64(), 1)), "has null in a vector"),
        (pa.array([[True], [None]], pa.list_(pa.bool_(), 1)), "has null in a vector"),
    ],
)
def test_null_that_no_array_can_have_is_told(tmp_path, values, said):
    path = write(tmp_path / "a.parquet", {"x": values})
    with pytest.raises(DataError, match=rf"a\.parquet: column 'x' .* {said}"):
        read(path)


def test_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: several columns are called 'x'"):
        open_reader(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("num_rows", [50, 200])
def test_a_file_that_has_changed_since_it_was_counted_is_told_as_such(tmp_path, num_rows):
    path = write(tmp_path / "a.parquet", {"x": list(range(100))})
    reader = open_reader(str(path))
    (shard,) = reader.shards()
    write(tmp_path / "a.parquet", {"x": list(range(num_rows))})
    with pytest.raises(DataError, match=r"a\.parquet: it has .* bytes, and had .* when its rows"):
        list(reader.read(shard))


def test_a_column_without_a_name_is_refused_if_it_is_read(tmp_path):
    write(tmp_path / "a.parquet", {"x": [1], "": [2]})
    with pytest.raises(DataError, match=r"a\.parquet: column 2 of 2 has no name"):
        open_reader(str(tmp_path / "a.parquet"))
    assert open_reader(str(tmp_path / "a.parquet"), "columns=x").metadata.column_names == ("x",)


def test_null_is_seen_in_a_column_whose_name_has_a_dot(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": [2**53 + 1, 0], "user.id": [1, None]})
    reader = open_reader(path)
    assert reader.metadata.column_dtypes["user.id"] == np.float64
    assert str(read(path)["user.id"].tolist()) == "[1.0, nan]"
    assert read(path)["user"].tolist() == [2**53 + 1, 0]


def test_without_pyarrow_the_remedy_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", {"x": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'pyarrow>="):
        open_reader(path)


@pytest.fixture
def decoded(monkeypatch):
    """Return the numbers of rows that are decoded at once."""
    found = []
    whole, parts = pq.ParquetFile.read_row_group, pq.ParquetFile.iter_batches

    def read_row_group(self, *arguments, **options):
        table = whole(self, *arguments, **options)
        found.append(table.num_rows)
        return table

    def iter_batches(self, *arguments, **options):
        for batch in parts(self, *arguments, **options):
            found.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    return found


def rows(reader, path, start, end):
    chunks = reader.read(Shard(path, start, end))
    return np.concatenate([chunk.columns["x"] for chunk in chunks]).tolist()


@pytest.mark.parametrize("kept", [512 << 20, 1])
def test_times_of_int96_that_would_become_others_are_refused(tmp_path, monkeypatch, kept):
    monkeypatch.setattr("elasticdl.data.row_groups.KEPT_BYTES", kept)
    near, far = datetime.datetime(1700, 1, 1), datetime.datetime(9999, 12, 31)
    options = {"use_deprecated_int96_timestamps": True, "row_group_size": 1}
    path = write(tmp_path / "a.parquet", {"x": [near, far], "y": [1, 2]}, **options)
    reader = open_reader(path)
    (records,) = reader.read(Shard(path, 0, 1))
    assert records.columns["x"] == np.datetime64(near, "ns")
    with pytest.raises(DataError, match=r"a\.parquet: column 'x' in row group 1: it has a time of"):
        list(reader.read(Shard(path, 1, 2)))
    assert read(path, "columns=y")["y"].tolist() == [1, 2]


def test_a_row_group_is_decoded_once_for_many_small_ranges(tmp_path, decoded):
    path = write(tmp_path / "x.parquet", {"x": range(50_000)}, row_group_size=25_000)
    reader = open_reader(path)
    for start in (40_000, 24_995, 100, 30_000):
        assert rows(reader, path, start, start + 10) == list(range(start, start + 10))
    assert decoded == [25_000, 25_000]


def test_row_groups_that_are_kept_have_a_bound_and_are_found_the_next_time(
    tmp_path, decoded, monkeypatch
):
    monkeypatch.setattr("elasticdl.data.row_groups.KEPT_BYTES", 20_000)
    path = write(tmp_path / "x.parquet", {"x": range(4000)}, row_group_size=1000)
    reader = open_reader(path)
    for _ in range(2):
        for start in (0, 1000, 2000, 3000):
            assert rows(reader, path, start + 5, start + 7) == [start + 5, start + 6]
    assert len(decoded) == 4 + 2  # two of four were kept, for the next time too


def test_a_row_group_that_is_too_large_is_decoded_once_for_ranges_in_order(
    tmp_path, decoded, monkeypatch
):
    monkeypatch.setattr("elasticdl.data.row_groups.KEPT_BYTES", 100)
    path = write(tmp_path / "x.parquet", {"x": range(50_000)})
    reader = open_reader(path)
    for start in (5000, 6000, 9000, 30_000):
        assert rows(reader, path, start, start + 10) == list(range(start, start + 10))
    assert decoded == [4096] * 8
    assert rows(reader, path, 0, 2) == [0, 1]
    # Rows of many bytes, such as images, are decoded a few at a time.
    monkeypatch.setattr("elasticdl.data.row_groups.BATCH_BYTES", 1000)
    decoded.clear()
    assert rows(open_reader(path), path, 500, 510) == list(range(500, 510))
    assert 2 < max(decoded) < 200


def flip(path, place, bits):
    data = bytearray(path.read_bytes())
    data[place] ^= bits
    path.write_bytes(data)


PAGES = {
    "one page": {},
    "pages": {"data_page_size": 64, "write_batch_size": 8},
    "dictionary": {"use_dictionary": True},
    "version 2": {"data_page_version": "2.0"},
    "large": {"kept": 100},
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_damaged_page_shifts_no_column(tmp_path, monkeypatch, kind):
    """Bits of the pages of one row group are flipped; the others stay what they are."""
    options = {"use_dictionary": False, **PAGES[kind]}
    if kept := options.pop("kept", None):
        monkeypatch.setattr("elasticdl.data.row_groups.KEPT_BYTES", kept)
    path = tmp_path / "x.parquet"
    values = pa.array([n if n % 7 else None for n in range(90)], pa.int32())
    write(path, {"x": values, "y": range(90)}, row_group_size=30, compression="none", **options)
    whole = path.read_bytes()
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    refused = 0
    for bit in range(8 * start, 8 * (start + chunk.total_compressed_size), 7):
        path.write_bytes(whole)
        flip(path, bit // 8, 1 << bit % 8)
        try:
            found = read(path)
        except DataError as error:
            refused += 1
            assert "x.parquet" in str(error)  # noqa: PT017 - most flips change a value alone
            continue
        assert [len(column) for column in found.values()] == [90, 90]
        np.testing.assert_array_equal(
            found["x"][60:], [n if n % 7 else np.nan for n in range(60, 90)]
        )
    assert refused


def test_pages_of_another_number_of_values_are_told_with_file_column_and_row_group(tmp_path):
    path = tmp_path / "x.parquet"
    write(path, {"x": range(60), "y": range(60)}, row_group_size=30, compression="none")
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(1)
    header = path.read_bytes().index(b"\x15\x3c", chunk.data_page_offset)  # 30 values
    flip(path, header + 1, 2)
    with pytest.raises(
        DataError, match=r"x\.parquet: column 'y' in row group 1: its pages have 31"
    ):
        read(path)


def test_checksums_of_pages_are_verified_where_there_are_some(tmp_path):
    path = tmp_path / "x.parquet"
    write(
        path, {"x": range(60)}, compression="none", use_dictionary=False, write_page_checksum=True
    )
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - 1, 1)
    with pytest.raises(DataError, match=r"column 'x' in row group 0 cannot be read: .*CRC"):
        read(path)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.array([7]), pa.array([None]), [7.0, np.nan]),
        (pa.array([None]), pa.array([7]), [np.nan, 7.0]),
        (pa.array(["a"]), pa.array([None], pa.float64()), ["a", ""]),
        (pa.array([None], pa.float64()), pa.array(["a"]), ["", "a"]),
        (pa.array([None]), pa.array([None]), [np.nan, np.nan]),
        (pa.array(["a"]), pa.array(["b"]).dictionary_encode(), ["a", "b"]),
        (pa.array(["a"]).dictionary_encode(), pa.array(["b"], pa.large_string()), ["a", "b"]),
        (pa.array([1], pa.int32()), pa.array([2**40]), [1, 2**40]),
        (pa.array([2**53 + 1]), pa.array([], pa.int64()), [2**53 + 1]),
        (pa.array([], pa.string()), pa.array([2**53 + 1]), [2**53 + 1]),
        (pa.array([], pa.list_(pa.int32())), pa.array([True]), [True]),
        (pa.array([1]), pa.array([0.5]), [1.0, 0.5]),
        (pa.array([1]), pa.array([ONE_HALF], pa.decimal32(5, 2)), [1.0, 0.5]),
        (pa.array([ONE_HALF], pa.decimal128(5, 1)), pa.array([2**40]), [0.5, 2.0**40]),
        (pa.array([ID], pa.decimal128(38, 0)), pa.array([2**53]), [2**53 + 1, 2**53]),
        (
            pa.array([0], pa.timestamp("us")),
            pa.array([5], pa.timestamp("ns")),
            [np.datetime64(0, "ns"), np.datetime64(5, "ns")],
        ),
    ],
)
def test_a_column_has_the_type_that_holds_it_in_all_files(tmp_path, one, other, expected):
    write(tmp_path / "a.parquet", {"x": one})
    write(tmp_path / "b.parquet", {"x": other})
    column = read(tmp_path)["x"]
    assert column.dtype == open_reader(str(tmp_path)).metadata.column_dtypes["x"]
    assert str(list(column)) == str(list(np.asarray(expected, column.dtype)))


def test_decimals_without_places_are_whole_numbers(tmp_path):
    ids = pa.array([ID, ID - 1], pa.decimal128(38, 0))
    path = write(tmp_path / "a.parquet", {"x": ids, "n": pa.array([None, 7], pa.decimal128(9, 0))})
    columns = read(path)
    assert columns["x"].dtype == np.int64
    assert columns["x"].tolist() == [2**53 + 1, 2**53]
    assert str(columns["n"].tolist()) == "[nan, 7.0]"
    assert open_reader(path).metadata.column_kinds == {"x": "whole", "n": "whole"}
    kept = open_reader(path).keeping_missing()
    (chunk,) = kept.read(Shard(path, 0, 2))
    assert chunk.columns["n"].tolist() == [None, 7]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([ID, None], pa.decimal128(38, 0)), "has numbers above 2^53"),
        (pa.array([decimal.Decimal(10**30)], pa.decimal128(38, 0)), "that int64 does not hold"),
        (pa.array([decimal.Decimal("1.5"), ID], pa.decimal128(38, 9)), "has 9007199254740993.0"),
    ],
)
def test_decimals_of_which_several_would_be_one_are_refused(tmp_path, column, said):
    path = write(tmp_path / "a.parquet", {"x": column})
    with pytest.raises(DataError, match=r"a\.parquet: column 'x' .*") as raised:
        read(path)
    assert said in str(raised.value)


def test_whole_numbers_that_would_meet_with_the_other_files_are_refused(tmp_path):
    write(tmp_path / "a.parquet", {"x": [2**53 + 1]})
    write(tmp_path / "b.parquet", {"x": [0.5]})
    with pytest.raises(DataError, match=r"a\.parquet: column 'x' is int64 here, and double"):
        read(tmp_path)


def test_folders_of_values_are_columns(tmp_path):
    for day, shop, value in (("2026-11-01", "07", 1), ("2026-11-02", "12", 2)):
        folder = tmp_path / f"day={day}" / f"shop={shop}"
        folder.mkdir(parents=True)
        write(folder / "a.parquet", {"x": [value, value + 10]})
    (tmp_path / "_SUCCESS").touch()
    reader = open_reader(str(tmp_path))
    assert reader.metadata.column_names == ("x", "day", "shop")
    assert reader.metadata.column_dtypes["shop"] == np.int64
    columns = read(tmp_path)
    assert columns["x"].tolist() == [1, 11, 2, 12]
    assert columns["day"].tolist() == ["2026-11-01"] * 2 + ["2026-11-02"] * 2
    assert columns["shop"].tolist() == [7, 7, 12, 12]
    assert list(read(tmp_path, "columns=shop")) == ["shop"]
    (tmp_path / "day=2026-11-01" / "shop=__HIVE_DEFAULT_PARTITION__").mkdir()
    write(tmp_path / "day=2026-11-01/shop=__HIVE_DEFAULT_PARTITION__/a.parquet", {"x": [3]})
    assert str(read(tmp_path)["shop"].tolist()) == "[7.0, 7.0, nan, 12.0, 12.0]"
    write(tmp_path / "day=2026-11-02" / "b.parquet", {"x": [3]})
    with pytest.raises(DataError, match=r"below folders of the columns day, and .* day, shop"):
        open_reader(str(tmp_path / "**" / "*.parquet"))


@pytest.mark.parametrize("folder", ["my col", "my%20col"])
def test_a_column_of_folders_may_have_any_name(tmp_path, folder):
    (tmp_path / f"{folder}=a%2Fb" / "1st=5").mkdir(parents=True)
    write(tmp_path / f"{folder}=a%2Fb" / "1st=5" / "a.parquet", {"x": [1]})
    found = {name: column.tolist() for name, column in read(tmp_path).items()}
    assert found == {"x": [1], "my col": ["a/b"], "1st": [5]}


def test_shards_end_where_row_groups_do(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"x": range(50_000)})
    pq.write_table(table, path, row_group_size=20_000)
    shards = open_reader(str(path)).shards()
    assert [(s.start, s.end) for s in shards] == [(0, 20_000), (20_000, 40_000), (40_000, 50_000)]

    pq.write_table(table, path, row_group_size=3_000)  # small ones are joined
    ends = [shard.end for shard in open_reader(str(path)).shards()]
    assert ends == [9_000, 18_000, 27_000, 36_000, 45_000, 50_000]
