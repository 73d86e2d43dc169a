"""The sparse life cycle over sockets: 1 and 8 replicas decide alike, and export the same."""

import json
from dataclasses import asdict

import numpy as np
import pyarrow.dataset
import pytest

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription
from elasticdl.checkpoints.exports import write_tables
from elasticdl.errors import CheckpointError
from elasticdl.layers import CountAdmission, Expiry, ProbabilityAdmission
from elasticdl.layers.row_rules import AdmissionSpec

TOKEN = b"the token of this job"
DAY = 86_400
UNIFORM = Initializer("uniform", {"low": -0.05, "high": 0.05})
ADAGRAD = OptimizerSpec("adagrad", {"epsilon": 1e-7, "initial_accumulator": 0.1})
NOTHING = np.zeros(0, np.float32)


def table(name, dim, admission=None, expiry=None):
    spec = AdmissionSpec.of(admission)
    return TableDescription(name, dim, UNIFORM, ADAGRAD, admission=spec, expiry=expiry)


MODEL = ModelDescription(
    tables=(
        table("count", 4, CountAdmission(3), Expiry(steps=25)),
        table(
            "sketch",
            2,
            CountAdmission(2, sketch_bytes=4 << 18),
            Expiry(min_norm=0.1, grace_steps=9),
        ),
        table("probability", 3, ProbabilityAdmission(0.2), Expiry(days=1)),
        table("all", 1),
    ),
    dense=(),
    state=(),
    optimizer=ADAGRAD,
    seed=5,
)


@pytest.fixture
def jobs():
    """Start replicas, 1 and 8 of them, each with a client."""
    servers = []

    def start(count):
        stores = [Store(i, count) for i in range(count)]
        started = [PsServer(store, "127.0.0.1", 0, TOKEN) for store in stores]
        servers.extend(started)
        client = PsClient.connect([s.address for s in started], TOKEN, 0, 60.0)
        client.declare(json.dumps(asdict(MODEL)), NOTHING, NOTHING)
        return client

    yield [start(1), start(8)]
    for server in servers:
        server.stop()


def train(client, index):
    """Push one minibatch; its ids and gradients are drawn from its number."""
    draw = np.random.default_rng(index)
    ids = draw.zipf(1.3, (4, 2000)).astype(np.int64) % 50_000
    pulled = client.pull([(table, ids[table]) for table in range(4)], True)
    grads = [rows - draw.normal(size=rows.shape).astype(np.float32) for rows in pulled.rows]
    client.push(pulled, grads, NOTHING, NOTHING, 0.05, 1, 1, index, 2000)


def rows(client, table):
    chunks = list(client.scan(table))
    keys = np.concatenate([keys for keys, _ in chunks])
    order = np.argsort(keys)
    return keys[order], np.concatenate([rows for _, rows in chunks])[order]


def counters(client):
    """Sum rows, candidates and dropped gradients over replicas, by table."""
    replicas = [stats["tables"] for stats in json.loads(client.stats())]
    names = ("rows", "candidates", "dropped")
    return [
        [sum(table[name] for table in tables) for name in names]
        for tables in zip(*replicas, strict=True)
    ]


def test_one_and_eight_replicas_decide_alike_on_the_same_stream(jobs):
    gone = [[], []]
    for index in range(60):
        for job, client in enumerate(jobs):
            train(client, index)
            if index % 20 == 19:
                answer = json.loads(client.expire((index // 20) * 2 * DAY + 50 * DAY))
                gone[job].append(np.sum([[list(t.values()) for t in r] for r in answer], axis=0))

    one, eight = jobs
    np.testing.assert_array_equal(gone[0], gone[1])
    assert np.sum(gone[0], axis=0)[:3, 0].all(), "rows of each table with an expiry went"
    assert np.sum(gone[0], axis=0)[0, 1], "and candidates"
    assert counters(one) == counters(eight)
    for number in range(4):
        for mine, theirs in zip(rows(one, number), rows(eight, number), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert all(dropped for _, _, dropped in counters(one)[:3])


def test_what_replicas_export_is_what_they_hold(jobs, tmp_path):
    for index in range(5):
        for client in jobs:
            train(client, index)
    for count, client in zip((1, 8), jobs, strict=True):
        written = write_tables(tmp_path / str(count), client.export, None, None)
        assert written == sum(len(rows(client, number)[0]) for number in range(4))

    for number, spec in enumerate(MODEL.tables):
        found = pyarrow.dataset.dataset(tmp_path / "8" / spec.name, format="parquet").to_table()
        assert len(list((tmp_path / "8" / spec.name).iterdir())) == 8
        frame = found.to_pandas().sort_values("key")  # pandas reads it
        keys, weights = rows(jobs[0], number)
        assert found.schema.names == ["key", "weights"]
        np.testing.assert_array_equal(frame["key"], keys)
        np.testing.assert_array_equal(np.stack(frame["weights"]), weights)
        again = pyarrow.dataset.dataset(tmp_path / "1" / spec.name, format="parquet").to_table()
        assert again.sort_by("key") == found.sort_by("key")


def test_a_delta_has_what_was_trained_since(jobs, tmp_path):
    client = jobs[1]
    for index in range(4):
        train(client, index)
    write_tables(tmp_path / "full", client.export, 0.0, None)
    version = json.loads((tmp_path / "full" / "manifest.json").read_text())["version"]
    before = dict(zip(*map(lambda x: x.tolist(), rows(client, 3)), strict=True))
    train(client, 4)
    write_tables(tmp_path / "delta", client.export, None, version)

    delta = pyarrow.dataset.dataset(tmp_path / "delta" / "all", format="parquet").to_table()
    found = dict(zip(delta["key"].to_pylist(), delta["weights"].to_pylist(), strict=True))
    after = dict(zip(*map(lambda x: x.tolist(), rows(client, 3)), strict=True))
    changed = {key: row for key, row in after.items() if before.get(key) != row}
    assert version == 4
    assert found == changed
    assert 0 < len(changed) < len(after)


def test_an_export_is_whole_or_not_there(jobs, tmp_path):
    def half(request):
        jobs[0].export(request)
        raise CheckpointError("a replica is gone")

    with pytest.raises(CheckpointError, match="gone"):
        write_tables(tmp_path / "tables", half, None, None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="threshold"):
        write_tables(tmp_path / "tables", jobs[0].export, -1.0, None)

    (tmp_path / "tables").mkdir()
    write_tables(tmp_path / "tables", jobs[0].export, None, None)
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {"all", "count", "sketch", "probability", "manifest.json", "_SUCCESS"}
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_a_file_that_cannot_be_written_is_named(jobs, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match="file"):
        write_tables(tmp_path / "file" / "tables", jobs[0].export, None, None)
