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


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def read(path, params=""):
    reader = open_reader(path, params)
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
            "category": pa.array(["u", "v"]).dictionary_encode(),
            "day": [day, day],
            "time": pa.array([0, 1], pa.timestamp("ms")),
            "decimal": [decimal.Decimal("1.25"), decimal.Decimal("2.50")],
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "list": [[1, 2, 3], None],
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
    assert columns["binary"].tolist() == [b"x", b""]
    assert columns["category"].tolist() == ["u", "v"]
    assert columns["day"][0] == np.datetime64("2013-01-01")
    assert columns["decimal"].tolist() == [1.25, 2.5]
    assert columns["vector"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert [value.tolist() for value in columns["list"]] == [[1, 2, 3], []]


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
    with pytest.raises(DataError, match=r"a\.parquet: rows .* cannot be read"):
        list(reader.read(Shard(path, 0, 10)))


def test_columns_may_be_chosen(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [1], "y": [2], "z": [3]})
    assert list(read(path, "columns=z,x")) == ["z", "x"]
    with pytest.raises(ConfigError, match=r"columns=w: .*a\.parquet has x, y, z"):
        open_reader(path, "columns=w")


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
        (pa.array([[1.0], None], pa.list_(pa.float32(), 1)), "has null in place of a vector"),
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


def test_null_is_seen_in_a_column_whose_name_has_a_dot(tmp_path):
    path = write(tmp_path / "a.parquet", {"user.id": [1, None]})
    reader = open_reader(path)
    assert reader.metadata.column_dtypes["user.id"] == np.float64
    assert str(read(path)["user.id"].tolist()) == "[1.0, nan]"


def test_without_pyarrow_the_remedy_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", {"x": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'pyarrow>="):
        open_reader(path)


def test_no_more_of_a_row_group_is_decoded_than_a_task_needs(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(50_000)}), path, row_group_size=50_000)
    reader = open_reader(str(path))
    decoded = []
    real = pq.ParquetFile.iter_batches

    def counted(self, *arguments, **options):
        for batch in real(self, *arguments, **options):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    records = list(reader.read(Shard(str(path), 5000, 6000)))
    assert sum(map(len, records)) == 1000
    assert sum(decoded) == 2 * 4096


def test_shards_end_where_row_groups_do(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"x": range(50_000)})
    pq.write_table(table, path, row_group_size=20_000)
    shards = open_reader(str(path)).shards()
    assert [(s.start, s.end) for s in shards] == [(0, 20_000), (20_000, 40_000), (40_000, 50_000)]

    pq.write_table(table, path, row_group_size=3_000)  # small ones are joined
    ends = [shard.end for shard in open_reader(str(path)).shards()]
    assert ends == [9_000, 18_000, 27_000, 36_000, 45_000, 50_000]
