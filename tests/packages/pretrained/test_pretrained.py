"""Tables begin with rows of files, of which every replica keeps its own."""

import io
import json
import struct
import sys
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
)
from elasticdl.errors import ConfigError, DataError, StoreError
from elasticdl.packages.pretrained import rows as pretrained
from elasticdl.packages.pretrained.rows import begin_with_pretrained, read_rows, sources_of

DIM = 4
KEYS = np.array([2**62, *range(300)])
ROWS = np.random.default_rng(0).normal(size=(len(KEYS), DIM)).astype(np.float32)
NOTHING = np.zeros(0, np.float32)


def write_npz(file, keys=KEYS, rows=ROWS):
    np.savez_compressed(file, keys=keys, rows=rows)


def write_damaged_npz(file):
    write_npz(file)
    content = bytearray(file.read_bytes())
    begin = content.index(b"keys.npy") + 28
    content[begin : begin + 8] = b"\xff" * 8
    file.write_bytes(content)


def write_parquet(file, keys=KEYS, rows=ROWS):
    weights = pa.array(list(map(list, rows)), pa.list_(pa.float32()))
    pyarrow.parquet.write_table(pa.table({"key": pa.array(keys), "weights": weights}), file)


def write_safetensors(file, keys=KEYS, rows=ROWS, dtype="F32"):
    header, data = {}, b""
    for name, array, kind in (("keys", keys, "I64"), ("rows", rows, dtype)):
        part = array.tobytes()
        header[name] = {
            "dtype": kind, "shape": array.shape, "data_offsets": [len(data), len(data) + len(part)],
        }  # fmt: skip
        data += part
    words = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(words)) + words + data)


WRITERS = {".npz": write_npz, ".parquet": write_parquet, ".safetensors": write_safetensors}


def model(**changes):
    initializer = Initializer("uniform", {"low": -0.05, "high": 0.05})
    table = TableDescription("user", DIM, initializer, OptimizerSpec("adagrad"), **changes)
    return json.dumps(asdict(ModelDescription((table,), (), (), OptimizerSpec("sgd"), seed=3)))


def train(client, keys, index=0):
    pulled = client.pull([(0, keys)], training=True)
    grads = np.full((len(keys), DIM), 0.5, np.float32)
    client.push(pulled, [grads], NOTHING, NOTHING, 0.1, 1, 1, index, len(keys))
    return pulled.rows[0]


@pytest.mark.parametrize("suffix", WRITERS)
def test_rows_are_read_in_chunks_as_they_were_written(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "CHUNK_ROWS", 128)
    file = tmp_path / f"rows{suffix}"
    WRITERS[suffix](file)
    chunks = list(read_rows(file))
    assert [len(keys) for keys, _ in chunks] == [128, 128, 45]
    np.testing.assert_array_equal(np.concatenate([keys for keys, _ in chunks]), KEYS)
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in chunks]), ROWS)


def test_rows_of_other_floats_become_float32(tmp_path):
    file = tmp_path / "rows.safetensors"
    write_safetensors(file, rows=ROWS.astype(np.float16), dtype="F16")
    [(_, rows)] = read_rows(file)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, ROWS.astype(np.float16))


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_each_replica_keeps_its_own_rows_and_trains_them_from_fresh_slots(num_replicas, tmp_path):
    write_parquet(tmp_path / "a.parquet", KEYS[:200], ROWS[:200])
    write_npz(tmp_path / "b.npz", KEYS[200:], ROWS[200:])
    (tmp_path / "_SUCCESS").touch()
    stores = [Store(r, num_replicas) for r in range(num_replicas)]
    for store in stores:
        begin_with_pretrained(store, f"user={tmp_path}")
    servers = [PsServer(store, "127.0.0.1", 0, b"token") for store in stores]
    client = PsClient.connect([server.address for server in servers], b"token", 0, 30)
    client.declare(model(), NOTHING, NOTHING)

    client.begin_task(1, 1)
    np.testing.assert_array_equal(train(client, KEYS), ROWS)

    found = dict(row for keys, rows in client.scan(0) for row in zip(keys, rows, strict=True))
    assert set(found) == set(KEYS)
    # Adagrad's first step from an accumulator of 0.1.
    expected = ROWS - 0.1 * 0.5 / np.sqrt(0.1 + 0.25 + 1e-7)
    np.testing.assert_allclose(np.stack([found[key] for key in KEYS]), expected, rtol=1e-5)
    rows = [replica["tables"][0]["rows"] for replica in json.loads(client.stats())]
    assert sum(rows) == len(KEYS)
    assert min(rows) > 0
    for server in servers:
        server.stop()


def test_a_restored_replica_has_what_the_checkpoint_holds(tmp_path):
    write_npz(tmp_path / "rows.npz")
    store = Store()
    begin_with_pretrained(store, f"user={tmp_path / 'rows.npz'}")
    client = PsClient.in_process(store)
    client.declare(model(), NOTHING, NOTHING)
    client.begin_task(1, 1)
    train(client, KEYS)
    trained = client.pull([(0, KEYS)], training=False).rows[0]
    entries = [json.loads(entry) for entry in client.checkpoint(str(tmp_path))]
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "replicas": entries}))

    restored = Store.restore(str(tmp_path))
    again = PsClient.in_process(restored)
    again.declare(model(), NOTHING, NOTHING)
    np.testing.assert_array_equal(again.pull([(0, KEYS)], training=False).rows[0], trained)
    with pytest.raises(StoreError, match=r"rows.npz: the store has a model"):
        begin_with_pretrained(restored, f"user={tmp_path / 'rows.npz'}")


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda f: write_npz(f, rows=ROWS[:5]), r"found keys \(301,\) of int64 and rows \(5, 4\)"),
        (lambda f: write_npz(f, keys=KEYS.astype(np.float32)), "keys .* of float32"),
        (lambda f: np.savez(f, ids=KEYS), "expected arrays keys and rows, found ids"),
        (lambda f: f.write_bytes(b"PK\3\4 torn"), "expected a .npz file, found another"),
        (write_damaged_npz, "cannot be read: error: Error -3 while decompressing"),
        (lambda f: write_npz(f, keys=KEYS - 1), "row 1 has a key below 0"),
        (
            lambda f: write_npz(f, rows=np.where(np.arange(301)[:, None] == 7, np.nan, ROWS)),
            "row 7 has a number that is not finite",
        ),
    ],
)
def test_a_file_that_is_not_as_expected_is_named_with_its_row(write, says, tmp_path):
    file = tmp_path / "rows.npz"
    write(file)
    with pytest.raises(DataError, match=rf"rows\.npz.*{says}"):
        list(read_rows(file))


def test_rows_in_parquet_without_pyarrow_say_what_to_install(tmp_path, monkeypatch):
    write_parquet(tmp_path / "rows.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match="--pretrained_rows need pyarrow, which is not installed"):
        list(read_rows(tmp_path / "rows.parquet"))


def test_a_parquet_row_of_another_width_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "CHUNK_ROWS", 128)
    rows = [list(row) for row in ROWS]
    rows[200] = rows[200][:3]
    write_parquet(tmp_path / "rows.parquet", rows=rows)
    with pytest.raises(DataError, match=r"rows\.parquet: row 200 has 3 weights, .* have 4"):
        list(read_rows(tmp_path / "rows.parquet"))
    pyarrow.parquet.write_table(pa.table({"key": [1]}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="expected columns key and weights, found key"):
        list(read_rows(tmp_path / "rows.parquet"))


OTHER_COLUMNS = {
    "key of double": {"key": [1.0, 2.5], "weights": [[0.5], [1.5]]},
    "key of string": {"key": ["1", "2"], "weights": [[0.5], [1.5]]},
    "weights of double": {"key": [1, 2], "weights": [0.5, 1.5]},
    "row 1 has no key": {"key": [1, None], "weights": [[0.5], [1.5]]},
}


@pytest.mark.parametrize("says", OTHER_COLUMNS)
def test_parquet_columns_of_other_types_are_refused(says, tmp_path):
    pyarrow.parquet.write_table(pa.table(OTHER_COLUMNS[says]), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=rf"rows\.parquet: .*{says}"):
        list(read_rows(tmp_path / "rows.parquet"))


WRONG_HEADERS = {
    "no entry": 1,
    "no offsets": {"dtype": "I64", "shape": [2], "data_offsets": []},
    "before the data": {"dtype": "I64", "shape": [2], "data_offsets": [-8, 8]},
    "behind the data": {"dtype": "I64", "shape": [2], "data_offsets": [64, 80]},
    "more than there is": {"dtype": "I64", "shape": [2**60], "data_offsets": [0, 16]},
}


@pytest.mark.parametrize("name", WRONG_HEADERS)
def test_a_safetensors_file_that_leads_elsewhere_is_named(name, tmp_path):
    rows = {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]}
    words = json.dumps({"keys": WRONG_HEADERS[name], "rows": rows}).encode()
    file = tmp_path / "rows.safetensors"
    file.write_bytes(struct.pack("<Q", len(words)) + words + bytes(64))
    with pytest.raises(DataError, match=r"rows\.safetensors"):
        list(read_rows(file))


def test_a_torn_safetensors_file_is_named(tmp_path):
    file = tmp_path / "rows.safetensors"
    write_safetensors(file)
    whole = file.read_bytes()
    for torn in (b"", b"not such a file", whole[:50], whole[:-1]):
        file.write_bytes(torn)
        with pytest.raises(DataError, match=r"rows\.safetensors"):
            list(read_rows(file))


@pytest.mark.parametrize(
    ("table", "changes", "says"),
    [
        ("usr", {}, r"rows\.npz: its rows are for table 'usr', the model has user"),
        ("user", {"input_dim": 300}, "a row of key 4611686018427387904, .* has input_dim 300"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused_with_their_file(table, changes, says, tmp_path):
    write_npz(tmp_path / "rows.npz")
    store = Store()
    begin_with_pretrained(store, f"{table}={tmp_path / 'rows.npz'}")
    with pytest.raises(StoreError, match=says):
        PsClient.in_process(store).declare(model(**changes), NOTHING, NOTHING)


@pytest.mark.parametrize(
    ("keys", "rows", "says"),
    [
        (KEYS, ROWS[:, :3].copy(), "its rows have 3 numbers, table 'user' has dim 4"),
        (KEYS * 0, ROWS, "a row of key 0 of table 'user', which has one already"),
    ],
)
def test_rows_of_another_width_or_twice_are_refused(keys, rows, says, tmp_path):
    write_npz(tmp_path / "rows.npz", keys, rows)
    store = Store()
    begin_with_pretrained(store, f"user={tmp_path / 'rows.npz'}")
    with pytest.raises(StoreError, match=rf"rows\.npz: .*{says}"):
        PsClient.in_process(store).declare(model(), NOTHING, NOTHING)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("rows.npz", "expected \"TABLE=PATH;TABLE=PATH\", each table once, found 'rows.npz'"),
        ("a=rows.npz;a=rows.npz", "each table once"),
        ("a=none.npz", "expected a file .npz, .*, a folder of them, or a checkpoint, found none"),
        ("a=rows.csv", "found none at rows.csv"),
        ("a=.", "found none at ."),
    ],
)
def test_what_the_flag_cannot_mean_is_refused(flag, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").touch()
    if "rows.npz" in flag:
        write_npz(tmp_path / "rows.npz")
    with pytest.raises(ConfigError, match=says):
        sources_of(flag)


def test_the_flag_names_files_and_folders_by_table(tmp_path):
    write_npz(tmp_path / "rows.npz")
    sources = sources_of(f"a={tmp_path}; b={tmp_path / 'rows.npz'};")
    assert sources == {"a": [tmp_path / "rows.npz"], "b": [tmp_path / "rows.npz"]}
    assert sources_of("") == {}


def test_tables_begin_with_rows_behind_a_url(place):
    place.mkdir(parents=True)
    content = io.BytesIO()
    np.savez(content, keys=KEYS, rows=ROWS)
    (place / "user.npz").write_bytes(content.getvalue())
    store = Store()
    begin_with_pretrained(store, f"user={place}")
    client = PsClient.in_process(store)
    client.declare(model(), NOTHING, NOTHING)
    np.testing.assert_array_equal(client.pull([(0, KEYS)], training=False).rows[0], ROWS)
