"""`feed` runs vectorised where that gives the same, and as the user wrote it where not."""

import logging
import re
from queue import SimpleQueue

import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode, batched
from elasticdl.data.base import Metadata, Records
from elasticdl.errors import DataError, ModelError
from elasticdl.packages.keras.feed import choice, proof
from elasticdl.packages.keras.feed.runner import FeedRunner

pytestmark = pytest.mark.keras

INTS = {"x": tf.io.FixedLenFeature([2], tf.int64), "y": tf.io.FixedLenFeature([], tf.float32)}


def example(x, y):
    features = {
        "x": tf.train.Feature(int64_list=tf.train.Int64List(value=x)),
        "y": tf.train.Feature(float_list=tf.train.FloatList(value=[y])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


EXAMPLES = [example([i, 2 * i], i / 7) for i in range(50)]
LINES = [f"{i},{i * 0.5},name{i % 7}".encode() for i in range(50)]
BYTES = [bytes([i, i + 1, i + 2]) for i in range(50)]


def parse(record):
    parsed = tf.io.parse_single_example(record, INTS)
    return {"x": parsed["x"]}, parsed["y"]


def parse_without_label(record):
    return {"x": tf.io.parse_single_example(record, INTS)["x"]}


def branch(record):
    parsed = tf.io.parse_single_example(record, INTS)
    if parsed["y"] > 3.0:  # noqa: SIM108 (a statement is what AutoGraph is tested with)
        x = parsed["x"] * 10
    else:
        x = parsed["x"]
    return x, parsed["y"]


def csv(record):
    number, half, name = tf.io.decode_csv(record, [0, 0.0, ""])
    return {"n": number, "bucket": tf.strings.to_hash_bucket_fast(name, 100)}, half


def texts(record):
    text = tf.strings.lower(tf.strings.strip(record))
    return tf.strings.length(text), tf.strings.regex_replace(text, "name", "n")


def raw(record):
    return tf.cast(tf.io.decode_raw(record, tf.uint8), tf.float32) / 255.0, 0.0


def various(record):
    spec = {"x": tf.io.VarLenFeature(tf.int64), "y": tf.io.FixedLenFeature([], tf.float32)}
    parsed = tf.io.parse_single_example(record, spec)
    return parsed["x"], parsed["y"]


def split(record):
    parts = tf.strings.split(record, ",")
    return tf.strings.to_number(parts[0]), tf.strings.to_number(parts[1])


def split_one_of_several(record):
    parts = tf.strings.split([record, record], ",")
    return parts.values, tf.strings.to_number(parts[1, 0])


def split_as_before(record):
    parts = tf.compat.v1.string_split([record], ",").values
    return tf.strings.join([parts[2], "x", parts[0]], "_"), tf.strings.to_number(parts[1])


def cut(record):
    return tf.strings.substr(record, 0, 2), 0.0


def looked_up(record):
    words = tf.constant([f"name{i}" for i in range(5)])
    numbers = tf.range(5, dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, numbers), -1)
    return table.lookup(tf.strings.split(record, ",")[2:]), 0.0


def zeros(record):
    return tf.size(tf.strings.split(record, "0")), 0.0


def noisy(record):
    features, label = parse(record)
    return {"x": tf.cast(features["x"], tf.float32) + tf.random.normal([2])}, label


def by_python(record):
    return tf.numpy_function(lambda r: np.float32(len(r)), [record], tf.float32), 1.0


def mapped(function, *steps):
    def feed(dataset, mode, metadata):
        dataset = dataset.map(function, num_parallel_calls=2)
        for step in steps:
            dataset = step(dataset)
        return dataset

    return feed


def chunks(values, size=17, start=100):
    for at in range(0, len(values), size):
        yield Records(start + at, values=values[at : at + size])


def run(feed, values, mode=Mode.TRAINING, size=16, seed=3, runner=None):
    runner = runner or FeedRunner(feed, Metadata())
    return list(runner.minibatches(chunks(values), mode, size, seed))


def tensors(minibatches):
    return [[t.numpy().tolist() for t in mb.tensors] for mb in minibatches]


def as_tensorflow_does(function, values, size=16):
    dataset = tf.data.Dataset.from_tensor_slices(values).map(function).batch(size)
    return [
        [t.numpy().tolist() for t in tf.nest.flatten(element, expand_composites=True)]
        for element in dataset
    ]


def nearly(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-6)


def complaints(caplog):
    return [r.getMessage() for r in caplog.records if r.name.startswith("elasticdl")]


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (parse, EXAMPLES), (branch, EXAMPLES), (various, EXAMPLES), (csv, LINES), (texts, LINES),
        (raw, BYTES), (split, LINES), (split_one_of_several, LINES), (split_as_before, LINES),
        (cut, LINES), (looked_up, LINES),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)  # fmt: skip
def test_maps_of_tensors_run_vectorised_and_give_what_tensorflow_gives(function, values, caplog):
    minibatches = run(mapped(function), values)

    assert complaints(caplog) == []
    for found, expected in zip(
        tensors(minibatches), as_tensorflow_does(function, values), strict=True
    ):
        for a, b in zip(found, expected, strict=True):
            same = np.asarray(a).dtype.kind in "SUO"
            (np.testing.assert_array_equal if same else nearly)(a, b)
    assert [mb.num_records for mb in minibatches] == [16, 16, 16, 2]


def lists_and_times(kind):
    """Columns as LIBSVM files, lists in Parquet files and tables with times have them."""
    lists = np.empty(6, object)
    for number in range(6):
        lists[number] = np.arange(number % 3).astype(kind)
    days = np.arange("2024-01-01", "2024-01-07", dtype="datetime64[D]")
    return iter([Records(0, columns={"lists": lists, "day": days})])


def of_one(record):
    return {"n": tf.reduce_sum(record["lists"]), "day": record["day"]}, 0.0


@batched
def of_many(records, mode, metadata):
    assert isinstance(records["lists"], tf.RaggedTensor)
    sums = tf.reduce_sum(records["lists"], 1)
    return {"n": sums, "day": records["day"]}, tf.zeros_like(sums)


@pytest.mark.parametrize("feed", [mapped(of_one), of_many], ids=["a record", "batched"])
@pytest.mark.parametrize("mode", [Mode.TRAINING, Mode.EVALUATION])
@pytest.mark.parametrize("kind", ["int64", "datetime64[D]"])
def test_columns_of_lists_and_of_times_reach_the_feed(feed, mode, kind):
    runner = FeedRunner(feed, Metadata())
    minibatches = list(runner.minibatches(lists_and_times(kind), mode, 4, 3))
    assert [mb.num_records for mb in minibatches] == [4, 2]
    found = {
        int(day): int(total)
        for mb in minibatches
        for day, total in zip(mb.features["day"], mb.features["n"], strict=True)
    }
    first = int(np.datetime64("2024-01-01").astype(int))
    assert found == {first + number: [0, 0, 1][number % 3] for number in range(6)}


@pytest.mark.parametrize(
    ("function", "values", "why"),
    [
        (zeros, LINES, "split into different numbers of parts"),
        (by_python, LINES, "PyFunc has no vectorised form"),
    ],
    ids=["uneven", "python"],
)
def test_what_has_no_vectorised_form_runs_record_by_record_and_is_said_once(
    function, values, why, caplog
):
    runner = FeedRunner(mapped(function), Metadata())
    minibatches = run(None, values, runner=runner)
    run(None, values, runner=runner)

    assert tensors(minibatches) == as_tensorflow_does(function, values)
    (complaint,) = complaints(caplog)
    assert complaint.startswith("feed runs unvectorised in mode training")
    assert why in complaint


def test_a_vectorised_form_that_gives_something_else_is_not_used(caplog, monkeypatch):
    right = choice.compile_vectorised

    def wrong(noted, sample):
        function = right(noted, sample)

        def off_by_little(records):
            features, labels = function(records)
            return features, labels * 1.00001

        return off_by_little

    monkeypatch.setattr(choice, "compile_vectorised", wrong)
    minibatches = run(mapped(parse), EXAMPLES)

    assert tensors(minibatches) == as_tensorflow_does(parse, EXAMPLES)
    assert "vectorised, it gives something else: other values" in complaints(caplog)[0]


def wrong_above(limit, monkeypatch):
    """Have the vectorised form be wrong for records whose `x` begins above a limit."""
    right = choice.compile_vectorised

    def wrong(noted, sample):
        function = right(noted, sample)

        def off(records):
            features, labels = function(records)
            return features, tf.where(features["x"][:, 0] > limit, labels + 1e-3, labels)

        return off

    monkeypatch.setattr(choice, "compile_vectorised", wrong)


@pytest.mark.parametrize("steps", [(), (lambda d: d.batch(16).map(lambda f, y: (f, y)),)],
                         ids=["records", "minibatches"])  # fmt: skip
def test_the_first_thousand_records_go_both_ways_also_if_a_job_starts_with_fewer(
    steps, caplog, monkeypatch
):
    wrong_above(36, monkeypatch)
    feed = mapped(parse, *steps)
    runner = FeedRunner(feed, Metadata())
    run(None, EXAMPLES[:16], runner=runner)  # as when a model is built
    assert complaints(caplog) == []

    minibatches = run(None, EXAMPLES, runner=runner)

    assert tensors(minibatches) == as_tensorflow_does(parse, EXAMPLES)
    (complaint,) = complaints(caplog)
    assert re.search(r"something else for records 1\d\d to 1\d\d of a task: other", complaint)


def test_whoever_looks_at_the_job_is_told_each_way_once_and_of_a_change(monkeypatch):
    wrong_above(24, monkeypatch)
    told = []
    runner = FeedRunner(mapped(parse), Metadata(), tell=told.append)
    for size in (16, 24):  # a way each: they read alike
        run(None, EXAMPLES[:size], size=size, runner=runner)
    for _ in range(2):
        run(None, EXAMPLES, runner=runner)

    assert [way.is_slow for way in told] == [False, True]
    assert told[0].text.startswith("feed runs vectorised in mode training; ")
    assert told[1].text.startswith("feed runs unvectorised in mode training: vectorised, it gives")


def test_one_column_of_large_numbers_says_nothing_of_another():
    stamps = np.linspace(1.6e9, 1.7e9, 40)
    right = np.stack([stamps, np.arange(40.0)], 1).astype(np.float32)
    wrong = right + np.array([0, 300], np.float32)
    rounded = right + np.array([128, 0], np.float32)  # one unit in the last place of the stamps

    def compared(other):
        return proof.same(tf.constant(right), tf.constant(other))

    assert compared(right) == compared(rounded) == ""
    assert "other values" in compared(wrong)
    assert "other values" in proof.same(tf.constant([1.0, 2.0]), tf.constant([1.0, 2.0001]))
    assert "other values" in proof.same(tf.constant([1j]), tf.constant([1.1j]))


def test_python_in_a_feed_runs_when_it_is_traced_and_eagerly_for_each_record():
    seen = []

    def counted(record):
        seen.append(record)
        return parse(record)

    run(mapped(counted), EXAMPLES)
    assert len(seen) < len(EXAMPLES)
    seen.clear()
    run(None, EXAMPLES, runner=FeedRunner(mapped(counted), Metadata(), run_eagerly=True))
    assert len(seen) >= len(EXAMPLES)


def test_a_helper_under_tf_function_is_no_random_number(caplog):
    @tf.function
    def helper(record):
        tf.debugging.assert_greater(tf.strings.length(record), 0)  # makes it stateful
        return parse(record)

    assert tensors(run(mapped(helper), EXAMPLES)) == as_tensorflow_does(parse, EXAMPLES)
    assert not any("random" in complaint for complaint in complaints(caplog))


def test_a_draw_in_a_helper_under_tf_function_is_found(caplog):
    run(mapped(tf.function(noisy)), EXAMPLES)
    assert "it draws random numbers" in complaints(caplog)[0]


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    "steps",
    [
        [lambda d: d.shuffle(8)],
        [lambda d: d.shuffle(8), lambda d: d.filter(lambda f, y: True)],  # the plain pipeline
    ],
)
def test_shuffle_does_nothing_where_the_order_of_records_is_to_be_kept(run_eagerly, steps):
    found = []
    for feed in (mapped(parse), mapped(parse, *steps)):
        runner = FeedRunner(feed, Metadata(keeps_order=True), run_eagerly=run_eagerly)
        found.append(tensors(run(feed, EXAMPLES, runner=runner)))
    assert found[0] == found[1]


def test_shuffle_is_a_permutation_of_the_task_drawn_from_its_seed():
    feed = mapped(parse, lambda d: d.shuffle(8))
    ones, again, others = (run(feed, EXAMPLES, seed=seed) for seed in (3, 3, 4))

    def order(minibatches):
        return [x[0] for t in tensors(minibatches) for x in t[0]]

    assert order(ones) == order(again)
    assert order(ones) != order(others)
    assert sorted(order(ones)) == list(range(50))
    assert order(ones) != list(range(50))
    assert order(run(mapped(parse), EXAMPLES, seed=3)) == list(range(50))


def test_minibatches_do_not_depend_on_how_the_reader_cuts_its_chunks():
    feed = mapped(parse, lambda d: d.shuffle(8))
    runner = FeedRunner(feed, Metadata())
    results = [
        tensors(runner.minibatches(chunks(EXAMPLES, size), Mode.TRAINING, 16, 3))
        for size in (1, 16, 50)
    ]
    assert results[0] == results[1] == results[2]


def test_draws_in_a_map_repeat_for_a_task_and_differ_between_tasks(caplog):
    feed = mapped(noisy, lambda d: d.shuffle(8))
    ones, again, others = (run(feed, EXAMPLES, seed=seed) for seed in (3, 3, 4))

    assert tensors(ones) == tensors(again)
    assert tensors(ones) != tensors(others)
    assert "it draws random numbers" in complaints(caplog)[0]


def test_other_methods_run_as_the_user_wrote_them_and_repeat(caplog):
    feed = mapped(
        parse, lambda d: d.shuffle(20), lambda d: d.filter(lambda f, y: f["x"][0] % 2 == 0)
    )
    ones, again, others = (run(feed, EXAMPLES, seed=seed) for seed in (3, 3, 4))

    assert [mb.num_records for mb in ones] == [16, 9]
    assert sorted(x[0] for t in tensors(ones) for x in t[0]) == list(range(0, 50, 2))
    assert tensors(ones) == tensors(again)
    assert tensors(ones) != tensors(others)
    assert "it uses dataset.filter" in complaints(caplog)[0]


def test_a_pipeline_that_is_not_vectorised_depends_on_its_task_alone():
    def feed(dataset, mode, metadata):
        return dataset.map(parse).shuffle(9).filter(lambda f, y: f["x"][0] % 2 == 0)

    first = run(feed, EXAMPLES)
    tf.random.set_seed(99)  # whatever ran before in a worker
    assert tensors(run(feed, EXAMPLES)) == tensors(first)


@pytest.mark.parametrize("looks", [False, True], ids=["table", "looks"])
def test_a_feed_that_makes_a_table_or_looks_at_a_tensor_runs_all_the_same(looks):
    def feed(dataset, mode, metadata):
        keys, values = tf.constant([0, 2], tf.int64), tf.constant([10, 12], tf.int64)
        if looks:
            assert keys.numpy().tolist() == [0, 2]
        init = tf.lookup.KeyValueTensorInitializer(keys, values)
        table = tf.lookup.StaticHashTable(init, -1)
        dataset = dataset.map(parse).filter(lambda f, y: f["x"][0] < 3)
        return dataset.map(lambda f, y: (table.lookup(f["x"][0]), y))

    runner = FeedRunner(feed, Metadata())
    for _ in range(2):
        (minibatch,) = run(None, EXAMPLES, runner=runner)
        assert minibatch.features.numpy().tolist() == [10, -1, 12]


@pytest.mark.parametrize("mode", [Mode.TRAINING, Mode.PREDICTION])
def test_python_conditions_on_tensors_work_in_a_plain_pipeline(mode):
    def is_kept(features, label):
        if label > 3.0:  # noqa: SIM103 (a statement is what AutoGraph is tested with)
            return True
        return False

    minibatches = run(mapped(branch, lambda d: d.filter(is_kept)), EXAMPLES, mode)

    features = [mb.features[0] if mode is Mode.PREDICTION else mb.features for mb in minibatches]
    assert [x[0] for part in features for x in part.numpy().tolist()] == [
        10 * i for i in range(22, 50)
    ]


def test_a_filter_that_draws_leaves_out_the_same_records_of_a_task_each_time(caplog):
    def feed(dataset, mode, metadata):
        dataset = dataset.map(noisy, num_parallel_calls=4)
        return dataset.filter(lambda f, y: tf.random.uniform([]) < 0.5).shuffle(50)

    ones, again, others = (run(feed, EXAMPLES, seed=seed) for seed in (3, 3, 4))
    assert tensors(ones) == tensors(again)
    assert tensors(ones) != tensors(others)
    assert 0 < sum(mb.num_records for mb in ones) < 50
    assert "it uses dataset.filter" in complaints(caplog)[0]


def test_prefetch_cache_and_options_leave_it_vectorised(caplog):
    options = tf.data.Options()
    feed = mapped(
        parse, lambda d: d.cache(), lambda d: d.with_options(options), lambda d: d.prefetch(2)
    )
    assert tensors(run(feed, EXAMPLES)) == as_tensorflow_does(parse, EXAMPLES)
    assert complaints(caplog) == []


def test_a_feed_that_batches_and_parses_whole_minibatches_is_taken_as_it_is(caplog):
    def feed(dataset, mode, metadata):
        def fold(records):
            parsed = tf.io.parse_example(records, INTS)
            return {"x": parsed["x"]}, parsed["y"]

        return dataset.batch(16).map(fold).prefetch(1)

    assert tensors(run(feed, EXAMPLES)) == as_tensorflow_does(parse, EXAMPLES)
    assert complaints(caplog) == []


def test_the_dataset_is_one_of_tensorflows():
    calls = SimpleQueue()  # a dict or a list would be put back after the trial

    def feed(dataset, mode, metadata):
        seen = {"is": isinstance(dataset, tf.data.Dataset), "spec": dataset.element_spec}
        dataset = dataset.map(parse)
        seen |= {"mapped": dataset.element_spec[1]}
        calls.put(seen | {"mode": mode, "columns": metadata.column_names})
        return dataset

    runner = FeedRunner(feed, Metadata(column_names=("a", "b")))
    run(None, EXAMPLES, Mode.EVALUATION, runner=runner)

    assert calls.get_nowait() == {
        "is": True,
        "spec": tf.TensorSpec([], tf.string),
        "mode": "evaluation",
        "columns": ("a", "b"),
        "mapped": tf.TensorSpec([], tf.float32),
    }


def test_columns_come_as_a_dict_of_tensors():
    columns = {
        "a": np.arange(40),
        "name": np.array([f"n{i}" for i in range(40)], object),
    }

    def feed(dataset, mode, metadata):
        return dataset.map(lambda r: ({"a": r["a"] + 1, "name": r["name"]}, r["a"])).shuffle(9)

    runner = FeedRunner(feed, Metadata())
    minibatches = list(
        runner.minibatches(iter([Records(0, columns=columns)]), Mode.TRAINING, 16, 1)
    )
    pairs = [p for t in tensors(minibatches) for p in zip(*t, strict=True)]
    assert sorted(p[2] for p in pairs) == list(range(40))
    assert all(a == label + 1 and name == f"n{label}".encode() for a, name, label in pairs)


@pytest.mark.parametrize(
    ("values", "said"),
    [([1, 2, None], "record 7: column 'a' is None"), ([1, "x"], "column 'a' is no tensor: .*")],
)
def test_a_column_that_is_no_tensor_is_named(values, said):
    runner = FeedRunner(mapped(lambda record: (record["a"], 0.0)), Metadata())
    chunks = iter([Records(5, columns={"a": np.array(values, object)})])
    with pytest.raises(DataError, match=f"^{said}"):
        list(runner.minibatches(chunks, Mode.TRAINING, 16, 1))


def test_in_prediction_all_of_an_element_is_features():
    minibatches = run(mapped(parse_without_label), EXAMPLES, Mode.PREDICTION)
    assert minibatches[0].labels is None
    assert minibatches[0].features["x"].shape == (16, 2)


@pytest.mark.parametrize(
    "feed",
    [
        mapped(parse),
        mapped(parse, lambda d: d.shuffle(16)),
        mapped(branch),
        mapped(noisy),
        mapped(parse, lambda d: d.filter(lambda f, y: True)),
    ],
    ids=["vectorised", "shuffled", "branch", "draws", "filter"],
)
def test_a_record_that_does_not_parse_is_named_by_its_number(feed):
    runner = FeedRunner(feed, Metadata())
    run(None, EXAMPLES, runner=runner)
    torn = [*EXAMPLES[:37], EXAMPLES[37][:-5], *EXAMPLES[38:]]

    with pytest.raises(DataError, match=r"record 137 does not parse in feed: .*parse"):
        run(None, torn, runner=runner)


def test_a_job_that_starts_with_a_torn_record_names_it():
    with pytest.raises(DataError, match="record 100 does not parse in feed"):
        run(mapped(parse), [b"garbage", *EXAMPLES])


def test_records_of_different_shapes_are_said_to_be():
    lengths = [bytes(2 + i % 2) for i in range(20)]
    with pytest.raises(ModelError, match="do not fit into one minibatch"):
        run(mapped(raw), lengths)


def returns_nothing(dataset, mode, metadata):
    dataset.map(parse)


def raises(dataset, mode, metadata):
    return dataset.map(lambda r: r["nothing"])


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        (returns_nothing, "must return the dataset .*found NoneType"),
        (raises, "raised .* in mode training"),
        (mapped(parse_without_label), r"\(features, labels\).*found \{'x': int64\[2\]\}"),
        (mapped(lambda r: (r, r, r)), r"found \(string\[\], string\[\], string\[\]\)"),
        (mapped(parse, lambda d: d.batch(5)), "minibatches of 5, .*--minibatch_size is 16"),
        (mapped(parse, lambda d: d.batch(16, drop_remainder=True)), "drop_remainder=True"),
        (mapped(parse, lambda d: d.repeat()), r"calls dataset.repeat\(\).*--num_epochs"),
    ],
)
def test_a_feed_that_cannot_be_used_is_told_what_to_change(feed, says):
    with pytest.raises(ModelError, match=says):
        run(feed, EXAMPLES)


def test_no_records_give_no_minibatches():
    assert run(mapped(parse), []) == []


@pytest.fixture(autouse=True)
def _log_warnings(caplog):
    caplog.set_level(logging.WARNING, "elasticdl")
