"""What is said of samples of the data, and what ends the job before its first record."""

import numpy as np
import pytest

from elasticdl.data.base import Metadata, Records
from elasticdl.data.wanted import WantedColumn, WantedTable
from elasticdl.errors import DataError
from elasticdl.job import Shard
from elasticdl.packages.data_tools.findings import DataSet, Fed, findings, of_trained
from elasticdl.packages.data_tools.sample import Sample, columns_of, kind_of, places
from elasticdl.worker.trained_columns import read_trained_columns, write_trained_columns

TABLE = WantedTable((WantedColumn("tags", ("red", "blue"), sep="|"),), "y")


def data_set(kind="training", columns=None, metadata=None, num_records=100, looked=100, **fed):
    pieces = ((Shard("a", 0, looked), ()),)
    sample = Sample(num_records, pieces, columns or {})
    return DataSet(kind, metadata or Metadata(), sample, Fed(**fed))


def ragged(*values):
    """Return a column of objects, as lists of Parquet and LIBSVM files are."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def said(main, *others, table=None, reads_by_name=True):
    return findings(main, others, table, reads_by_name)


def test_places_are_spread_over_all_shards_and_all_of_little_data_is_taken():
    shards = [Shard("a", 0, 3), Shard("b", 10, 17)]
    taken = [(piece.name, n) for piece in places(shards, 10) for n in range(piece.start, piece.end)]
    assert taken == [("a", n) for n in range(3)] + [("b", n) for n in range(10, 17)]
    pieces = list(places([Shard("a", 0, 10), Shard("b", 0, 10**9)], 10**9 + 10))
    assert [piece.num_records for piece in pieces] == [10] + [256] * 7
    assert pieces[-1].start > 8 * 10**8
    files = [Shard(f"file {n}", 0, 10_001) for n in range(8)]  # places are at their ends
    assert [piece.num_records for piece in places(files, 80_008)] == [256] * 8
    files = [Shard(f"file {n}", 0, 10_001 - n % 2) for n in range(8)]
    assert sum(piece.num_records for piece in places(files, 80_004)) == 2048


def test_columns_are_seen_in_tables_and_lines_but_not_where_they_cannot_be():
    table = {
        "id": np.array([7, 8]),
        "x": np.array([0.5, np.nan]),
        "word": np.array(["a", None], dtype=object),
        "image": np.array([b"\xff" * 999, b"\x00" * 999], dtype=object),
        "vector": np.zeros((2, 3)),
        "lists": ragged(np.array([1, 2]), np.array([3])),
        "lists of lists": ragged([np.array([1, 2])], [np.zeros(0), np.array([3, 4])]),
        "structs": ragged({"a": np.zeros(2)}, {"a": np.ones(2)}),
        "lists with null": ragged(None, np.array([0.5, np.nan])),
    }
    assert columns_of([Records(columns=table)], Metadata()) == {
        "id": ["7", "8"],
        "x": ["0.5", None],
        "word": ["a", None],
    }
    lines = [Records(values=[b'1,"a,b"', b",c", b"1,2,3"])]
    assert columns_of(lines, Metadata(("n", "s"))) == {"n": ["1", None], "s": ["a,b", "c"]}
    assert columns_of(lines, Metadata()) == {}
    lines = [Records(values=[b"1.5,nan", b"NaN,x"])]
    assert columns_of(lines, Metadata(("n", "s"))) == {"n": ["1.5", None], "s": ["nan", "x"]}
    assert [kind_of(words) for words in (["1", None], ["1", "2.5"], ["1", "x"], [None])] == [
        *("whole numbers", "numbers", "text", "")
    ]


def test_keys_of_lines_of_json_are_columns():
    lines = [
        b'{"a": 1.5, "w": "x", "tags": [1], "b": true}',
        b'{"w": null, "tags": [], "b": false}',
    ]
    seen = columns_of([Records(values=lines)], Metadata())
    assert seen == {"a": ["1.5", None], "w": ["x", None], "b": ["True", "False"]}
    for other in (b"[1]", b"{", b"1,2", b'{"a": ' + b"[" * 10**5):
        assert columns_of([Records(values=[lines[0], other])], Metadata()) == {}

    training, validation = data_set(columns=seen), data_set("validation", columns={"a": ["1"]})
    assert (
        "warning: --validation_data: no record has b, which all of"
        in said(training, validation)[-1]
    )


def test_a_missing_label_is_told_as_what_it_does():
    columns = {"y": ["1", None, "NA", "0"]}
    for positive, num_missing in ((), 2), (("1",), 1):  # NA is a word among others
        table = WantedTable((), "y", positive, missing="NA")
        lines = said(data_set(columns=columns), table=table)
        (line,) = [each for each in lines if "label 'y'" in each]
        assert f"is missing in {num_missing} of 4 records" in line
        assert "a task with such a record fails" in line


def test_balance_range_and_nan_of_labels_are_told_by_output():
    labels = {"click": np.array([0, 1, 1, 1]), "price": np.linspace(0, 50, 100)}
    lines = said(data_set(labels=labels))
    assert "labels: click 0 in 25 %, 1 in 75 %, price 0 to 50, mean 25 (training, of 4)" in lines
    classes = said(data_set(labels={"": np.arange(100) % 8}))
    assert "labels: 0 to 7, 8 classes of 12 % to 13 % (training)" in classes
    nan = said(data_set(labels={"": np.array([np.nan, 1.0, 2.0])}))
    assert "warning: --training_data: 1 of 3 labels are NaN" in nan
    with pytest.raises(DataError, match="all NaN"):
        said(data_set(labels={"": np.full(9, np.nan)}))


def test_nan_in_features_is_told():
    lines = said(data_set(not_a_number={"x": (3, 100), "z": (0, 100)}))
    assert lines[-1] == "missing values: x 3 % (training)"


def test_words_of_lists_are_looked_up_one_by_one():
    lines = said(data_set(words={"tags": ["red|green", "blue", ""]}), table=TABLE)
    assert "words in vocabularies: tags 66.7 %" in lines
    unseen = {"columns": {"tags": ["green"], "y": ["1"]}, "words": {"tags": ["green|grey"]}}
    with pytest.raises(DataError, match=r"'red', 'blue'.*found 'green', 'grey'"):
        said(data_set(**unseen), table=TABLE)


def test_a_vocabulary_that_the_model_shows_is_looked_up_too():
    training = data_set(words={"city": ["oslo", "rome"]})
    with pytest.raises(DataError, match=r"'city'.*'Oslo'.*found 'oslo', 'rome'"):
        findings(training, [], None, True, [WantedColumn("city", ("Oslo",))])
    lines = findings(training, [], None, True, [WantedColumn("city", ("oslo",))])
    assert "words in vocabularies: city 50 %" in lines


@pytest.mark.parametrize(
    ("word", "positive", "is_seen_whole", "is_refused"),
    [
        ("yes", "Yes", False, True),  # written another way
        (" 1.0", "1", False, True),
        ("ja", "Yes", True, True),  # and there is nothing else
        ("ja", "Yes", False, False),  # it may be rare
    ],
)
def test_a_label_without_a_positive_one_is_refused_where_that_is_sure(
    word, positive, is_seen_whole, is_refused
):
    table = WantedTable((), "y", (positive,))
    columns = {"y": [word, "no"] * 50}
    data = data_set(columns=columns, num_records=100 if is_seen_whole else 10**6)
    if is_refused:
        with pytest.raises(DataError, match=rf"never '{positive}'.*found '{word.strip()}', 'no'"):
            said(data, table=table)
    else:
        text = "\n".join(said(data, table=table))
        assert "warning: --training_data: the label 'y' is never 'Yes'" in text


def test_numbers_that_are_far_from_zero_and_left_so_are_told():
    wanted = [WantedColumn(name, is_as_it_is=name != "scaled") for name in ("age", "x", "scaled")]
    table = WantedTable(tuple(wanted), "y", missing="NA")
    columns = {"age": ["18", "NA", "80", None], "x": ["0.5"] * 4, "scaled": ["900"] * 4}
    columns["y"] = ["1"] * 4
    (line,) = [each for each in said(data_set(columns=columns), table=table) if "scales" in each]
    assert "warning: numbers that nothing scales: age (18 to 80). " in line
    assert "--statistics=FILE" in line


def test_columns_of_other_words_or_kinds_are_told():
    training = data_set(columns={"day": ["mon", "tue"] * 50, "n": ["1"] * 100, "id": ["1"] * 100})
    validation = data_set(
        "validation", columns={"day": ["Mo"] * 50, "n": ["one"] * 50, "id": ["1.0"] * 50}
    )
    text = "\n".join(said(training, validation))
    assert "warning: column 'n' is whole numbers in --training_data ('1') and text in" in text
    assert "warning: column 'day': no value of --validation_data ('Mo') is one of" in text
    assert "warning: column 'id': no value of --validation_data ('1.0') is one of" in text
    assert not [line for line in said(training, training) if "warning: column" in line]
    table = WantedTable((WantedColumn("n"),), "n", missing="NA")
    without = data_set("validation", columns={"n": ["1", "NA"]})
    assert "warning: column 'n'" not in "\n".join(said(training, without, table=table))


def test_times_in_another_unit_are_told_where_a_feed_may_take_them_as_numbers():
    def of_unit(unit, kind="training"):
        return data_set(kind, metadata=Metadata(("at",), {"at": np.dtype(f"datetime64[{unit}]")}))

    text = "\n".join(said(of_unit("us"), of_unit("ns", "validation")))
    assert "warning: column 'at' is datetime64[us] in --training_data and datetime64[ns] in" in text
    assert "column 'at'" not in "\n".join(said(of_unit("us"), of_unit("us", "validation")))
    assert "column 'at'" not in "\n".join(said(of_unit("us"), of_unit("ns", "x"), table=TABLE))


def test_data_for_a_saved_model_are_compared_with_the_columns_it_was_trained_on(tmp_path):
    assert read_trained_columns(tmp_path) is None
    of_table = Metadata(("at", "n"), {"at": np.dtype("datetime64[us]"), "n": np.dtype("int64")})
    write_trained_columns(tmp_path, of_table)
    assert read_trained_columns(tmp_path) == of_table
    others = Metadata(("at",), {"at": np.dtype("datetime64[D]")})
    (line,) = of_trained(data_set("prediction", metadata=others), of_table, False)
    assert "column 'at' is datetime64[us] in --training_data and datetime64[D] in" in line

    lines = Metadata(("a", "b", "y"))
    assert of_trained(data_set("prediction", metadata=Metadata(("a", "b"))), lines, False) == []
    assert of_trained(data_set("prediction", metadata=Metadata(("p", "q"))), lines, False) == []
    swapped = data_set("prediction", metadata=Metadata(("b", "a")))
    assert of_trained(swapped, lines, True) == []
    with pytest.raises(DataError, match=r"--prediction_data: its lines have the fields b,a, those"):
        of_trained(swapped, lines, False)


@pytest.mark.parametrize(
    ("ours", "theirs", "kinds", "words"),
    [
        ("int64", "float64", {}, "whole numbers (7) in --training_data and real numbers (7.0)"),
        ("float64", "uint8", {}, "real numbers (7.0) in --training_data and whole numbers (7)"),
        ("bool", "int64", {}, "True, False in --training_data and whole numbers (7)"),
        ("int64", "float64", {"id": "whole"}, ""),  # with null
        ("int64", "int32", {}, ""),
        ("object", "int64", {}, ""),  # text may have the same words
    ],
)
def test_a_hashed_column_with_no_word_in_common_is_told(ours, theirs, kinds, words, tmp_path):
    trained_on = Metadata(("id",), {"id": np.dtype(ours)})
    others = Metadata(("id",), {"id": np.dtype(theirs)}, column_kinds=kinds)
    table = WantedTable((WantedColumn("id", is_hashed=True),), "y")
    columns = {"id": ["7", "8"]}
    text = "\n".join(
        said(
            data_set(columns=columns, metadata=trained_on),
            data_set("validation", columns=columns, metadata=others),
            table=table,
        )
    )
    assert (f"warning: column 'id' is {words}" in text) == bool(words)

    new = data_set("prediction", columns=columns, metadata=others)
    write_trained_columns(tmp_path, trained_on)
    if words:
        with pytest.raises(DataError) as error:
            of_trained(new, read_trained_columns(tmp_path), True, table)
        assert str(error.value).startswith(f"column 'id' is {words} in --prediction_data")
    else:
        assert of_trained(new, read_trained_columns(tmp_path), True, table) == []
    empty = data_set("prediction", columns={"id": [None]}, metadata=others)
    assert of_trained(empty, trained_on, True, table) == []
    write_trained_columns(tmp_path, others)  # whose kinds are kept
    assert read_trained_columns(tmp_path) == others
    assert of_trained(new, read_trained_columns(tmp_path), True, table) == []
