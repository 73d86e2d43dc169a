"""A table declared in a model file: what its feed gives and what the model is given."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.data.params import Params
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.layers import CompressedInteraction, CrossNetwork, Embedding
from elasticdl.model_spec import load_model_spec
from elasticdl.packages.keras.feed.records import column_tensor
from elasticdl.packages.notebooks import functions
from elasticdl.packages.notebooks.predictor import imports_of
from elasticdl.packages.streams.messages import format_of
from elasticdl.preprocessing import HashedCross, Hashing
from elasticdl.preprocessing.tabular import Bucket, Category, Cross, Label, Number, Table, Tags

pytestmark = pytest.mark.keras

NAMES = ("age", "city", "tags", "shop", "income")
LINES = ["20,Oslo,a|b,7,>50K", ",Rome,,8,<=50K", "64,Oslo,c,, >50K."]
COLUMNS = [
    Number("age", mean=40, stddev=20, missing=-1),
    Bucket("age", [18, 50], missing=-1),
    Category("city", ["Oslo", "Bern"]),
    Category("shop", 100, dtype="int64"),
    Cross(["age", "city"], 5000),
    Tags("tags", 50),
]
LABEL = Label("income", positive=[">50K", ">50K."])


def table(**settings):
    return Table(COLUMNS, LABEL, **settings)


def batch_of(table, records, mode=Mode.EVALUATION, names=NAMES):
    dataset = tf.data.Dataset.from_tensor_slices(records)
    return next(iter(table.feed(dataset, mode, Metadata(names)).batch(10)))


def encoded(table, features):
    inputs = table.inputs()
    columns = table.encode(inputs)
    outputs = {"numbers": columns.numbers, "ids": columns.ids, "tags": columns.lists[0][1]}
    return keras.Model(inputs, outputs)(features), columns


def test_lines_become_numbers_ids_and_lists():
    features, labels = batch_of(table(), LINES)

    found, columns = encoded(table(), features)

    assert labels.numpy().tolist() == [[1.0], [0.0], [1.0]]
    np.testing.assert_allclose(found["numbers"], [[-1.0], [-2.05], [1.2]])
    crossed = HashedCross(5000)([tf.constant([1, 0, 2]), tf.constant(["Oslo", "Rome", "Oslo"])])
    shops = Hashing(100)(tf.constant([7, 8, -1]))  # -1 stands for what is missing
    sizes = [3, 3, 100, 5000]
    expected = np.stack([[1, 0, 2], [0, 2, 0], shops, crossed], 1)
    expected += [0, 3, 6, 106]
    np.testing.assert_array_equal(found["ids"], expected)
    assert columns.num_ids == sum(sizes)
    tags = [[int(Hashing(50)(tf.constant(w))) for w in one] for one in (["a", "b"], [], ["c"])]
    assert found["tags"].to_list() == tags


def test_examples_columns_and_messages_give_what_lines_give():
    from elasticdl.data.example import encode_examples

    features, labels = batch_of(table(), LINES)
    numbers = {"age": np.array([20, np.nan, 64]), "shop": np.array([7, 8, -1])}
    words = {
        "city": ["Oslo", "Rome", "Oslo"],
        "tags": ["a|b", "", "c"],
        "income": [">50K", "<=50K", " >50K."],
    }
    rows = {"age": np.array([20, -1, 64], np.float32), "shop": numbers["shop"]}
    examples = encode_examples({**rows, **{k: np.array(v, object) for k, v in words.items()}})

    rows = [
        {"age": 20, "shop": 7, "city": "Oslo", "tags": "a|b", "income": ">50K"},
        {"age": None, "shop": 8, "city": "Rome", "tags": "", "income": "<=50K"},
        {"age": 64.0, "shop": -1, "city": "Oslo", "tags": "c", "income": " >50K."},
    ]
    of_json = format_of(Params("format=json;columns=age:float,shop:int64,city,tags,income"))
    messages = of_json.records([json.dumps(row).encode() for row in rows], [0, 1, 2]).columns
    for one, records in (
        (table(), numbers | words),
        (table(records="example"), examples),
        (table(), {name: column_tensor(column) for name, column in messages.items()}),
    ):
        same, same_labels = batch_of(one, records)
        assert set(same) == {"age", "city", "tags", "shop"}
        for name, values in features.items():
            np.testing.assert_array_equal(same[name], values)
            assert same[name].dtype == values.dtype
        np.testing.assert_array_equal(same_labels, labels)


def test_whole_numbers_in_examples_are_read_as_such():
    from elasticdl.data.example import encode_examples

    examples = encode_examples({"n": np.array([3, None], object), "y": np.array([1, 0])})
    columns = [Number("n", missing=-4, dtype="int64"), Bucket("n", [0], -4, "int64")]
    one = Table(columns, Label("y", dtype="int64"), records="example")

    features, labels = batch_of(one, examples, names=())

    assert features["n"].numpy().tolist() == [[3.0], [-4.0]]
    assert (features["n"].dtype, labels.dtype) == (tf.float32, tf.int64)


def test_a_prediction_needs_no_label_in_the_data():
    lines = [line.rpartition(",")[0] for line in LINES]

    features = batch_of(table(), lines, Mode.PREDICTION, NAMES[:-1])

    assert features["city"].numpy().tolist() == [[b"Oslo"], [b"Rome"], [b"Oslo"]]


def test_names_of_fields_and_words_for_what_is_missing_may_be_in_the_model_file():
    one = table(file_columns=NAMES, delimiter=";", missing="?")

    features, _ = batch_of(one, ["?;Oslo;;3;>50K"], names=())

    assert features["age"].numpy().tolist() == [[-1.0]]


def test_the_delimiter_is_that_of_the_reader():
    lines = [line.replace(",", ";") for line in LINES]
    dataset = tf.data.Dataset.from_tensor_slices(lines)
    metadata = Metadata(NAMES, delimiter=";")

    features, _ = next(iter(table().feed(dataset, Mode.EVALUATION, metadata).batch(10)))

    assert features["city"].numpy().tolist() == [[b"Oslo"], [b"Rome"], [b"Oslo"]]


def test_words_of_a_label_are_classes():
    one = Table([Number("x")], Label("kind", classes=["young", "old"]))

    _, labels = batch_of(one, ["1,old", "2, young ", "3,old"], names=("x", "kind"))

    assert labels.numpy().tolist() == [[1], [0], [1]]
    assert labels.dtype == tf.int64
    with pytest.raises(tf.errors.OpError, match=r"'odl' is none of the classes \['young', 'old'\]"):
        batch_of(one, ["1,odl"], names=("x", "kind"))


def test_columns_whose_words_are_hashed_are_known():
    numbers, words = [Number("x"), Category("n", 9, dtype="int64")], Category("v", ["a"])
    one = Table([*numbers, words, Category("c", 9), Tags("t", 9), Cross("cw", 9)], Label("y"))
    assert {each.name for each in one.wanted().columns if each.is_hashed} == {"c", "t", "w"}


@pytest.mark.parametrize(
    ("label", "wanted", "given"),
    [
        (Label("y", positive=2), ("2",), [0.0, 1.0]),
        (Label("y", positive=[2, 3]), ("2", "3"), [0.0, 1.0]),
        (Label("y", classes=[1, 2]), (), [0, 1]),
    ],
)
def test_numbers_of_a_label_are_its_words(label, wanted, given):
    one = Table([Number("x")], label)
    assert one.wanted().positive == wanted
    _, labels = batch_of(one, [b"3,1", b"4,2"], names=("x", "y"))
    assert labels.numpy().ravel().tolist() == given


def test_columns_of_any_name_have_layers_of_their_own():
    one = Table(
        [Category("城市", 5), Tags("爱好", 9), Tags("年/龄", 9), Category("a b", ["x"])], Label("y")
    )
    inputs = one.inputs()
    features = {name: tf.constant([["x"]]) for name in ("城市", "爱好", "年/龄", "a b")}

    model = keras.Model(inputs, one.encode(inputs).linear())

    assert model(features).shape == (1, 1)
    names = [layer.name for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    assert all(name.isascii() and not {" ", "/"} & set(name) for name in names)


def test_a_linear_model_and_vectors_have_a_place_for_each_column():
    inputs = table().inputs()
    columns = table().encode(inputs)

    assert columns.vectors(4).shape == (None, 5, 4)
    assert columns.flat(4).shape == (None, 5 * 4 + 1)
    model = keras.Model(inputs, columns.linear())
    features, _ = batch_of(table(), LINES)
    assert model(features).shape == (3, 1)
    names = [layer.name for layer in model.layers]
    assert {"weights", "weights_tags", "weights_of_numbers"} <= set(names)


def test_sizes_may_be_numbers_of_numpy():
    size = np.array([3, 9]).max() + 1
    columns = [Category("a", size), Tags("b", size), Cross(["a", "b"], size)]
    made = Table(columns, LABEL)
    inputs = made.inputs()
    assert made.encode(inputs).num_ids == 20
    layers = [
        Embedding(np.int64(2), size, combiner="sum"),
        CompressedInteraction((np.int32(3),)),
        CrossNetwork(np.int64(2)),
    ]
    json.dumps([layer.get_config() for layer in layers])


def test_many_ids_have_a_table_without_a_size():
    huge = Table([Cross(["a", "b"], 7_000_000_000)], Label("y"))

    inputs = huge.inputs()
    columns = huge.encode(inputs)
    model = keras.Model(inputs, columns.linear())

    assert columns.num_ids == 7_000_000_000
    assert model.get_layer("weights").input_dim is None


def test_numbers_and_buckets_come_from_the_statistics(tmp_path, monkeypatch):
    column = {
        "kind": "float", "count": 3, "missing": 0, "num_values": 3, "mean": 3.0, "stddev": 2.0,
        "boundaries": [2.0], "distinct": {"count": 3},
    }  # fmt: skip
    path = tmp_path / "statistics.json"
    content = {"source": {"path": "d", "num_files": 1}, "num_records": 3, "columns": {"x": column}}
    path.write_text(json.dumps(content))
    monkeypatch.setenv("ELASTICDL_STATISTICS", str(path))
    one = Table([Number("x"), Bucket("x")], Label("y"))
    inputs = one.inputs()
    columns = one.encode(inputs)

    found = keras.Model(inputs, {"n": columns.numbers, "i": columns.ids})(
        {"x": np.array([[1.0], [5.0]])}
    )

    assert found["n"].numpy().tolist() == [[-1.0], [1.0]]
    assert found["i"].numpy().tolist() == [[0], [1]]
    monkeypatch.delenv("ELASTICDL_STATISTICS")
    plain = Table([Number("x")], Label("y"))
    inputs = plain.inputs()
    same = keras.Model(inputs, plain.encode(inputs).numbers)({"x": np.array([[1.0], [5.0]])})
    assert same.numpy().tolist() == [[1.0], [5.0]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Table([Number("a"), Number("a")], LABEL),
            r"Number\('a'\) is there more than once",
        ),
        (lambda: Table([Number("income")], LABEL), "'income' is the label, and among the columns"),
        (lambda: Table([Cross(["income", "a"], 9)], LABEL), "'income' is the label, and among"),
        (lambda: Table([Number("a"), Cross(["a", "b"], 9)], LABEL), "crosses the number 'a'"),
        (
            lambda: Table([Number("a"), Bucket("a", [1], 5)], LABEL),
            "of one column, say the same",
        ),
        (
            lambda: batch_of(table(), LINES, names=("age", "income")),
            "no column 'city', 'shop', 'tags'; it has age, income",
        ),
        (
            lambda: batch_of(table(), LINES, names=("age;income",)),
            "it has age;income. The fields seem to have ';' between them: say delimiter=",
        ),
        (lambda: Table([], Label("y", "a", classes=["a", "b"])), "say either of both"),
        (lambda: Table([], Label("y", classes=["a"])), "two classes or more"),
        (lambda: Table([], Label("y", classes={"a", "b"})), r"Label\('y'\): classes is a set"),
        (
            lambda: Table([Category("a", {"b", "c"})], LABEL),
            r"Category\('a'\): vocabulary is a set",
        ),
        (lambda: Table([Tags("a", "no.txt")], LABEL), r"Tags\('a'\): .* there is no such file"),
        (lambda: batch_of(table(), LINES, names=()), "the lines have no names of columns"),
        (
            lambda: Table([Bucket("a")], LABEL).encode({"a": keras.Input((1,))}),
            r"Bucket\('a'\) has no boundaries: run elasticdl data analyze",
        ),
    ],
)
def test_what_cannot_be_is_said(make, words, monkeypatch):
    monkeypatch.delenv("ELASTICDL_STATISTICS", raising=False)
    with pytest.raises(ModelError, match=words):
        make()


def test_a_word_where_a_number_is_expected_is_answered_with_what_to_write():
    from elasticdl.packages.keras.feed.faults import reason

    found = reason(
        tf.errors.InvalidArgumentError(None, None, "Field 1 in record 0 is not a valid float: NA")
    )

    assert "valid float: NA (fields count from 0). In a Table," in found
    assert "missing='NA'" in found


OF_NOTEBOOK = Table(
    [
        Number("age", missing=float("nan")),
        Category("city", np.array(["Oslo", 'B"ern'])),
        Category("shop", [7, 8], dtype="int64"),
        Cross(["shop", "city"], 5000),
        Tags("tags", 50, sep=" "),
    ],
    Label("income", positive=">50K"),
    file_columns=NAMES,
    missing="NA",
)


def forward_of_notebook():
    return OF_NOTEBOOK.inputs()


def feed_of_notebook(dataset, mode, metadata):
    return OF_NOTEBOOK.feed(dataset, mode, metadata)


def test_a_table_of_a_program_is_found_in_a_process_that_imports_no_table_itself(tmp_path):
    functions.write(tmp_path, {"forward": forward_of_notebook, "feed": OF_NOTEBOOK.feed}, "of_job")
    program = (
        "from elasticdl.model_spec import load_model_spec\n"
        "from elasticdl.settings.model import ModelSection\n"
        f"section = ModelSection(model_zoo={str(tmp_path)!r}, model_def='of_job.forward')\n"
        "print(load_model_spec(section).table.wanted() is not None)\n"
        "import elasticdl.preprocessing.tabular\n"
        "print(elasticdl.preprocessing.tabular.Table.__name__)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout == "True\nTable\n", done.stderr


@pytest.mark.parametrize("feed", [OF_NOTEBOOK.feed, feed_of_notebook])
def test_a_table_of_a_notebook_goes_with_the_functions_that_use_it(feed, tmp_path):
    functions.write(tmp_path, {"forward": forward_of_notebook, "feed": feed}, "of_notebook")
    with imports_of(tmp_path):
        spec = load_model_spec(ModelSection(model_zoo=tmp_path, model_def="of_notebook.forward"))
    again = spec.table
    assert again is not OF_NOTEBOOK
    assert again.wanted() == OF_NOTEBOOK.wanted()
    assert list(spec.model()) == ["age", "city", "shop", "tags"]
    made, meant = (batch_of(each, LINES)[0] for each in (again, OF_NOTEBOOK))
    for name in meant:
        np.testing.assert_array_equal(made[name].numpy(), meant[name].numpy())
