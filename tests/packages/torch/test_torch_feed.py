"""What `feed` of a PyTorch model may return, and the minibatches that are made of it."""

import numpy as np
import pandas as pd
import pytest

from elasticdl import Mode, batched
from elasticdl.data.base import Metadata, Records
from elasticdl.errors import DataError, ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch.utils.data import (  # noqa: E402  # after the skip
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from elasticdl.packages.torch.feed import Feed  # noqa: E402  # as above

pytestmark = pytest.mark.torch


def minibatches(feed, data, mode=Mode.TRAINING, size=4, seed=7, **known):
    if isinstance(data, dict):
        records = [Records(100, columns=data)]
    else:
        half = len(data) // 2
        records = [Records(100, values=data[:half]), Records(100 + half, values=data[half:])]
    return list(Feed(feed, Metadata(**known)).minibatches(iter(records), mode, size, seed))


DATA = [str(n).encode() for n in range(10)]


def whole(dataset, mode, metadata):
    x = torch.tensor([float(v) for v in dataset.values])
    return x if mode == Mode.PREDICTION else (x, -x)


def arrays(dataset, mode, metadata):
    x = np.array([float(v) for v in dataset], np.float32)
    return x if mode == Mode.PREDICTION else (x, -x)


def of_another_machine(dataset, mode, metadata):
    x = np.array([float(v) for v in dataset], ">f4")
    return x if mode == Mode.PREDICTION else (x, -x)


class Examples(Dataset):
    def __init__(self, records, mode):
        self.records, self.mode = records, mode

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        x = np.float32(self.records[index])
        return x if self.mode == Mode.PREDICTION else (x, -x)


def map_style(dataset, mode, metadata):
    return Examples(dataset, mode)


def subset(dataset, mode, metadata):
    return Subset(Examples(dataset, mode), range(len(dataset)))


def tensor_dataset(dataset, mode, metadata):
    fed = whole(dataset, mode, metadata)
    return TensorDataset(*fed) if isinstance(fed, tuple) else TensorDataset(fed)


def generator(dataset, mode, metadata):
    for record in dataset:
        x = torch.tensor(float(record))
        yield x if mode == Mode.PREDICTION else (x, -x)


class Stream(IterableDataset):
    def __init__(self, records, mode):
        self.records, self.mode = records, mode

    def __iter__(self):
        return generator(self.records, self.mode, None)


def iterable(dataset, mode, metadata):
    return Stream(dataset, mode)


FEEDS = [whole, arrays, of_another_machine, map_style, subset, tensor_dataset, generator, iterable]


@pytest.mark.parametrize("feed", FEEDS)
def test_each_record_is_in_one_minibatch_of_the_size_asked_for(feed):
    made = minibatches(feed, DATA)

    assert [m.num_records for m in made] == [4, 4, 2]
    seen = torch.cat([m.features for m in made])
    assert seen.dtype == torch.float32
    assert sorted(seen.tolist()) == list(range(10))
    torch.testing.assert_close(torch.cat([m.labels for m in made]), -seen)


@pytest.mark.parametrize("feed", [whole, arrays, map_style, tensor_dataset])
def test_training_is_shuffled_by_the_seed_of_the_task(feed):
    orders = [
        torch.cat([m.features for m in minibatches(feed, DATA, seed=seed)]).tolist()
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("feed", FEEDS)
def test_records_whose_order_is_to_be_kept_are_not_shuffled(feed):
    made = minibatches(feed, DATA, keeps_order=True)
    assert torch.cat([m.features for m in made]).tolist() == list(range(10))


@pytest.mark.parametrize("feed", [generator, iterable])
def test_a_stream_of_examples_keeps_its_order(feed):
    made = minibatches(feed, DATA)
    assert torch.cat([m.features for m in made]).tolist() == list(range(10))


@pytest.mark.parametrize("feed", FEEDS)
def test_predictions_are_told_apart_by_the_number_of_their_record(feed):
    made = minibatches(feed, DATA, Mode.PREDICTION)

    assert torch.cat([m.features for m in made]).tolist() == list(range(10))
    assert np.concatenate([m.record_numbers for m in made]).tolist() == list(range(100, 110))
    assert all(m.labels is None for m in made)


def test_features_and_labels_may_be_dicts_and_tuples():
    def feed(dataset, mode, metadata):
        x = dataset.columns["x"]
        names = np.array(["n"] * len(x))
        return {"a": (x, x * 2), "names": names, "wave": x * 1j}, {"y": x, "weight": x * 0}

    made = minibatches(feed, {"x": np.arange(6)}, Mode.EVALUATION)

    assert made[1].features["a"][1].tolist() == [8, 10]
    assert made[1].features["names"].tolist() == ["n", "n"]
    assert made[1].features["wave"].tolist() == [4j, 5j]
    assert made[1].features["wave"].dtype == torch.complex128
    assert made[1].labels["y"].dtype == torch.int64


def test_a_record_of_a_table_is_a_dict():
    def feed(dataset, mode, metadata):
        assert dataset[2] == {"x": 2, "s": "c"}
        assert len(dataset) == 3
        return generator([row["x"] for row in dataset], mode, metadata)

    made = minibatches(feed, {"x": np.arange(3), "s": np.array(["a", "b", "c"])})
    assert made[0].features.tolist() == [0, 1, 2]


def test_a_dataset_may_collate_by_itself():
    class Bags(Examples):
        def __getitem__(self, index):
            return list(range(index)), index

        def collate_fn(self, examples):
            lengths = torch.tensor([len(bag) for bag, _ in examples])
            values = torch.tensor([v for bag, _ in examples for v in bag])
            return (values, lengths.cumsum(0) - lengths), torch.tensor([y for _, y in examples])

    made = minibatches(lambda d, m, _: Bags(d, m), DATA, Mode.EVALUATION)

    assert made[0].features[0].tolist() == [0, 0, 1, 0, 1, 2]
    assert made[0].features[1].tolist() == [0, 0, 1, 3]


def test_a_feed_may_give_fewer_examples_than_records_in_training():
    made = minibatches(lambda d, m, _: whole(d.part(slice(0, 5)), m, _), DATA)
    assert [m.num_records for m in made] == [4, 1]


WRONG = {
    "a loader": (
        lambda d, m, _: DataLoader(Examples(d, m)), Mode.TRAINING, "return its dataset: elasticdl",
    ),
    "features alone": (
        lambda d, m, _: torch.ones(10), Mode.TRAINING, r"\(features, labels\), found float",
    ),
    "weights": (
        lambda d, m, _: (torch.ones(10),) * 3, Mode.EVALUATION, "sample weights go with the labels",
    ),
    "lengths": (
        lambda d, m, _: (torch.ones(10), torch.ones(9)), Mode.TRAINING, r"found \[9, 10\]",
    ),
    "a list in a tuple": (
        lambda d, m, _: ([1.0] * 10, [2.0] * 10), Mode.TRAINING, r"gave \(list, list\): expected",
    ),
    "a table of pandas": (
        lambda d, m, _: (pd.DataFrame({"x": range(10)}), np.ones(10)), Mode.TRAINING,
        r"gave \(DataFrame, array of float64\[10\]\): expected tensors or arrays",
    ),
    "sparse": (
        lambda d, m, _: (torch.eye(10).to_sparse(), torch.ones(10)), Mode.TRAINING,
        "layout torch.sparse_coo .*to_dense",
    ),
    "nested": (
        lambda d, m, _: (
            torch.nested.nested_tensor(
                [torch.ones(1 + n) for n in range(10)], layout=torch.jagged
            ),
            torch.ones(10),
        ),
        Mode.TRAINING, "a padded tensor and its lengths",
    ),
    "a number": (lambda d, m, _: 5, Mode.TRAINING, "found int"),
    "too few to predict": (
        lambda d, m, _: torch.ones(9), Mode.PREDICTION, "9 examples of 10 records; expected one",
    ),
    "too few of a stream": (
        lambda d, m, _: iter([torch.ones(1)]), Mode.PREDICTION, "1 examples of 10 records",
    ),
    "too many of a stream": (
        lambda d, m, _: iter([torch.ones(1)] * 11), Mode.PREDICTION, "11 or more examples of 10",
    ),
    "shapes": (
        lambda d, m, _: iter([(torch.ones(n), 0) for n in range(4)]), Mode.TRAINING,
        "cannot be put into one minibatch: RuntimeError.*collate_fn",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_a_minibatch_is_refused(name):
    feed, mode, message = WRONG[name]
    with pytest.raises(ModelError, match=message):
        minibatches(feed, DATA, mode)


@pytest.mark.parametrize("feed", [map_style, subset, generator])
def test_an_example_that_fails_is_told(feed):
    data = [*DATA[:7], b"oops", *DATA[8:]]
    with pytest.raises(
        DataError, match=r"(example 7|4 examples of the Subset|after [47] examples).*oops"
    ):
        minibatches(feed, data, Mode.EVALUATION)


def test_records_that_are_not_consecutive_keep_their_numbers():
    def feed(dataset, mode, metadata):
        return torch.tensor([float(value) for value in dataset.values])

    order = np.array([7, 3, 11])

    def run(values):
        records = Records(values=values, order=order)
        return list(Feed(feed, Metadata()).minibatches(iter([records]), Mode.PREDICTION, 2, 0))

    assert [m.record_numbers.tolist() for m in run([b"7", b"3", b"11"])] == [[7, 3], [11]]
    with pytest.raises(DataError, match="failed on record 11") as caught:
        run([b"7", b"3", b"oops"])
    assert caught.value.record == 11


def test_a_batched_feed_is_given_all_records_or_columns():
    @batched
    def records(given, mode, metadata):
        assert isinstance(given, list)
        x = torch.tensor([float(record) for record in given])
        return x if mode == Mode.PREDICTION else (x, -x)

    @batched
    def columns(given, mode, metadata):
        return given["x"] if mode == Mode.PREDICTION else (given["x"], -given["x"])

    for feed, data in ((records, DATA), (columns, {"x": np.arange(10.0, dtype=np.float32)})):
        trained = torch.cat([m.features for m in minibatches(feed, data)])
        predicted = torch.cat([m.features for m in minibatches(feed, data, Mode.PREDICTION)])
        assert sorted(trained.tolist()) == predicted.tolist() == list(range(10))
