"""Exported tables are read by others: here pandas, pyarrow and DuckDB; Java by a make target."""

import json
from dataclasses import asdict

import duckdb
import numpy as np
import pandas as pd
import pyarrow.dataset
import pytest

from elasticdl._core import PsClient, PsServer, Store, keys_of_strings
from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription
from elasticdl.checkpoints.exports import write_tables

WORDS = [f"größe {i}" for i in range(5000)]
DIM = 3


@pytest.fixture
def client():
    """Two replicas, with a table that keeps the strings of its ids and one that does not."""
    uniform, rule = Initializer("uniform", {"low": -0.05, "high": 0.05}), OptimizerSpec("sgd")
    tables = (
        TableDescription("word", DIM, uniform, rule, keep_names=True),
        TableDescription("number", DIM, uniform, rule),
    )
    model = ModelDescription(tables, dense=(), state=(), optimizer=rule, seed=3)
    servers = [PsServer(Store(r, 2), "127.0.0.1", 0, b"token") for r in range(2)]
    client = PsClient.connect([server.address for server in servers], b"token", 0, 30)
    nothing = np.zeros(0, np.float32)
    client.declare(json.dumps(asdict(model)), nothing, nothing)
    for index, words in enumerate([WORDS, WORDS[:70]]):
        keys = keys_of_strings(words)
        pulled = client.pull([(0, keys), (1, keys)], training=True)
        client.name_keys([(0, keys, words)])
        grads = np.random.default_rng(index).normal(size=(2, len(words), DIM))
        client.push(
            pulled, list(grads.astype(np.float32)), nothing, nothing, 0.1, 1, 1, index, len(words)
        )
    yield client
    for server in servers:
        server.stop()


def rows_in_store(client, table, since):
    """What the store has, by id."""
    words = WORDS if since is None else WORDS[:70]
    names = dict(zip(keys_of_strings(words).tolist(), words, strict=True))
    return {
        key: (names[key] if table == 0 else None, row)
        for keys, rows in client.scan(table)
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True)
        if key in names
    }


def by_pandas(folder):
    frame = pd.read_parquet(folder)
    names = frame["name"] if "name" in frame else [None] * len(frame)
    return zip(frame["key"], names, (w.tolist() for w in frame["weights"]), strict=True)


def by_pyarrow(folder):
    rows = pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist()
    return ((row["key"], row.get("name"), row["weights"]) for row in rows)


def by_duckdb(folder):
    name = "name" if folder.name == "word" else "NULL"
    query = f"SELECT key, {name}, weights FROM '{folder}/*.parquet'"
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("since", [None, 1], ids=["full", "delta"])
@pytest.mark.parametrize("read", [by_pandas, by_pyarrow, by_duckdb])
def test_an_export_is_read_by_others(client, read, since, tmp_path):
    num_rows = write_tables(tmp_path / "tables", client.export, None, since)

    assert num_rows == 2 * len(WORDS if since is None else WORDS[:70])
    for number, table in enumerate(["word", "number"]):
        found = read(tmp_path / "tables" / table)
        found = {key: (name, list(weights)) for key, name, weights in found}
        assert found == rows_in_store(client, number, since)


def test_a_person_finds_a_row_by_its_string(client, tmp_path):
    write_tables(tmp_path / "tables", client.export, None, None)

    query = f"SELECT key, weights[1] FROM '{tmp_path}/tables/word/*.parquet' WHERE name = 'größe 7'"
    with duckdb.connect() as connection:
        ((key, first),) = connection.execute(query).fetchall()

    assert key == keys_of_strings(["größe 7"])[0]
    pulled = client.pull([(0, np.array([key]))], training=False)
    assert first == pulled.rows[0][0, 0]
