"""Tables of MaxCompute, by a stand-in for its servers (`maxcompute_server.py`)."""

import datetime
import decimal
import importlib.util

import numpy as np
import pytest

pytest.importorskip("pyarrow")
import pyarrow as arrow

from elasticdl.cli.main import run_command
from elasticdl.data.open import open_reader
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard
from elasticdl.packages.readers import maxcompute
from tests.packages.readers.maxcompute_server import MaxComputeServer

# What only looks for tests does not wait until it is imported.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("odps") is None, reason="odps is not installed; make lock installs it"
)

PLACE = "odps://project/tables/clicks"
KEY = "swordfish-4711"


@pytest.fixture
def server(monkeypatch):
    import odps

    for name in ("AK", "SK", "ENDPOINT", "TUNNEL_ENDPOINT"):
        monkeypatch.delenv(f"MAXCOMPUTE_{name}", raising=False)
    monkeypatch.setattr(maxcompute, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(maxcompute, "TIMEOUT_SECONDS", 1)
    server = MaxComputeServer(access_key=KEY)
    with odps.config.option_context() as options:
        options.retry_delay = 0.01  # between the driver's own tries
        yield server
    server.close()


def clicks(count=10_000, first=0):
    numbers = range(first, first + count)
    return arrow.table({"n": list(numbers), "site": [f"größe {n % 5}" for n in numbers]})


def read(reader, shard):
    chunks = list(reader.read(shard))
    assert [chunk.start for chunk in chunks] == list(
        np.cumsum([shard.start, *map(len, chunks)])[:-1]
    )
    return {
        name: np.concatenate([np.asarray(chunk.columns[name]) for chunk in chunks])
        for name in reader.metadata.column_names
    }


@pytest.fixture
def days(server):
    for day, count in (("20260102", 20), ("20260101", 10), ("20260201", 40)):
        for region in ("cn", "sg"):
            server.tables[f"clicks/ds={day}/region={region}"] = clicks(count)
    return server


@pytest.mark.parametrize(
    ("place", "partition", "counts"),
    [
        (PLACE, "", [10, 10, 20, 20, 40, 40]),
        (PLACE, "partition=ds=202601*/region=cn", [10, 20]),
        (PLACE, "partition=ds=20260101/*", [10, 10]),
        (f"{PLACE}/ds=20260201/region=sg", "", [40]),
        (f"{PLACE}/ds=20260201/*", "", [40, 40]),
        (f"{PLACE}/ds=20260101/region=sg, {PLACE}/ds=20260102/region=sg", "", [10, 20]),
    ],
)
def test_partitions_are_chosen_by_name_and_counted_without_reading(days, place, partition, counts):
    reader = open_reader(place, f"{days.params};{partition}")
    shards = reader.shards()
    assert [shard.num_records for shard in shards] == counts
    assert shards[0].name.startswith(f"{PLACE}/ds=")
    assert days.asked == []


def test_the_keys_of_a_partition_may_be_columns(days):
    reader = open_reader(PLACE, f"{days.params};columns=region,n;partition=ds=20260101/*")
    assert reader.metadata.column_names == ("region", "n")
    for shard, region in zip(reader.shards(), ("cn", "sg"), strict=True):
        columns = read(reader, shard)
        assert columns["region"].tolist() == [region] * 10
        assert columns["n"].tolist() == list(range(10))


def test_every_type_becomes_an_array(server):
    server.tables["clicks"] = arrow.table(
        {
            "big": arrow.array([1, -(2**62)]),
            "small": arrow.array([1, -1], arrow.int32()),
            "x": [0.5, None],
            "f": arrow.array([0.25, 2], arrow.float32()),
            "t": ["é", None],
            "b": arrow.array([b"\x00", None], arrow.binary()),
            "is": [True, False],
            "at": arrow.array(
                [datetime.datetime(2026, 1, 2, 3, 4, 5), None], arrow.timestamp("ms")
            ),
            "day": [datetime.date(2026, 1, 2), None],
            "price": arrow.array([decimal.Decimal("1.25"), None], arrow.decimal128(10, 2)),
            "many": arrow.array([[1, 2], []], arrow.list_(arrow.int64())),
            "maybe": [7, None],
        }
    )
    reader = open_reader(PLACE, f"{server.params};nullable=maybe")

    columns = read(reader, Shard(PLACE, 0, 2))

    for name, dtype in reader.metadata.column_dtypes.items():
        assert columns[name].dtype == dtype, name
    assert columns["big"].tolist() == [1, -(2**62)]
    assert (columns["small"].dtype, columns["f"].dtype) == (np.int32, np.float32)
    np.testing.assert_array_equal(columns["x"], [0.5, np.nan])
    assert columns["t"].tolist() == ["é", ""]
    assert columns["b"].tolist() == [b"\x00", b""]
    assert columns["is"].tolist() == [True, False]
    assert columns["at"].astype(str).tolist() == ["2026-01-02T03:04:05.000", "NaT"]
    assert columns["day"].astype(str).tolist() == ["2026-01-02", "NaT"]
    np.testing.assert_array_equal(columns["price"], [1.25, np.nan])
    assert [values.tolist() for values in columns["many"]] == [[1, 2], []]
    np.testing.assert_array_equal(columns["maybe"], [7, np.nan])


def test_null_in_whole_numbers_is_told_with_its_row(server):
    server.tables["clicks"] = arrow.table({"n": [*range(5000), None]})
    with pytest.raises(DataError, match=r"row 5000 has null in column 'n'.*nullable=n to read"):
        read(open_reader(PLACE, server.params), Shard(PLACE, 0, 5001))
    columns = read(open_reader(PLACE, f"{server.params};nullable=*"), Shard(PLACE, 4999, 5001))
    np.testing.assert_array_equal(columns["n"], [4999, np.nan])


def test_a_value_that_no_array_can_have_is_told_with_its_place(server):
    lists = arrow.array([[1], [2, None]], arrow.list_(arrow.int64()))
    server.tables["clicks"] = arrow.table({"l": lists})
    said = r"clicks: rows \[0, 2\): column 'l' .* has null in a list"
    with pytest.raises(DataError, match=said) as told:
        read(open_reader(PLACE, server.params), Shard(PLACE, 0, 2))
    assert told.value.is_certain


@pytest.mark.parametrize("fault", ["break", "stall", "garble"])
def test_what_breaks_off_stalls_or_is_garbled_is_read_again_from_there(server, fault):
    server.tables["clicks"] = clicks()
    server.faults.extend([(fault, 100), (fault, 150_000), (fault, 100), (fault, 2)])

    columns = read(open_reader(PLACE, server.params), Shard(PLACE, 100, 9_000))

    assert columns["n"].tolist() == list(range(100, 9_000))
    assert server.met == [fault] * 4
    begins = [start for start, _ in server.asked]
    assert begins[:2] == [100, 100]
    assert begins[-1] >= 3_100  # rows that had come whole were not asked for again
    assert begins == sorted(begins)
    assert {start + count for start, count in server.asked} == {9_000}


def test_a_session_that_has_ended_is_opened_anew(server):
    server.tables["clicks"] = clicks(10)
    reader = open_reader(PLACE, server.params)
    (shard,) = reader.shards()
    server.sessions.clear()
    assert read(reader, shard)["n"].tolist() == list(range(10))


def test_a_server_that_always_breaks_off_costs_the_task_with_the_row(server):
    server.tables["clicks"] = clicks()
    server.faults.extend([("break", 100)] * 99)
    with pytest.raises(DataError, match=r"clicks: row 0: broke off: .*\(6 times in a row\)"):
        read(open_reader(PLACE, server.params), Shard(PLACE, 0, 10))
    assert len(server.met) == maxcompute.TRIES


def test_a_table_that_became_shorter_is_told(server):
    server.tables["clicks"] = clicks(10)
    (shard,) = open_reader(PLACE, server.params).shards()
    server.tables["clicks"] = clicks(9)
    with pytest.raises(DataError, match=r"rows \[0, 10\) were asked for, but it has 9; has the"):
        read(open_reader(PLACE, server.params), shard)


def test_who_reads_and_where_may_be_in_the_environment_as_before(server, monkeypatch):
    server.tables["clicks"] = clicks(10)
    with pytest.raises(ConfigError, match=r"expected access_id=..., or the .* MAXCOMPUTE_AK"):
        open_reader(PLACE)
    monkeypatch.setenv("MAXCOMPUTE_AK", "reader")
    monkeypatch.setenv("MAXCOMPUTE_SK", KEY)
    monkeypatch.setenv("MAXCOMPUTE_ENDPOINT", server.endpoint)
    monkeypatch.setenv("MAXCOMPUTE_TUNNEL_ENDPOINT", server.endpoint)
    assert open_reader(PLACE).shards() == [Shard(PLACE, 0, 10)]


@pytest.mark.parametrize(
    ("place", "params", "said"),
    [
        ("odps://project/clicks", "", "expected odps://PROJECT/tables/TABLE"),
        ("odps://other/tables/clicks", "", "no project other"),
        ("odps://project/tables/none", "", "no table none"),
        (f"{PLACE}/ds=1", "", "partition ds=1: the table has no partitions"),
        ("odps://project/tables/days", "partition=ds=3", "no partition ds=3: expected ds=..., in"),
        ("odps://project/tables/days", "partition=ds=3", "it has ds=1"),
        ("odps://project/tables/days/ds=7", "", "no partition days/ds=7"),
        (PLACE, "columns=z", "column z: odps://project/tables/clicks has n, site"),
        (PLACE, "nullable=z", "column z: odps://project/tables/clicks has n, site"),
        (PLACE, "column=n", "has no setting 'column'; did you mean columns"),
        (f"{PLACE},odps://project/tables/maps", "", "has the columns n int64, m map<"),
        ("odps://project/tables/maps", "", "column 'm' has the type map"),
    ],
)
def test_what_is_wrong_with_a_table_is_told(server, place, params, said):
    server.tables["clicks"] = clicks(3)
    server.tables["days/ds=1"] = clicks(3)
    maps = arrow.array([[("a", 1)]], arrow.map_(arrow.string(), arrow.int64()))
    server.tables["maps"] = arrow.table({"n": [1], "m": maps})

    def look():
        reader = open_reader(place, f"{server.params};{params}")
        return reader.shards(), reader.metadata

    with pytest.raises((ConfigError, DataError)) as told:
        look()
    assert said in str(told.value)
    assert KEY not in str(told.value)


def test_a_key_that_is_not_right_is_told_and_not_shown(server, capsys):
    server.tables["clicks"] = clicks(3)
    params = server.params.replace(KEY, f"other-{KEY}")
    code = run_command(["data", "count", PLACE, f"--data_reader_params={params}"])
    out = capsys.readouterr()
    assert code == 1
    assert "signature does not match; may reader read it" in out.err
    assert KEY not in out.out + out.err


def test_a_server_that_is_not_there_is_told(server, capsys, monkeypatch):
    params = server.params
    monkeypatch.setattr(maxcompute, "TIMEOUT_SECONDS", 1)
    server.close()
    code = run_command(["data", "count", PLACE, f"--data_reader_params={params}"])
    out = capsys.readouterr()
    assert (code, "does not answer" in out.err) == (1, True), out.err
    assert KEY not in out.out + out.err
