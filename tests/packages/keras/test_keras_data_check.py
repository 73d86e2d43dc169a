"""What a look at the data says, and refuses, before the first record: with TensorFlow's feed."""

import numpy as np
import pytest

from elasticdl.backends.load import load_trainer
from elasticdl.config import DataSection, JobConfig, ModelSection, TrainingSection
from elasticdl.errors import DataError, ElasticdlError
from elasticdl.model_spec import load_model_spec
from elasticdl.packages.data_tools.look import look_at_data
from elasticdl.worker.data_check import metadata_of
from elasticdl.worker.sources import open_readers

pytestmark = pytest.mark.keras

TABLE = """
from elasticdl.preprocessing.tabular import Category, Label, Number, Table, Tags
TABLE = Table(
    [Number("a"), Number("b"), Category("flag", ["True", "False"]), Category("city", 100)],
    label=Label("y", positive="Yes"),
)
feed = TABLE.feed
"""
BY_PLACE = """
import tensorflow as tf
def feed(dataset, mode, metadata):
    def parse(line):
        a, b, flag, city, y = tf.io.decode_csv(line, [0.0, 0.0, "", "", ""])
        return {"x": tf.stack([a, b])}, tf.cast(y == "Yes", tf.float32)[None]
    return dataset.map(parse)
"""
BY_NAME = """
import tensorflow as tf
def feed(dataset, mode, metadata):
    def parse(line):
        fields = tf.strings.split(line, ",")
        at = {name: place for place, name in enumerate(metadata.column_names)}
        number = lambda name: tf.strings.to_number(fields[at[name]])
        features = {"x": tf.stack([number("a"), number("b")])}
        if mode == "prediction":
            return features
        return features, tf.cast(fields[at["y"]] == "Yes", tf.float32)[None]
    return dataset.map(parse)
"""
COLUMNS = ("a", "b", "flag", "city", "y")


def rows(num_records, seed, words=("Yes", "No"), flags=("True", "False")):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, num_records)).round(3)
    return {
        "a": a,
        "b": b,
        "flag": rng.choice(list(flags), num_records),
        "city": rng.choice(["Oslo", "Rome", "Bonn"], num_records),
        "y": np.where(a > b, *words),
    }


def write(path, columns, names=COLUMNS, header=True, sep=","):
    lines = [sep.join(map(str, row)) for row in zip(*(columns[n] for n in names), strict=True)]
    path.write_text("\n".join([sep.join(names)] * header + lines) + "\n")
    return path


class Look:
    """Looks at data sets of a folder, by a model file that has a feed."""

    def __init__(self, folder, monkeypatch):
        self._folder = folder
        monkeypatch.syspath_prepend(str(folder))
        self._count = 0

    def __call__(self, feed, training, validation=None, prediction=None):
        self._count += 1
        name = f"model_{self._folder.name.replace('-', '_')}_{self._count}"
        body = feed + "\ndef forward(): ...\ndef optimizer(): ...\n"
        (self._folder / f"{name}.py").write_text(body)
        config = JobConfig(
            command="train",
            model=ModelSection(model_zoo=self._folder, model_def=f"{name}.forward"),
            data=DataSection(
                training_data=str(training),
                validation_data=str(validation or ""),
                data_reader_params="skip_header=true" if "csv" in str(training) else "",
            ),
            training=TrainingSection(minibatch_size=64),
        )
        spec = load_model_spec(config.model)
        readers = open_readers(config, spec)
        metadata = metadata_of(config, readers)
        trainer = load_trainer(spec, metadata, 0, 1 << 30, 1, False)
        first = next(reader for reader in readers.values())
        # As a job does when it builds its model.
        part = first.shards()[0]
        list(trainer.minibatches(first.read(part), "training", 64, 0))
        return look_at_data(config, spec, trainer, metadata, readers)


@pytest.fixture
def look(tmp_path, monkeypatch):
    return Look(tmp_path, monkeypatch)


@pytest.mark.parametrize("feed", [TABLE, BY_NAME])
def test_lines_in_another_order_are_read_by_their_own_names(look, tmp_path, feed):
    training = write(tmp_path / "t.csv", rows(400, 1))
    validation = write(tmp_path / "v.csv", rows(300, 2), ("b", "a", "flag", "city", "y"))
    said = look(feed, training, validation)
    assert said[:2] == [
        "training: 400 records, all looked at, columns a, b, flag, city, y",
        "validation: 300 records, the same columns in another order",
    ]
    assert said[2].startswith("labels: 0 in ")
    assert not [line for line in said if line.startswith("warning")]


def test_fields_that_are_taken_by_their_place_have_to_be_in_the_same_order(look, tmp_path):
    training = write(tmp_path / "t.csv", rows(400, 1))
    validation = write(tmp_path / "v.csv", rows(300, 2), ("b", "a", "flag", "city", "y"))
    with pytest.raises(DataError, match=r"--validation_data: its lines have the fields b,a,flag"):
        look(BY_PLACE, training, validation)
    same = write(tmp_path / "same.csv", rows(300, 2))
    assert "validation: 300 records, the same columns" in look(BY_PLACE, training, same)


@pytest.mark.parametrize(
    ("feed", "how", "complaint"),
    [
        (TABLE, {"names": ("a", "b", "flag", "city")}, "the data has no column 'y'"),
        (BY_NAME, {"names": ("a", "b", "flag", "city")}, "KeyError: 'y'"),
        (TABLE, {"names": ("a", "flag", "city", "y")}, "the data has no column 'b'"),
        (TABLE, {"sep": ";"}, "delimiter=tab, semicolon or pipe"),
        (BY_PLACE, {"sep": ";"}, "Expect 5 fields but have 1"),
        (TABLE, {"header": False}, "the data has no column"),
        (BY_PLACE, {"header": False}, "its lines have the fields"),
    ],
)
def test_validation_data_that_cannot_be_read_so_is_told_with_its_flag(
    look, tmp_path, feed, how, complaint
):
    training = write(tmp_path / "t.csv", rows(400, 1))
    validation = write(tmp_path / "v.csv", rows(300, 2), **how)
    with pytest.raises(ElasticdlError, match=rf"--validation_data: .*{complaint}"):
        look(feed, training, validation)


def test_a_record_that_feed_cannot_take_is_told_with_its_line(look, tmp_path):
    columns = rows(300, 2)
    columns["a"] = columns["a"].astype(object)
    columns["a"][0] = "many"
    validation = write(tmp_path / "v.csv", columns)
    said = look(TABLE, write(tmp_path / "t.csv", rows(400, 1)), validation)
    (line,) = [each for each in said if "were not fed" in each]
    assert f"{validation}: line 2 (record 0): record 0, column 'a'" in line


def test_a_vocabulary_of_which_nothing_is_found_is_refused_with_three_values(look, tmp_path):
    training = write(tmp_path / "t.csv", rows(400, 1, flags=("on", "off")))
    with pytest.raises(
        DataError, match=r"column 'flag': no value is a word .*'True', 'False'.*'(on|off)'"
    ):
        look(TABLE, training)


def test_a_vocabulary_that_other_data_lacks_is_a_warning(look, tmp_path):
    training = write(tmp_path / "t.csv", rows(400, 1))
    validation = write(tmp_path / "v.csv", rows(300, 2, flags=("1", "0")))
    said = look(TABLE, training, validation)
    assert any(
        line.startswith("warning: --validation_data: column 'flag': 0 % of the") for line in said
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("yes", "no"), r"label 'yes' differs from positive=\['Yes'\] by its case"),
        (("1", "0"), "label 'y' is never 'Yes'.*1"),
        (("Yes.", "No."), r"label 'y' is never 'Yes'.*Yes\."),
    ],
)
def test_a_label_that_is_never_positive_is_refused_with_what_was_found(
    look, tmp_path, words, complaint
):
    training = write(tmp_path / "t.csv", rows(400, 1, words))
    with pytest.raises(DataError, match=complaint):
        look(TABLE, training)


@pytest.mark.parametrize(
    ("positive", "written"),
    [("True", ("TRUE", "FALSE")), ("true", (True, False)), ("1", (True, False)), ("1", (1.0, 0.0))],
)
def test_a_label_that_feed_writes_as_its_positive_word_is_not_refused(
    look, tmp_path, positive, written
):
    columns = rows(400, 1, written)
    if isinstance(written[0], str):
        training = write(tmp_path / "t.csv", columns)
    else:
        pa = pytest.importorskip("pyarrow", reason="this needs elasticdl-train[parquet]")
        pq = pytest.importorskip("pyarrow.parquet")
        training = tmp_path / "t.parquet"
        columns |= {name: columns[name].astype(object) for name in ("flag", "city")}
        pq.write_table(pa.table(columns), training)
    said = look(TABLE.replace("Yes", positive), training)
    assert [line for line in said if line.startswith("labels: 0 in ") and ", 1 in " in line]
    assert not [line for line in said if "is never" in line]


def test_a_number_of_a_table_that_nothing_scales_is_told(look, tmp_path):
    columns = rows(400, 1)
    columns["a"] = 1000 * columns["a"]
    said = look(TABLE, write(tmp_path / "t.csv", columns))
    assert [each for each in said if "numbers that nothing scales: a (" in each]
    scaled = TABLE.replace('Number("a")', 'Number("a", mean=0.0, stddev=1000.0)')
    assert not [each for each in look(scaled, tmp_path / "t.csv") if "scales" in each]


def test_one_class_and_missing_values_are_told(look, tmp_path):
    columns = rows(400, 1)
    columns["a"] = np.where(np.arange(400) % 10 == 0, "", columns["a"].astype(str))
    columns["y"] = np.full(400, "Yes")
    said = look(TABLE, write(tmp_path / "t.csv", columns))
    assert "missing values: a 10 % (training)" in said
    assert "labels: 1 in 100 % (training)" in said
    assert any(
        "warning: --training_data: all 400 labels that were looked at are 1" in line
        for line in said
    )


def test_columns_of_parquet_files_come_in_the_order_of_the_training_data(look, tmp_path):
    pytest.importorskip("pyarrow", reason="this needs elasticdl-train[parquet]")
    import pyarrow as pa
    import pyarrow.parquet as pq

    feed = """
import tensorflow as tf
def feed(dataset, mode, metadata):
    def parse(record):
        values = list(record.values())
        return {"x": tf.stack([tf.cast(v, tf.float32) for v in values[:2]])}, values[2][None]
    return dataset.map(parse)
"""
    one = {"a": np.zeros(90), "b": np.ones(90), "y": np.arange(90) % 3}
    pq.write_table(pa.table(one), tmp_path / "t.parquet")
    other = {"y": one["y"], "b": one["b"], "a": one["a"]}
    pq.write_table(pa.table(other), tmp_path / "v.parquet")
    said = look(feed, tmp_path / "t.parquet", tmp_path / "v.parquet")
    assert said[1] == "validation: 90 records, the same columns"
    assert said[2].endswith("(training); 0 in 33.3 %, 1 in 33.3 %, 2 in 33.3 % (validation)")


def test_a_feature_that_no_example_has_is_refused(look, tmp_path):
    from elasticdl._core import RecordWriter
    from elasticdl.data.example import encode_examples

    feed = TABLE.replace("label=", 'records="example", label=')

    def records(name, columns):
        with RecordWriter(str(tmp_path / name)) as writer:
            for record in encode_examples(columns):
                writer.write(record)
        return tmp_path / name

    full = rows(200, 1)
    training = records("t.recordio", full)
    said = look(feed, training, records("same.recordio", rows(100, 2)))
    assert "words in vocabularies: flag 100 % (validation 100 %)" in said
    lacking = {name: values for name, values in full.items() if name != "b"}
    with pytest.raises(DataError, match=r"--validation_data: none of the .* has the feature 'b'"):
        look(feed, training, records("v.recordio", lacking))


def test_files_below_a_folder_of_files_are_told(look, tmp_path):
    below = tmp_path / "csv" / "more"
    below.mkdir(parents=True)
    write(tmp_path / "csv" / "t.csv", rows(400, 1))
    write(below / "t.csv", rows(400, 1))
    said = look(TABLE, f"{tmp_path}/csv/")
    assert f"warning: --training_data: the files in {below} are not read" in said[-1]
