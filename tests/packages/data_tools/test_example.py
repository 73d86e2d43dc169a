import numpy as np
import pytest

from elasticdl.data.example import decode_example, decode_examples, encode_examples
from elasticdl.errors import DataError


def decoded(columns):
    return [decode_example(record) for record in encode_examples(columns)]


def test_columns_become_features_of_their_kind():
    columns = {
        "int": np.array([1, -2], np.int8),
        "uint": np.array([3, 4], np.uint64),
        "bool": np.array([True, False]),
        "float": np.array([0.5, 1.5], np.float64),
        "text": np.array(["é", "b"]),
        "bytes": np.array([b"x", b"yz"]),
        "matrix": np.arange(8, dtype=np.float32).reshape(2, 2, 2),
        "list": ["p", b"q"],
    }
    assert decoded(columns) == [
        {
            "bool": [1],
            "bytes": [b"x"],
            "float": [0.5],
            "int": [1],
            "list": [b"p"],
            "matrix": [0.0, 1.0, 2.0, 3.0],
            "text": ["é".encode()],
            "uint": [3],
        },
        {
            "bool": [0],
            "bytes": [b"yz"],
            "float": [1.5],
            "int": [-2],
            "list": [b"q"],
            "matrix": [4.0, 5.0, 6.0, 7.0],
            "text": [b"b"],
            "uint": [4],
        },
    ]


def test_missing_values_leave_the_feature_out_and_sequences_vary():
    columns = {
        "id": [1, 2, 3],
        "number": [1, None, 3],
        "text": ["x", float("nan"), "z"],
        "sequence": [[1.5], np.array([2.0, 3.0]), []],
    }
    assert decoded(columns) == [
        {"id": [1], "number": [1], "sequence": [1.5], "text": [b"x"]},
        {"id": [2], "sequence": [2.0, 3.0]},
        {"id": [3], "number": [3], "text": [b"z"]},
    ]


def test_extreme_numbers_survive():
    extremes = np.array([0, 127, 128, 2**63 - 1, -(2**63), -1])
    assert [record["x"] for record in decoded({"x": extremes})] == [[int(v)] for v in extremes]
    halves = np.array([1.5, 65504.0, np.inf], np.float16)  # and no warning
    assert [record["x"] for record in decoded({"x": halves})] == [[1.5], [65504.0], [np.inf]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (np.array([2**63], np.uint64), "column 'bad': 9223372036854775808 does not fit"),
        (np.array(["2013-01-01"], "datetime64[D]"), r"column 'bad': datetime64\[D\] has no"),
        (np.array([1 + 2j]), "column 'bad': complex128 has no"),
        ([[1, "x"]], "column 'bad': expected values of one kind, found int, str"),
        (5, "column 'bad': expected one value for each record, found a scalar"),
        ([1, 2], 'column "good": it has 1 records, expected 2'),
    ],
)
def test_a_column_that_has_no_feature_is_named(column, message):
    with pytest.raises(ValueError, match=message):
        encode_examples({"bad": column, "good": [1]})


def test_no_columns_are_no_records():
    assert encode_examples({}) == []
    assert encode_examples({"x": []}) == []


def test_bytes_that_are_no_example_decode_to_none():
    for record in (b"", b"hello", b"1,2,3", bytes(20)):
        assert decode_example(record) is None


@pytest.mark.keras
@pytest.mark.timeout(300)  # importing TensorFlow takes a minute on a loaded machine
def test_tensorflow_parses_what_we_encode():
    tf = pytest.importorskip("tensorflow")
    generator = np.random.default_rng(0)
    columns = {
        "i": generator.integers(-(2**40), 2**40, 500),
        "f": generator.random((500, 3)).astype(np.float32),
        "s": [f"flight {number}" for number in range(500)],
        "v": [list(range(number % 4)) or None for number in range(500)],
    }
    records = encode_examples(columns)
    parsed = tf.io.parse_example(
        records,
        {
            "i": tf.io.FixedLenFeature([], tf.int64),
            "f": tf.io.FixedLenFeature([3], tf.float32),
            "s": tf.io.FixedLenFeature([], tf.string),
            "v": tf.io.RaggedFeature(tf.int64),
        },
    )
    np.testing.assert_array_equal(parsed["i"], columns["i"])
    np.testing.assert_array_equal(parsed["f"], columns["f"])
    assert [value.decode() for value in parsed["s"].numpy()] == columns["s"]
    assert parsed["v"].to_list() == [value or [] for value in columns["v"]]
    message = tf.train.Example.FromString(records[7])
    assert message.features.feature["i"].int64_list.value == [columns["i"][7]]


def test_numbers_are_decoded_as_they_were_encoded():
    columns = {
        "ids": np.arange(12).reshape(3, 2, 2) - 5,
        "x": np.array([0.5, -1.0, np.inf], np.float32),
        "name": ["a", "b", "c"],
    }
    records = encode_examples(columns)

    found = decode_examples(records, {"x": ((), "float32"), "ids": ((2, 2), "int64")})

    assert list(found) == ["x", "ids"]
    np.testing.assert_array_equal(found["x"], columns["x"])
    np.testing.assert_array_equal(found["ids"], columns["ids"])
    assert found["ids"].dtype == np.int64
    assert decode_examples([], {"x": ((3,), "float32")})["x"].shape == (0, 3)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"y": ((), "int64")}, 'of 2 records, record 0: feature "y" is missing'),
        ({"x": ((2,), "int64")}, 'record 0: feature "x" has 1 values, expected 2'),
        ({"x": ((), "float32")}, 'record 0: feature "x": expected float, found int64'),
        ({"x": ((), "int32")}, "feature 'x': expected int64 or float32, found 'int32'"),
    ],
)
def test_features_that_a_record_does_not_have_are_named(columns, message):
    with pytest.raises(DataError, match=message):
        decode_examples(encode_examples({"x": [1, 2]}), columns)


def test_bytes_that_are_no_example_are_refused():
    records = [*encode_examples({"x": [1]}), b"\xff\xff"]
    with pytest.raises(DataError, match="record 1: a number is cut off"):
        decode_examples(records, {"x": ((), "int64")})


@pytest.mark.parametrize("value", [1_234_567_891.0, 1_700_000_000.5, 1e39])
def test_a_number_that_a_float_feature_makes_another_one_is_refused(value):
    with pytest.raises(ValueError, match=r"column 'x' has .*, which a float feature turns into"):
        encode_examples({"x": np.array([0.1, value])})


def test_the_nearest_is_taken_where_it_is_asked_for_but_not_infinity():
    columns = {"x": np.array([1_234_567_891.0, np.inf, 2.0**30, 0.1])}
    found = decode_example(encode_examples(columns, ["x"])[0])
    assert found["x"] == [1_234_567_936.0]
    with pytest.raises(ValueError, match=r"turns into inf: leave the record out"):
        encode_examples({"x": np.array([1e39])}, ["x"])
