"""Requests in JSON and Arrow become arrays, or are refused in words."""

import json

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.backends.served import FeatureSpec
from elasticdl.errors import DataError
from elasticdl.serving.records import from_arrow, from_json, to_arrow, to_json

SPECS = [
    FeatureSpec("age", "float32", (1,)),
    FeatureSpec("ids", "int64", (2,)),
    FeatureSpec("word", "str", ()),
]
RECORDS = [{"age": 1.5, "ids": [1, 2], "word": "ä"}, {"age": 2, "ids": [3, 2**62], "word": ""}]
COLUMNS = {name: [record[name] for record in RECORDS] for name in RECORDS[0]}


def batches(columns, **types):
    names = list(columns)
    arrays = [pa.array(columns[name], types.get(name)) for name in names]
    batch = pa.record_batch(arrays, names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def check(features):
    assert features["age"].tolist() == [[1.5], [2.0]]
    assert features["age"].dtype == np.float32
    assert features["ids"].tolist() == [[1, 2], [3, 2**62]]
    assert features["word"].tolist() == ["ä", ""]


@pytest.mark.parametrize("said", [{"instances": RECORDS}, {"inputs": COLUMNS}])
def test_records_and_columns_are_the_same(said):
    features, is_single = from_json(json.dumps(said).encode(), SPECS)

    check(features)
    assert not is_single


@pytest.mark.parametrize("ids", [pa.list_(pa.int64()), pa.list_(pa.int64(), 2)])
def test_arrow_has_the_same(ids):
    check(from_arrow(batches(COLUMNS, ids=ids), SPECS))


def test_a_single_record_has_a_single_prediction():
    features, is_single = from_json(json.dumps({"instance": RECORDS[0]}).encode(), SPECS)

    assert (len(features["age"]), is_single) == (1, True)
    content = to_json({"output": np.array([[0.1]], np.float32)}, True, 7, 90)
    found = json.loads(content)
    assert (found["version"], found["model_version"]) == (7, 90)
    assert np.float32(found["prediction"][0]) == np.float32(0.1)


def test_outputs_keep_their_bits_and_names():
    values = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    outputs = {"a": values, "b": np.arange(50, dtype=np.int64)}

    by_json = json.loads(to_json(outputs, False, 1, 2))["predictions"]
    with pa.ipc.open_stream(to_arrow(outputs, 1, 2)) as reader:
        table = reader.read_all()

    assert np.array([p["a"] for p in by_json], np.float32).tobytes() == values.tobytes()
    assert np.array(table["a"].to_pylist(), np.float32).tobytes() == values.tobytes()
    assert table["b"].to_pylist() == list(range(50))
    assert table.schema.metadata == {b"version": b"1", b"model_version": b"2"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"{", "no JSON"),
        (b"[1]", "expected one of"),
        (b'{"instances": [], "inputs": {}}', "expected one of"),
        (b'{"instances": []}', "expected a list of records"),
        (b'{"instances": [1]}', "expected records with the features"),
        ({"instances": [RECORDS[0], {"age": 1}]}, "record 1: expected the same features"),
        ({"inputs": {**COLUMNS, "agee": [1]}}, "no feature 'agee'; the model takes age, ids, word"),
        ({"inputs": {"age": [1]}}, "feature 'ids' is missing"),
        ({"inputs": {**COLUMNS, "ids": [[1, 2]]}}, "expected as many values of each feature"),
        ({"inputs": {**COLUMNS, "ids": [[1, 2.5], [1, 2]]}}, "'ids': expected integers"),
        ({"inputs": {**COLUMNS, "ids": [[1], [1]]}}, r"'ids': expected the shape \['n', 2\]"),
        ({"inputs": {**COLUMNS, "ids": [[1, 2], [1]]}}, "'ids': expected int64"),
        ({"inputs": {**COLUMNS, "age": ["x", 1]}}, "'age': expected float32"),
        ({"inputs": {**COLUMNS, "ids": [[1, 2], [1, 2**63]]}}, "'ids'"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(said, words):
    content = said if isinstance(said, bytes) else json.dumps(said).encode()

    with pytest.raises(DataError, match=words):
        from_json(content, SPECS)


def test_what_is_no_arrow_is_refused_in_words():
    with pytest.raises(DataError, match="no stream of Arrow"):
        from_arrow(b"x", SPECS)
    with pytest.raises(DataError, match="expected no nulls, found 1"):
        from_arrow(batches({**COLUMNS, "age": [1.0, None]}), SPECS)
