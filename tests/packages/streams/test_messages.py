"""Messages to records, and what is not readable of them (packages/streams/messages.py)."""

import math
import random
import re

import numpy as np
import pytest

from elasticdl.data.example import encode_examples
from elasticdl.data.params import Params
from elasticdl.errors import ConfigError
from elasticdl.packages.streams.messages import Lateness, _kinds, _one_by_one, format_of

JSON = "format=json;columns=n:int64,x:float,word"


def records(params, *values):
    return format_of(Params(params)).records(list(values), [10 * at for at in range(len(values))])


def test_columns_of_json_are_those_of_a_table():
    found = records(
        JSON,
        b'{"n": 1, "x": 0.5, "word": "a", "more": [1]}',
        b'{"word": "\\u00e9", "x": 2, "n": -9223372036854775808}',
    )
    assert found.columns["n"].tolist() == [1, -(2**63)]
    assert found.columns["x"].tolist() == [0.5, 2.0]
    assert found.columns["word"].tolist() == ["a", "é"]
    assert not found.aside


@pytest.mark.parametrize(
    ("value", "word"),
    [("true", "True"), ("7", "7"), ("0.5", "0.5"), ('"NA"', "NA"), ("null", ""), ('""', "")],
)
def test_a_value_has_the_word_that_it_has_in_other_formats(value, word):
    found = records("format=json;columns=word", f'{{"word": {value}}}'.encode())
    assert found.columns["word"].tolist() == [word]


def test_a_number_that_is_missing_is_nan():
    found = records(JSON, b'{"n": 1, "x": null}', b'{"n": 2}')
    assert all(map(math.isnan, found.columns["x"]))
    assert found.columns["word"].tolist() == ["", ""]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "no JSON object"),
        (b"{", "no JSON object"),
        (b"[1]", "expected an object"),
        (b"\xff", "no JSON object: 'utf-8'"),
        (b'{"n": 1, "x": NaN}', "NaN is not a number of JSON"),
        (b'{"n": 1, "x": Infinity}', "Infinity is not a number of JSON"),
        (b'{"n": 1, "x": 1e999}', "'x': expected a number of float64, found inf"),
        (b'{"n": 1, "x": 1' + b"0" * 400 + b"}", "'x': expected a number of float64"),
        (b'{"n": 1, "x": 1' + b"0" * 5000 + b"}", "no JSON object"),
        (b'{"n": 1, "x": "2.5"}', "'x': expected a number of float64, found '2.5'"),
        (b'{"n": 1, "x": true}', "found True"),
        (b'{"n": 1.0}', "'n': expected a whole number of int64, found 1.0"),
        (b'{"n": true}', "found True"),
        (b'{"n": 9223372036854775808}', "found 9223372036854775808"),
        (b'{"x": 1.0}', "'n': expected a whole number of int64, found none"),
        (b'{"n": 1, "word": ["a"]}', "'word': expected text, found ['a']"),
        (b'{"n": 1, "word": "\\ud800"}', "is not text"),
        (b"[" * 100_000, "no JSON object"),
    ],
)
@pytest.mark.parametrize("beside", [0, 1])
def test_json_that_is_not_as_it_should_be_is_unreadable(value, why, beside):
    good = [b'{"n": 3, "x": 1, "word": "w"}'] * beside
    found = records(JSON, *good, value, *good)
    (bad,) = found.aside
    assert (bad.position, bad.value) == (10 * beside, value)
    assert why in bad.why
    assert len(found) == 2 * beside
    assert [len(column) for column in found.columns.values()] == [2] * 3 * beside


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"1,2", "has 2 fields, expected 3"),
        (b"1,2,3,4", "has 4 fields, expected 3"),
        (b"", "has 1 fields"),
        (b"1_2,1,w", "column 'n': expected a whole number"),
        (b"1,x,w", "column 'x': expected a number"),
        (b"1,2,\xff", "column 'word': expected UTF-8"),
        (b"1,2,w\n", "column 'word': a carriage return or line feed"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_unreadable(value, why):
    good = b'7,,"w,\nw"'
    found = records("format=csv;columns=n:int64,x:float,word", good, value, good)
    (bad,) = found.aside
    assert bad.position == 10
    assert why in bad.why
    assert found.values == [good, good]
    assert found.numbers.tolist() == [0, 20]


def test_an_example_that_is_none_is_unreadable():
    good = encode_examples({"a": [1]})
    found = records("format=example", *good, b"garbage", *good)
    assert found.values == good * 2
    (bad,) = found.aside
    assert re.match("no tf.train.Example: a field has", bad.why)


def test_bytes_are_as_they_are():
    found = records("columns=a,b", b"", b"\xff")
    assert found.values == [b"", b"\xff"]
    assert not found.aside
    np.testing.assert_array_equal(found.numbers, [0, 10])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("format=avro", "messages are one of bytes, csv, json, arrow, example"),
        ("format=json", "needs the columns"),
        ("format=csv", "needs the columns"),
        ("format=json;columns=a:flot", "did you mean float"),
        ("format=json;columns=a,a", "is called 'a' as an earlier one"),
        ("format=csv;columns=a;delimiter=é", "expected a character of ASCII"),
        ("columns=a:float", "has no kinds"),
        ("format=example;columns=a:float", "has no kinds"),
    ],
)
def test_a_format_that_nobody_can_read_is_refused(params, words):
    with pytest.raises(ConfigError, match=words):
        format_of(Params(params))


ARROW = "format=arrow;columns=n:int64,x:float,word"


def stream_of(table, **options):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(table)
    sink = arrow.BufferOutputStream()
    options = arrow.ipc.IpcWriteOptions(**options)
    with arrow.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue().to_pybytes()


def test_a_message_of_arrow_has_as_many_records_as_rows():
    arrow = pytest.importorskip("pyarrow")
    kinds = {"n": arrow.uint8(), "x": arrow.float32(), "word": arrow.large_string()}
    words = arrow.array(["a", None, "é"]).dictionary_encode()
    found = records(
        ARROW,
        stream_of({"n": [1, 2, 3], "x": [0.5, None, 2], "word": words, "more": [1, 2, 3]}),
        stream_of({name: arrow.array([], kind) for name, kind in kinds.items()}),
        stream_of({"word": [True], "x": [7], "n": [-(2**63)]}, compression="zstd"),
    )
    assert found.order.tolist() == [0, 0, 0, 20]
    assert found.columns["n"].tolist() == [1, 2, 3, -(2**63)]
    np.testing.assert_array_equal(found.columns["x"], [0.5, np.nan, 2.0, 7.0])
    assert found.columns["word"].tolist() == ["a", "", "é", "True"]
    assert not found.aside
    assert len(found) == 4


def test_what_is_no_arrow_or_has_other_columns_or_is_too_large_is_unreadable(monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    good = {"n": [1, 2], "x": [0.5, 1.5], "word": ["a", "b"]}
    monkeypatch.setattr("elasticdl.packages.streams.arrow_messages._MOST_ROWS", 3)
    monkeypatch.setattr("elasticdl.packages.streams.arrow_messages._MOST_BYTES", 10_000)
    many = {"n": [0] * 4, "x": [0] * 4, "word": arrow.nulls(4)}
    wide = {"n": [1], "x": [0], "word": ["a"], "more": [b"0" * 20_000]}
    whole = stream_of(good)
    renamed = whole.replace(b"word", b"w\xffrd")
    numbers, large = arrow.array([[1], [2]]), arrow.array([1, 2**63], arrow.uint64())
    cases = {
        "not an Arrow stream": [b"", b"x", whole[: len(whole) // 2], renamed],
        "not an Arrow stream: 3 bytes follow": [whole + b"abc"],
        "expected at most 3 rows, found 4": [stream_of(many), stream_of(many, compression="lz4")],
        "unpacks to 10,000 bytes at the most, found 20,": [
            stream_of(wide, compression=each) for each in ("lz4", "zstd")
        ],
        "'x': expected one such column, found 0, of: n, word": [
            stream_of({"n": [1], "word": ["a"]})
        ],
        "'n': expected a whole number of int64, found none": [stream_of({**good, "n": [1, None]})],
        "'n': expected a whole number of int64, found double": [stream_of({**good, "n": [1.0, 2]})],
        "'n': expected a whole number of int64, found bool": [
            stream_of({**good, "n": [True, False]})
        ],
        "'n': Integer value 9223372036854775808": [stream_of({**good, "n": large})],
        "'x': expected a number of float64, found string": [stream_of({**good, "x": ["1", "2"]})],
        "'word': expected text, found list": [stream_of({**good, "word": numbers})],
        "'word': Invalid UTF8": [stream_of({**good, "word": [b"a", b"\xff"]})],
    }
    for why, values in cases.items():
        found = records(ARROW, whole, *values, whole)
        assert [bad.value for bad in found.aside] == values
        assert all(why in bad.why for bad in found.aside), found.aside
        assert found.columns["n"].tolist() == [1, 2, 1, 2]
    assert len(records(ARROW, b"")) == 0
    with pytest.raises(ConfigError, match="format=arrow needs the columns"):
        format_of(Params("format=arrow"))


SOME_DAY = 1769860800.0  # 2026-01-31T12:00:00Z


@pytest.mark.parametrize(
    "value",
    [
        "1769860800",
        "1769860800.0",
        "1769860800000",
        "1769860800000000",
        "1769860800000000000",
        '"1769860800000"',
        '"2026-01-31T12:00:00Z"',
        '"2026-01-31 13:00:00+01:00"',
        '"2026-01-31T12:00:00"',
    ],
)
def test_an_event_time_follows_one_rule_in_all_formats(value):
    word = value.strip('"')
    whole = [word] if value.startswith('"') or "." in value else [word, int(value)]
    found = [
        records("format=json;columns=n:int64;event_time=ts", f'{{"n":1,"ts":{value}}}'.encode())
    ]
    found.append(records("format=csv;columns=n,ts;event_time=ts", f"1,{word}".encode()))
    for each in whole:
        message = encode_examples({"n": [1], "ts": [each]})[0]
        found.append(records("format=example;event_time=ts", message))
    assert [each.times.tolist() for each in found] == [[SOME_DAY]] * len(found)
    assert "ts" not in found[0].columns


@pytest.mark.parametrize(
    "value",
    ["null", "true", '"soon"', '""', "-5", "0", "[1]", "1e999", '"nan"', f'"{"9" * 4_000_000}"'],
    ids=lambda value: value[:8],
)
def test_a_message_without_an_event_time_is_not_readable(value):
    good = b'{"n": 1, "ts": 5}'
    bad = f'{{"n": 2, "ts": {value}}}'.encode()
    found = records("format=json;columns=n:int64;event_time=ts", good, bad, b"{", good)
    assert found.columns["n"].tolist() == [1, 1]
    assert found.numbers.tolist() == [0, 30]
    assert [each.position for each in found.aside] == [10, 20]
    if value != "1e999":  # no JSON
        assert "'ts': expected an event time" in found.aside[0].why
    assert found.times.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("beside", ["6", "soon"])
def test_an_event_time_with_a_zero_byte_is_not_readable_whatever_is_beside_it(beside):
    messages = encode_examples({"ts": ["5\0", beside]})
    found = records("format=example;event_time=ts", *messages)
    assert found.aside[0].position == 0


def test_an_event_time_is_no_feature_of_floats_and_has_one_value():
    messages = encode_examples({"ts": [1769860864.0, 1769860864.0]})
    messages += encode_examples({"ts": [5, None, [5, 6]]})
    found = records("format=example;event_time=ts", *messages)
    assert found.numbers.tolist() == [20]
    assert "a feature of floats" in found.aside[0].why
    assert [each.position for each in found.aside] == [0, 10, 30, 40]


@pytest.mark.parametrize(
    ("action", "kept", "aside"),
    [("train", [5, 100, 7], []), ("drop", [100], []), ("aside", [100], [0, 30])],
)
def test_late_messages_are_trained_or_dropped_or_set_aside_and_always_counted(action, kept, aside):
    form = format_of(Params("format=json;columns=ts:int64;event_time=ts"))
    values = [b'{"ts": %d}' % time for time in (5, 100, 7)]
    values.insert(1, b"no JSON")
    found = form.records(values, [0, 10, 20, 30], late=Lateness(50.0, action))
    assert found.columns["ts"].tolist() == kept == found.times.tolist()
    assert found.num_late == 2
    late = [each for each in found.aside if each.is_late]
    assert [each.position for each in late] == aside
    assert [each.value for each in late] == [values[at // 10] for at in aside]
    assert all("late: its event time is" in each.why for each in late)
    assert [each.position for each in found.aside if not each.is_late] == [10]


def test_a_message_without_a_time_stamp_is_never_late():
    found = format_of(Params("")).records([b"a", b"b"], [0, 1], [0.0, 3.0], Lateness(5.0, "drop"))
    assert (found.values, found.num_late) == ([b"a"], 1)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("event_time=ts", "knows no fields"),
        ("format=csv;columns=a,b;event_time=ts", "expected one of a, b"),
    ],
)
def test_an_event_time_that_no_message_has_is_refused(params, words):
    with pytest.raises(ConfigError, match=words):
        format_of(Params(params))


@pytest.mark.parametrize("unit", ["s", "ms", "ns", "text", "number"])
def test_rows_of_arrow_have_event_times_and_are_late_one_by_one(unit):
    arrow = pytest.importorskip("pyarrow")
    seconds = np.array([5, 100, 7, 200])
    if unit == "text":
        times = arrow.array([f"1970-01-01T00:{s // 60:02}:{s % 60:02}Z" for s in seconds.tolist()])
    elif unit == "number":
        times = arrow.array(seconds)
    else:
        times = arrow.array(seconds.astype("M8[s]"), arrow.timestamp(unit))
    whole = {"n": [1, 2, 3, 4], "word": ["a", "b", "c", "d"], "ts": times}
    message = stream_of(whole)
    bad = stream_of({**whole, "ts": arrow.array([1, None, 2, 3])})
    lacking = stream_of({"n": [1], "word": ["a"]})
    form = format_of(Params("format=arrow;columns=n:int64,word;event_time=ts"))
    found = form.records(
        [message, bad, lacking, message], [0, 1, 2, 3], late=Lateness(50.0, "aside")
    )
    assert found.columns["n"].tolist() == [2, 4] * 2
    assert found.columns["word"].tolist() == ["b", "d"] * 2
    assert found.numbers.tolist() == [0, 0, 3, 3]
    assert found.times.tolist() == [100.0, 200.0] * 2
    assert found.num_late == 4
    assert [(each.position, each.is_late) for each in found.aside] == [
        (0, True),
        (1, False),
        (2, False),
        (3, True),
    ]
    assert "2 of its records are late" in found.aside[0].why


def test_a_date_that_no_calendar_has_makes_a_message_unreadable():
    arrow = pytest.importorskip("pyarrow")
    messages = [{"n": [1], "ts": arrow.array([days], arrow.date32())} for days in (2**30, 1)]
    params = "format=arrow;columns=n:int64;event_time=ts"
    found = records(params, *map(stream_of, messages), stream_of({"n": [2], "ts": [5]}))
    assert found.columns["n"].tolist() == [2]
    assert "expected an event time, found date32[day]: days=" in found.aside[0].why
    assert "found datetime.date(1970, 1, 2)" in found.aside[1].why


def test_rows_of_arrow_have_the_time_stamp_of_their_message():
    form = format_of(Params("format=arrow;columns=n:int64"))
    messages = [stream_of({"n": [1, 2]}), b"none", stream_of({"n": [3]})]
    found = form.records(messages, [0, 1, 2], [10.0, 20.0, 30.0])
    assert found.times.tolist() == [10.0, 10.0, 30.0]


_WHOLE = ("0", "1", "-7", "9223372036854775807", "-9223372036854775808")
_REAL = (
    *_WHOLE,
    "-0",
    "-0.0",
    "0.1",
    "5e-324",
    "1.7976931348623157e308",
    "9007199254740993",
    "2E+3",
)
_LARGE = ("9007199254740993", "123456789012345678901234567890", "null")
_TEXT = ('""', '"a"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\u0000"', '"\u00e9"', "null")
_ODD = (
    "null",
    "true",
    "1.0",
    "1e400",
    "9223372036854775808",
    '"\\ud800"',
    "NaN",
    "[1]",
    "{}",
    "01",
    "1.",
)
_DEEP = ('"\\ud800"', "1.", "1" * 4301, "[" * 150 + "]" * 150, "[" * 2000 + "]" * 2000)


@pytest.mark.parametrize("seed", range(4))
def test_json_is_read_by_rust_as_it_is_by_python(seed):
    rng, kinds = random.Random(seed), _kinds(["n:int64", "x:float", "w"])
    parse = format_of(Params("format=json;columns=n:int64,x:float,w")).parse
    usual = {
        "n": _WHOLE,
        "x": (*_REAL, *_LARGE, "null"),
        "w": _TEXT,
        "other": (*_REAL, *_TEXT, "[{}]"),
    }
    num_readable = 0
    for _ in range(300):
        keys = ["n", *rng.choices(list(usual), k=rng.randrange(5))]
        odd = (*_ODD, *_DEEP, *usual[rng.choice(keys)]) if rng.random() < 0.2 else ()
        pairs = [f'"{key}": {rng.choice(odd or usual[key])}' for key in keys]
        form = rng.choice(("{%s", "[%s]", "{%s} x", "\ufeff{%s}", " {%s}\n")) * (rng.random() < 0.1)
        message = (form or "{%s}").replace("%s", ", ".join(pairs)).encode()
        if rng.random() < 0.03:
            message += b"\xff"
        (fast, why, _), (slow, why_not, _) = parse([message]), _one_by_one([message], kinds, "")
        assert why == why_not, message
        num_readable += not why
        for name in kinds:
            assert fast[name].dtype == slow[name].dtype
            assert repr(fast[name].tolist()) == repr(slow[name].tolist()), message
    assert 100 < num_readable < 280


@pytest.mark.parametrize("columns", ["n:int64", "n:int64,ts:int64", "n:int64,ts"])
@pytest.mark.parametrize(
    "times", [["5", "7.5"], ['"5"', '"2026-01-31T12:00:00Z"'], ["5", '"5"'], ["5", "null"], ['""']]
)
def test_event_times_read_by_rust_are_those_read_by_python(columns, times):
    params = Params(f"format=json;columns={columns};event_time=ts")
    parse, kinds = format_of(params).parse, _kinds(columns.split(","))
    messages = [f'{{"n": 1, "ts": {time}}}'.encode() for time in times]
    for _ in range(2):  # the second time it is known what kind the field has
        found, expected = parse(messages), _one_by_one(messages, kinds, "ts")
        assert (list(found.times), found.why) == (expected.times, expected.why)
        for name in kinds:
            assert found.columns[name].tolist() == expected.columns[name].tolist()
