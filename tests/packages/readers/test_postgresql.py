"""Tables of PostgreSQL, by Debian's server in a cluster of its own behind a Unix socket."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from elasticdl.cli.main import run_command
from elasticdl.data.open import open_reader
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard

pytestmark = [pytest.mark.postgresql, pytest.mark.timeout(300)]

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
OWNER = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root


@pytest.fixture(scope="module")
def place():
    """The URL of a database of a server that runs for the tests of this file."""
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("psycopg")
    if not BINARIES:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # sockets have short paths
    if OWNER:
        shutil.chown(folder, OWNER)
    run("initdb", "-D", folder / "data", "-U", "test", "-A", "trust", "--no-sync", "-E", "UTF8")
    settings = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    run("pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log", "-o", settings, "start")
    try:
        yield f"postgresql+psycopg://test@/postgres?host={folder}"
    finally:
        run("pg_ctl", "-D", folder / "data", "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder)


def run(program, *words):
    done = subprocess.run(
        [BINARIES[-1] / program, *words],
        user=OWNER,
        cwd="/tmp",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if program != "pg_ctl" else subprocess.DEVNULL,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def clicks(place):
    """A table of 1,000 rows whose keys have holes."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(place)
    with engine.begin() as connection:
        say = lambda words: connection.execute(sqlalchemy.text(words))  # noqa: E731
        say(
            "CREATE TABLE clicks (id BIGINT PRIMARY KEY, clicked BOOLEAN NOT NULL, price REAL, "
            "site TEXT, counts INTEGER[], seen TIMESTAMP)"
        )
        say(
            "INSERT INTO clicks (id, clicked, price, site) SELECT 7 * n, n % 3 = 0, "
            "CASE WHEN n % 10 = 0 THEN NULL ELSE n / 4.0 END, "
            "CASE WHEN n % 5 = 0 THEN NULL ELSE 'größe ' || n % 5 END "
            "FROM generate_series(0, 999) n"
        )
    engine.dispose()
    return place


def test_ranges_of_keys_cover_all_rows_and_give_their_values(clicks):
    params = "table=clicks;columns=id,clicked,price,site;rows_per_shard=300"
    reader = open_reader(clicks, params)

    shards = reader.shards()

    assert [shard.num_records for shard in shards] == [300, 300, 300, 100]
    chunks = [records for shard in shards for records in reader.read(shard)]
    columns = {
        name: np.concatenate([np.asarray(chunk.columns[name]) for chunk in chunks])
        for name in reader.metadata.column_names
    }
    n = np.arange(1000)
    np.testing.assert_array_equal(columns["id"], 7 * n)
    np.testing.assert_array_equal(columns["clicked"], n % 3 == 0)
    np.testing.assert_array_equal(columns["price"], np.where(n % 10 == 0, np.nan, n / 4))
    expected = ["" if k % 5 == 0 else f"größe {k % 5}" for k in range(1000)]
    assert columns["site"].tolist() == expected


def test_values_of_no_type_of_numpy_are_text_and_intervals_are_durations(place):
    import sqlalchemy

    kinds = "i INTERVAL, j JSON, b JSONB, a INET, n CIDR, t TIME, r INT4RANGE, c INTEGER[], d BYTEA"
    values = (
        """'1 day 00:00:01', '{"a": [1, "ö"]}', '[true]', '10.0.0.1', '10.0.0.0/8', '12:30:01', """
        "'[1,5)', '{1,2}', 'x'"
    )
    engine = sqlalchemy.create_engine(place)
    with engine.begin() as connection:
        for words in (
            f"CREATE TABLE odd (id BIGINT PRIMARY KEY, {kinds})",
            f"INSERT INTO odd VALUES (1, {values})",
            "INSERT INTO odd (id) VALUES (2)",
        ):
            connection.exec_driver_sql(words)
    engine.dispose()
    reader = open_reader(place, "table=odd")
    (records,) = [one for shard in reader.shards() for one in reader.read(shard)]
    found = {name: column[0] for name, column in records.columns.items() if name != "id"}
    assert found == {
        "i": np.timedelta64(86_401_000_000, "us"),
        "j": '{"a": [1, "ö"]}',
        "b": "[true]",
        "a": "10.0.0.1",
        "n": "10.0.0.0/8",
        "t": "12:30:01",
        "r": "[1,5)",
        "c": [1, 2],
        "d": b"x",
    }
    assert np.isnat(records.columns["i"][1])
    assert [records.columns[name][1] for name in "jban"] == [""] * 4


def test_a_part_of_a_range_is_read_by_another_reader(clicks):
    params = "table=clicks;columns=id;rows_per_shard=300"
    (_, second, *_) = open_reader(clicks, params).shards()

    chunks = list(open_reader(clicks, params).read(Shard(second.name, 10, 20)))

    assert np.concatenate([c.columns["id"] for c in chunks]).tolist() == [
        7 * n for n in range(310, 320)
    ]


def test_rows_that_go_while_a_job_runs_are_told(clicks):
    import sqlalchemy

    params = "table=short;columns=id"
    engine = sqlalchemy.create_engine(clicks)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE short AS SELECT id FROM clicks"))
        connection.execute(sqlalchemy.text("ALTER TABLE short ADD PRIMARY KEY (id)"))
    reader = open_reader(clicks, params)
    (shard,) = reader.shards()
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("DELETE FROM short WHERE id > 3500"))
    engine.dispose()

    with pytest.raises(DataError, match="has the table changed since they were counted"):
        list(reader.read(shard))


def test_the_command_counts_and_a_missing_table_is_named(clicks, capsys):
    assert run_command(["data", "count", clicks, "--data_reader_params=table=clicks"]) == 0
    assert "1,000" in capsys.readouterr().out
    with pytest.raises(DataError, match="no table 'clikcs'; it has "):
        open_reader(clicks, "table=clikcs")


def test_a_server_that_is_not_there_is_told_without_the_password(tmp_path):
    pytest.importorskip("psycopg")
    url = f"postgresql+psycopg://test:secret@/postgres?host={tmp_path}"

    with pytest.raises((DataError, ConfigError)) as told:
        open_reader(url, "table=clicks").shards()

    assert "secret" not in str(told.value)
