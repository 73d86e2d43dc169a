"""Requests in JSON and Arrow become arrays, or are refused in words."""

import contextlib
import json
import random
import re
import sys

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.backends.served import FeatureSpec
from elasticdl.errors import ConfigError, DataError, RequestTooLargeError
from elasticdl.packages.serving.records import Most, from_arrow, from_json, to_arrow, to_json

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


IDS = r"record 1, feature 'ids': expected "
ALL = {**COLUMNS, "age": [1, 2]}
DEEP = b'{"inputs": {"ids": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[1]", "sequence, expected one of"),
        (b'{"instances": [], "inputs": {}}', "found none"),
        (b'{"instance": {"age": 1}, "inputs": {}}', 'record 0: feature "ids" is missing'),
        (b'{"instances": []}', "expected a list of records"),
        (b'{"instances": [1]}', "expected records with the features"),
        (DEEP, "record 0, feature .ids.: expected integers of int64, found a list"),
        (b'{"inputs": {"age": [NaN]}}', "no JSON"),
        (b'{"inputs": {"age": [1e999]}}', "number out of range"),
        (b'{"inputs": {"word": ["\\ud800"]}}', "no JSON"),
        (b'{"inputs": {"age": [1], "age": [1]}}', "given twice"),
        ({"instances": [RECORDS[0], {"age": 1}]}, 'record 1: feature "ids" is missing'),
        ({"inputs": {**ALL, "agee": [1]}}, 'no feature "agee"; the model takes age, ids, word'),
        ({"inputs": {"age": [1]}}, 'feature "ids" is missing'),
        ({"inputs": {**ALL, "ids": [[1, 2]]}}, "expected as many values of each feature"),
        ({"inputs": {**ALL, "ids": [[1, 2], [1, 2.5]]}}, IDS + "integers of int64, found 2.5"),
        ({"inputs": {**ALL, "ids": [[1, 2], [1, 1e39]]}}, IDS + "integers of int64, found 1e39"),
        ({"inputs": {**ALL, "ids": [[1, 2], ["1_0", 2]]}}, IDS + "integers of int64, found string"),
        ({"inputs": {**ALL, "ids": [[1, 2], [True, 2]]}}, IDS + "integers of int64, found true"),
        ({"inputs": {**ALL, "ids": [[1, 2], [None, 2]]}}, IDS + "integers of int64, found null"),
        ({"inputs": {**ALL, "ids": [[1, 2], [{}, 2]]}}, IDS + "integers of int64, found an object"),
        ({"inputs": {**ALL, "ids": [[1, 2], [1, 2**63]]}}, IDS + f".*found {2**63}"),
        ({"inputs": {**ALL, "ids": [[1, 2], [1]]}}, IDS + "2 values, found 1"),
        ({"inputs": {**ALL, "ids": [[1, 2], [1, 2, 3]]}}, IDS + "2 values, found more"),
        ({"inputs": {**ALL, "ids": [[1, 2], 7]}}, IDS + "a list of 2, found 7"),
        ({"inputs": {**ALL, "age": ["x", 1]}}, "'age': expected numbers of float32, found string"),
        ({"inputs": {**ALL, "age": [1, 1e39]}}, "record 1, feature 'age': 1e.39 does not fit"),
        ({"inputs": {**ALL, "word": ["x", 1]}}, "record 1, feature 'word': expected text, found 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(said, words):
    content = said if isinstance(said, bytes) else json.dumps(said).encode()

    with pytest.raises(DataError, match=re.sub("['\"]", "['\"]", words)):
        from_json(content, SPECS)


def test_what_is_no_number_is_null_in_json():
    outputs = {"output": np.array([[0.5, np.nan], [np.inf, 1]], np.float32)}

    assert json.loads(to_json(outputs, False, 1, 2))["predictions"] == [[0.5, None], [None, 1]]


def test_an_answer_is_not_larger_than_it_may_be():
    outputs = {"output": np.zeros((100, 100), np.float32)}
    for write in (lambda most: to_json(outputs, False, 1, 2, most), to_arrow_of(outputs)):
        with pytest.raises(RequestTooLargeError, match="ask for fewer records at once"):
            write(Most(answer_bytes=10_000))


def to_arrow_of(outputs):
    return lambda most: to_arrow(outputs, 1, 2, most)


ONE = [FeatureSpec("ids", "int64", (4,))]
FOUR = pa.list_(pa.int64(), 4)


def stream(array, compression=None):
    table, sink = pa.table({"ids": array}), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_is_measured_before_it_is_unpacked(compression):
    content = stream(pa.array([[0] * 4] * 10_000, FOUR), compression)
    assert len(from_arrow(content, ONE, Most(330_000))["ids"]) == 10_000

    before = pa.total_allocated_bytes()
    with pytest.raises(RequestTooLargeError, match="unpacks to more"):
        from_arrow(content, ONE, Most(310_000))
    with pytest.raises(RequestTooLargeError, match="at most 9,999 records"):
        from_arrow(content, ONE, Most(records=9_999))
    assert pa.total_allocated_bytes() == before


LONG = pa.array(["x" * 10_000])
SAME = np.zeros(10_000, np.int8)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (pa.array([[1, 2], [1]]), "record 0, feature 'ids': expected lists of one length, 4"),
        (pa.array([[1, 2, 3, 4], None], FOUR), "record 1, feature 'ids': expected no nulls"),
        (pa.array([[1] * 4, [1, 2, 3, None]]), "record 1, feature 'ids': expected no nulls"),
        (pa.array([[2**63] * 4], pa.list_(pa.uint64())), "record 0, feature 'ids': 9223.* fit"),
        (pa.array([[None] * 4], pa.list_(pa.null())), "expected integers, found null"),
        (pa.array([[1.0] * 4]), "expected integers, found double"),
        (pa.array([["1_0"] * 4]), "expected integers, found string"),
        (pa.array([[True] * 4]), "expected integers, found bool"),
        (pa.array([{"a": 1}]), "expected the shape"),
        (pa.array([[[1] * 4]]), "expected the shape"),
        (pa.nulls(10**6), "more|expected the shape"),
        (pa.array([[1] * 4], pa.list_view(pa.int64())), "expected the shape"),
        (pa.RunEndEncodedArray.from_arrays([10**6], pa.array([1])), "more|expected the shape"),
        (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [LONG]), "expected the shape"),
    ],
)
def test_columns_in_arrow_that_no_feature_has_are_refused(array, words):
    with pytest.raises(DataError, match=words):
        from_arrow(stream(array), ONE)


def test_text_that_is_shown_many_times_is_counted_as_often():
    texts = [FeatureSpec("ids", "str", ())]
    short = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["a", "é"]))
    assert from_arrow(stream(short), texts)["ids"].tolist() == ["é", "a"]
    shown = pa.array(["é" * 9, "a"], pa.string_view())
    assert from_arrow(stream(shown), texts)["ids"].tolist() == ["é" * 9, "a"]
    with pytest.raises(RequestTooLargeError, match=r"found 100,000,000"):
        from_arrow(stream(pa.DictionaryArray.from_arrays(SAME, LONG)), texts)


def test_a_damaged_message_is_refused_or_read():
    content, chance = stream(pa.array([[1, 2, 3, 4]] * 3, FOUR), "zstd"), random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(content))] = chance.randrange(256)
        with contextlib.suppress(DataError):
            from_arrow(bytes(damaged), ONE)


def test_a_server_without_arrow_says_so_and_blames_no_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="without pyarrow: pip install"):
        from_arrow(b"", SPECS)


def test_what_is_no_arrow_is_refused_in_words():
    for content in (b"", b"x", b"\xff\xff\xff\xff" * 4):
        with pytest.raises(DataError, match="not an Arrow stream"):
            from_arrow(content, SPECS)
    with pytest.raises(DataError, match="expected no nulls, found 1"):
        from_arrow(batches({**COLUMNS, "age": [1.0, None]}), SPECS)
