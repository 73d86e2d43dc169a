"""What each method of `tf.data.Dataset` means in `feed`, and which record each row is of."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode
from elasticdl.cli.local import run
from elasticdl.config import DataSection, JobConfig, ModelSection, TrainingSection
from elasticdl.data.base import Metadata, Records
from elasticdl.errors import ModelError
from elasticdl.packages.keras.feed.dataset import NotedDataset
from elasticdl.packages.keras.feed.runner import FeedRunner

pytestmark = pytest.mark.keras

LINES = [str(i).encode() for i in range(50)]
DESIGN = Path(__file__).parents[3] / "docs" / "designs" / "feed.md"
DUNDERS = {"__iter__", "__len__", "__bool__"}


def documented():
    """Return {method: what the table of the design says it is}."""
    rows = re.findall(r"^\| (`.+?) \| (\w[\w ]*) \|", DESIGN.read_text(), re.MULTILINE)
    return {name: here for names, here in rows for name in re.findall(r"`(\w+)`", names)}


def number(record):
    return tf.strings.to_number(record, tf.int64)


def labelled(record):
    return number(record), tf.constant(1.0)


def fed(feed, mode=Mode.PREDICTION, size=8, seed=3, start=100):
    records = iter([Records(start, values=LINES[:20]), Records(start + 20, values=LINES[20:])])
    runner = FeedRunner(lambda d, mode, metadata: feed(d), Metadata())
    return list(runner.minibatches(records, mode, size, seed))


def rows(minibatches):
    """Return (value, number of its record) of each row."""
    return [
        (int(np.ravel(x)[0]), int(n))
        for mb in minibatches
        for x, n in zip(mb.features.numpy(), mb.record_numbers, strict=True)
    ]


def doubled(x):
    return tf.data.Dataset.from_tensors(x).repeat(2)


def noisy(x):
    return x + tf.cast(tf.random.uniform([], 0, 1), tf.int64)


def by_batch(dataset):
    return dataset.batch(8).map(lambda x: x * 1)


def bucketed(dataset):
    return dataset.map(lambda x: tf.fill([x % 5 + 1], x)).bucket_by_sequence_length(
        lambda x: tf.shape(x)[0], [3], [8, 4]
    )


EVERY_RECORD_ONCE = {
    "vectorised": lambda d: d.shuffle(50).map(number),
    "compiled": lambda d: d.map(lambda r: number(tf.strings.unicode_encode(
        tf.strings.unicode_decode(r, "UTF-8"), "UTF-8"))).shuffle(50),
    "drawing": lambda d: d.map(number).shuffle(50).map(noisy),
    "minibatches": lambda d: by_batch(d.map(number).shuffle(50)),
    "shuffled minibatches": lambda d: by_batch(d.map(number)).shuffle(50),
    "padded": lambda d: d.shuffle(9).map(lambda r: tf.fill([number(r) % 3 + 1], number(r)))
    .padded_batch(8, [None], np.int64(-1)),
    "unbatched": lambda d: d.map(number).batch(5).map(lambda x: x).unbatch(),
    "rebatched": lambda d: d.map(number).batch(5).rebatch(8),
    "ragged": lambda d: d.map(number).ragged_batch(8),
    "buckets": lambda d: bucketed(d.map(number).shuffle(50)),
    "options": lambda d: d.map(number).with_options(tf.data.Options()).ignore_errors(),
    "applied": lambda d: d.apply(lambda d: d.map(number).filter(lambda x: True)),
    "tuples": lambda d: d.map(lambda r: (number(r), number(r))).filter(lambda x, y: x == y)
    .map(lambda x, y: x),
    "lists": lambda d: d.map(lambda r: [number(r), number(r)]).filter(lambda x, y: x == y)
    .map(lambda x, y: x),
}  # fmt: skip


@pytest.mark.parametrize("feed", EVERY_RECORD_ONCE.values(), ids=EVERY_RECORD_ONCE)
def test_each_prediction_stands_beside_its_own_record(feed):
    found = rows(fed(feed))
    assert all(value + 100 == number for value, number in found)
    assert sorted(number for _, number in found) == list(range(100, 150))


def test_predictions_are_told_their_records():
    even = rows(fed(lambda d: d.map(number).shuffle(50).filter(lambda x: x % 2 == 0)))
    twice = rows(fed(lambda d: d.map(number).filter(lambda x: x < 9).flat_map(doubled)))
    in_turn = rows(fed(lambda d: d.map(number).interleave(doubled, cycle_length=4)))

    assert even == [(x, x + 100) for x in range(0, 50, 2)]
    assert twice == [(x, x + 100) for x in range(9) for _ in range(2)]
    assert sorted(in_turn) == [(x, x + 100) for x in range(50) for _ in range(2)]


def test_training_rows_have_no_numbers_and_are_shuffled():
    minibatches = fed(lambda d: d.map(labelled).shuffle(50), Mode.TRAINING)
    assert {mb.record_numbers for mb in minibatches} == {None}
    values = [int(x) for mb in minibatches for x in mb.features]
    assert values != sorted(values)
    assert sorted(values) == list(range(50))


def half(x):
    return x[::2]


@pytest.mark.parametrize(
    "feed",
    [
        lambda d: d.map(number).batch(8).map(half),
        lambda d: d.batch(8).map(lambda r: number(tf.strings.split(r, ",").values)[1:]),
        lambda d: d.map(number).filter(lambda x: True).batch(8).map(half),
    ],
    ids=["vectorised", "compiled", "plain"],
)  # fmt: skip
def test_rows_that_cannot_be_told_apart_are_refused(feed):
    with pytest.raises(ModelError, match=r"gives \d rows for 8 records in mode prediction"):
        fed(feed)


@pytest.mark.parametrize(
    "feed",
    [
        lambda d: d.map(labelled).batch(8).map(lambda x, y: (half(x), y)),
        lambda d: d.map(labelled).batch(8).map(lambda x, y: ({"x": x, "c": tf.constant(1)}, y)),
        lambda d: d.map(labelled).filter(lambda x, y: True).batch(8)
        .map(lambda x, y: (x, half(y))),
    ],
    ids=["vectorised", "scalar", "plain"],
)  # fmt: skip
def test_tensors_of_different_lengths_are_refused(feed):
    with pytest.raises(ModelError, match="expected as many rows in each tensor"):
        fed(feed, Mode.TRAINING)


def test_a_map_of_minibatches_may_leave_rows_out_when_training():
    minibatches = fed(
        lambda d: d.map(labelled).batch(8).map(lambda x, y: (x[x > 20], y[x > 20])), Mode.TRAINING
    )
    assert [mb.num_records for mb in minibatches] == [3, 8, 8, 8, 2]  # two had none left


def test_each_method_of_a_dataset_has_a_row_in_the_design():
    public = {name for name in dir(tf.data.Dataset) if not name.startswith("_")}
    assert set(documented()) == public | DUNDERS


def test_what_the_design_says_of_a_method_is_where_the_code_has_it():
    own = vars(NotedDataset)
    for name, here in documented().items():
        if here in ("noted", "runs", "no effect", "refused"):
            assert name in own or name == "apply", f"{name} is inherited, not chosen"
        else:
            assert name not in own or name == "element_spec"


ARGUMENTS = {
    "take": (5,), "skip": (5,), "shard": (2, 0), "repeat": (2,), "concatenate": (None,),
}  # fmt: skip
REFUSED = sorted(name for name, here in documented().items() if here == "refused")


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_that_is_not_of_one_record_is_refused_with_what_to_write(name):
    def feed(dataset):
        return getattr(dataset.map(number), name)(*ARGUMENTS.get(name, ()))

    with pytest.raises(ModelError, match=r"feed (calls|reads its) dataset.*(; |: ).{8}") as error:
        fed(feed)
    written = {"__iter__": "iterating", "__len__": "len"}.get(name, name)
    assert written in str(error.value)


def test_arguments_by_which_a_method_does_nothing_are_accepted():
    found = rows(fed(lambda d: d.map(number).take(-1).skip(0).shard(1, 0).repeat(1).cache("x")))
    assert len(found) == 50


@pytest.mark.parametrize(
    "foreign",
    [
        lambda d: tf.data.Dataset.range(9),
        lambda d: tf.data.Dataset.zip((tf.data.Dataset.range(99), d)),
        lambda d: tf.data.Dataset.sample_from_datasets([d, d]),
        lambda d: tf.data.Dataset.take(d, 9),
        lambda d: d.apply(tf.data.experimental.assert_cardinality(50)),
    ],
    ids=["range", "zip", "sample", "take", "apply"],
)
def test_a_dataset_that_is_not_made_of_the_given_one_is_refused(foreign):
    with pytest.raises(ModelError, match=r"must return the dataset .*flat_map only"):
        fed(lambda d: foreign(d.map(number)))


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        (lambda d: d.map(number).batch(4).batch(8), "dataset.batch on minibatches"),
        (lambda d: d.batch(8).flat_map(doubled), "flat_map after it has made minibatches"),
        (lambda d: d.batch(8).unbatch().padded_batch(8, drop_remainder=True), "padded_batch with"),
    ],
)
def test_minibatches_are_made_once_and_keep_all_records(feed, says):
    with pytest.raises(ModelError, match=says):
        fed(feed)


MODEL = """
import keras
import tensorflow as tf

def model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))

def optimizer():
    return keras.optimizers.SGD(1e-6)

def eval_metrics_fn():
    return {"label": lambda labels, predictions: labels}

def feed(dataset, mode, metadata):
    def parse(record):
        x = tf.strings.to_number(record)[tf.newaxis]
        return x, x

    dataset = dataset.map(parse).shuffle(64)
    if mode == "evaluation":
        return dataset.filter(lambda x, y: y[0] >= 40)
    dataset = dataset.filter(lambda x, y: tf.logical_and(y[0] >= 30, y[0] < 190))
    return dataset.flat_map(lambda x, y: tf.data.Dataset.from_tensors((x, y)).repeat(
        tf.cast(y[0], tf.int64) % 3))
"""


class Silent:
    def starts(self):
        pass

    def note(self, text):
        pass

    def show(self, status):
        pass


def test_a_job_whose_feed_leaves_records_out_and_makes_several_of_one_is_proved(tmp_path):
    (tmp_path / "uneven_feed.py").write_text(MODEL)
    for name, numbers in {"a": range(100), "b": range(100, 200)}.items():
        (tmp_path / f"{name}.csv").write_text("".join(f"{n}\n" for n in numbers))
    config = JobConfig(
        command="train",
        model=ModelSection(model_zoo=tmp_path, model_def="uneven_feed.model"),
        data=DataSection(
            training_data=f"{tmp_path / 'a.csv'},{tmp_path / 'b.csv'}",
            validation_data=str(tmp_path / "a.csv"),
        ),
        training=TrainingSection(minibatch_size=8, num_minibatches_per_task=4, num_epochs=2),
    )

    status = run(config, Silent())

    examples = sum(n % 3 for n in range(30, 190))
    rows = [(r.records, r.trained_once, r.repeated, r.lost, r.examples) for r in status.ledger]
    assert (status.status, status.message) == ("finished", "")
    assert rows == [(200, 200, 0, 0, examples)] * 2
    assert status.metrics["label"] == sum(range(40, 100)) / 60  # of the tasks that had any
