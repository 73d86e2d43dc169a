"""Makes minibatches from the output of a user's `feed` for the records of a task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from elasticdl.backends.base import Int64, Minibatch
from elasticdl.data.base import Metadata, Records
from elasticdl.data.strings import Array, Column, Strings, concatenate
from elasticdl.errors import DataError, ElasticdlError, ModelError, place_of
from elasticdl.job import Mode
from elasticdl.model_spec import is_batched
from elasticdl.packages.torch.structures import Nested, as_tensor, describe, leaves, map_leaves

UserFeed = Callable[["TaskRecords", Mode, Metadata], object]
"""`feed` of the model file; a batched one is given the records themselves."""


@dataclass(frozen=True, slots=True)
class TorchMinibatch(Minibatch):
    """A minibatch whose numbers are tensors.

    Attributes:
        mode: The mode it is for.
        seed: The seed of the random numbers of a step on it, for dropout and the like.
        lookups: The lookup of each call of an embedding layer, (table, ids); `ids` fills it.
        counted: The records of the ids and the amounts they count, for each lookup of statistics;
            `ids` fills it.
    """

    mode: Mode = field(kw_only=True)
    seed: int = field(default=0, kw_only=True)
    lookups: list[tuple[int, torch.Tensor]] = field(default_factory=list, kw_only=True)
    counted: list[tuple[torch.Tensor | None, torch.Tensor | None]] = field(
        default_factory=list, kw_only=True
    )

    @classmethod
    def of(cls, minibatch: Minibatch) -> TorchMinibatch:
        """Return a minibatch of this backend with its own type."""
        assert isinstance(minibatch, cls), "a minibatch of another backend"
        return minibatch


class TaskRecords(Dataset):  # type: ignore[misc]  # torch has no types here
    """The records of a task as `feed` gets them: a `torch.utils.data.Dataset` of `len` records.

    A record is `bytes`, or a dict of its columns where the source is a table.

    Attributes:
        values: All records; empty where the source is a table.
        columns: A table, name -> array whose first axis is the record; text may be `Strings`.
    """

    def __init__(self, values: list[bytes], columns: dict[str, Column]) -> None:
        self.values = values
        self.columns = columns

    @classmethod
    def read(cls, records: Iterator[Records]) -> tuple[TaskRecords, Int64]:
        """Take all records; return them and the number of each in its source."""
        chunks = [chunk for chunk in records if len(chunk)]
        values = [value for chunk in chunks for value in chunk.values]
        names = list(chunks[0].columns) if chunks else []
        columns = {name: concatenate([c.columns[name] for c in chunks]) for name in names}
        numbers = [np.zeros(0, np.int64), *(chunk.numbers for chunk in chunks)]
        return cls(values, columns), np.concatenate(numbers)

    def __len__(self) -> int:
        if self.columns:
            return len(next(iter(self.columns.values())))
        return len(self.values)

    def __getitem__(self, index: int) -> object:
        if self.columns:
            return {name: column[index] for name, column in self.columns.items()}
        return self.values[index]

    def part(self, indices: slice) -> TaskRecords:
        """Return some of the records."""
        columns = {name: column[indices] for name, column in self.columns.items()}
        return TaskRecords(self.values[indices], columns)


class Feed:
    """Runs `feed(dataset, mode, metadata)` over the records of one task after the other."""

    def __init__(self, feed: UserFeed, metadata: Metadata) -> None:
        self._feed = _of_columns(feed) if is_batched(feed) else feed
        self._metadata = metadata

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Yield the minibatches of a task; see `Predictor.minibatches`."""
        dataset, numbers = TaskRecords.read(records)
        if not len(dataset):
            return
        examples = self._examples(self._call(dataset, mode, numbers), mode)
        if mode is Mode.PREDICTION and examples.count not in (None, len(dataset)):
            raise _not_one_each(examples.count, len(dataset))
        made = 0
        drawn = seed if self._metadata.shuffles(mode) else None
        for place, (part, indices) in enumerate(_parts(examples, minibatch_size, drawn)):
            features, labels = _split(part, mode)
            size = len(indices)
            made += size
            if mode is Mode.PREDICTION and made > len(dataset):
                raise _not_one_each(f"{made} or more", len(dataset))
            records_of = numbers[indices] if mode is Mode.PREDICTION else None
            # The factor is 2**64 divided by the golden ratio: it spreads the seeds of neighbours.
            own = (seed + place * 0x9E3779B97F4A7C15) % (1 << 63)
            yield TorchMinibatch(
                features, labels, size, record_numbers=records_of, mode=mode, seed=own
            )
        if mode is Mode.PREDICTION and made != len(dataset):
            raise _not_one_each(made, len(dataset))

    def _call(self, dataset: TaskRecords, mode: Mode, numbers: Int64) -> object:
        try:
            return self._feed(dataset, mode, self._metadata.of(mode))
        except ElasticdlError:
            raise
        except Exception as error:
            number, error = self._culprit(dataset, mode, numbers.tolist(), error)
            # The user's code may read a file, and the file may be there at the next try.
            raise DataError(_failed(number, error), number, is_certain=False) from error

    def _culprit(
        self, dataset: TaskRecords, mode: Mode, numbers: list[int], error: Exception
    ) -> tuple[int, Exception]:
        """Find the record with which `feed` fails on its own."""
        # Each record is tried alone, so that the error names the wrong one.
        for index, number in enumerate(numbers):
            try:
                self._feed(dataset.part(slice(index, index + 1)), mode, self._metadata.of(mode))
            except Exception as own:
                return number, own
        return numbers[0], error

    def _examples(self, fed: object, mode: Mode) -> _Examples:
        if isinstance(fed, DataLoader):
            raise ModelError(
                "feed() returns a DataLoader; return its dataset: elasticdl makes the minibatches, "
                "of --minibatch_size examples, and shuffles those of training"
            )
        if type(fed) is TensorDataset:
            # Its tensors are cut as a whole, which costs less than one example at a time.
            whole: TensorDataset = fed
            fed = tuple(whole.tensors) if len(whole.tensors) > 1 else whole.tensors[0]
        if isinstance(fed, tuple | Mapping | torch.Tensor | np.ndarray):
            return _Arrays(fed, mode)
        if isinstance(fed, IterableDataset) or hasattr(fed, "__next__"):
            stream: IterableDataset = fed
            return _Stream(stream)
        if hasattr(fed, "__getitem__") and hasattr(fed, "__len__"):
            return _MapStyle(fed)
        raise ModelError(
            f"feed() in mode {mode}: expected (features, labels) of all records, a "
            "torch.utils.data.Dataset or a generator of examples, found "
            f"{describe(fed)}"
        )


def _of_columns(feed: Callable[..., object]) -> UserFeed:
    """Return a feed that is given a dataset, of one that `elasticdl.batched` has marked."""

    def fed(dataset: TaskRecords, mode: Mode, metadata: Metadata) -> object:
        return feed(dataset.columns or dataset.values, mode, metadata)

    return fed


class _Examples:
    """What `feed` returned. `count`: how many examples, where that is known before."""

    count: int | None = None

    def take(self, indices: Int64 | slice) -> Nested:
        """Return a minibatch of some examples."""
        raise NotImplementedError


class _Arrays(_Examples):
    """All examples in one structure of tensors or arrays, whose first axis is the example."""

    def __init__(self, structure: Nested, mode: Mode) -> None:
        if mode is not Mode.PREDICTION:
            _split(structure, mode)
        self._structure = map_leaves(_dense, structure)
        sizes: set[int] = set()
        for leaf in leaves(self._structure):
            # A table of pandas has a shape, too, and is cut by its labels.
            shape = leaf.shape if isinstance(leaf, torch.Tensor | np.ndarray | Strings) else ()
            if not shape:
                raise ModelError(
                    f"feed() in mode {mode} gave {describe(structure)}: expected tensors or "
                    "arrays, alone or in dicts and tuples, whose first axis is the example"
                )
            sizes.add(int(shape[0]))
        if len(sizes) != 1:
            raise ModelError(
                f"feed() in mode {mode} gave {describe(structure)}: expected the same number of "
                f"examples as the first axis of each, found {sorted(sizes)}"
            )
        self.count = sizes.pop()

    def take(self, indices: Int64 | slice) -> Nested:
        chosen: slice | torch.Tensor = (
            indices if isinstance(indices, slice) else torch.from_numpy(indices)
        )

        def taken(leaf: torch.Tensor) -> torch.Tensor:
            return leaf[chosen] if isinstance(leaf, torch.Tensor) else leaf[indices]

        return map_leaves(taken, self._structure)


class _MapStyle(_Examples):
    """A dataset that gives an example for each index."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._collate = getattr(dataset, "collate_fn", None) or default_collate
        self.count = len(dataset)

    def take(self, indices: Int64 | slice) -> Nested:
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(self.count or 0))
        # A DataLoader of PyTorch asks for a whole batch by this method, if a dataset has it.
        fetch = getattr(self._dataset, "__getitems__", None)
        if fetch is not None:
            with self._telling(f"{len(indices)} examples"):
                found = fetch(indices.tolist())
        else:
            found = [self._example(index) for index in indices.tolist()]
        return _collated(self._collate, found)

    def _example(self, index: int) -> object:
        with self._telling(f"example {index}"):
            return self._dataset[index]

    @contextmanager
    def _telling(self, which: str) -> Iterator[None]:
        try:
            yield
        except ElasticdlError:
            raise
        except Exception as error:
            what = type(self._dataset).__name__
            raise DataError(
                f"{which} of the {what} that feed() returns for a task: "
                f"{type(error).__name__}: {error} ({place_of(error)})"
            ) from error


class _Stream(_Examples):
    """Examples one after the other, in the order in which they are to be used."""

    def __init__(self, examples: Iterable[object]) -> None:
        self._collate = getattr(examples, "collate_fn", None) or default_collate
        self._iterator = iter(examples)
        self._seen = 0

    def next(self, size: int) -> tuple[Nested, int]:
        """Return the next minibatch and its size, which is 0 at the end."""
        try:
            part = list(itertools.islice(self._iterator, size))
        except ElasticdlError:
            raise
        except Exception as error:
            raise DataError(
                f"feed() failed after {self._seen} examples of a task: {type(error).__name__}: "
                f"{error} ({place_of(error)})"
            ) from error
        self._seen += len(part)
        return (_collated(self._collate, part) if part else None), len(part)


def _parts(
    examples: _Examples, size: int, seed: int | None
) -> Iterator[tuple[Nested, NDArray[np.int64]]]:
    """Yield minibatches and the numbers of their examples; with a seed they are shuffled."""
    if isinstance(examples, _Stream):
        start = 0
        while True:
            part, count = examples.next(size)
            if not count:
                return
            yield part, np.arange(start, start + count)
            start += count
    count = examples.count or 0
    order = np.arange(count)
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    for start in range(0, count, size):
        indices = order[start : start + size]
        # A slice of a tensor is a view; an array of indices makes a copy.
        in_order = slice(start, start + len(indices))
        yield examples.take(in_order if seed is None else indices), indices


def _collated(collate: Callable[[Sequence[object]], Nested], examples: Sequence[object]) -> Nested:
    try:
        made = collate(examples)
    except Exception as error:
        raise ModelError(
            "the examples that feed() gives cannot be put into one minibatch: "
            f"{type(error).__name__}: {error}; give tensors of equal shapes, or a dataset with a "
            "method collate_fn(examples)"
        ) from error
    made = tuple(made) if isinstance(made, list) else made  # as default_collate leaves a tuple
    return map_leaves(_dense, made)


def _dense(value: torch.Tensor | np.generic | Array) -> torch.Tensor:
    """Return numbers as a tensor that can be cut by examples.

    Raises:
        ModelError: It is a sparse, nested or quantized one.
    """
    found = as_tensor(value)
    if isinstance(found, torch.Tensor) and (
        found.layout is not torch.strided or found.is_nested or found.is_quantized
    ):
        raise ModelError(
            f"feed() gave a tensor of layout {found.layout} and type {found.dtype}; expected dense "
            "tensors: .to_dense(), or ids in an Embedding for what is sparse, and a padded tensor "
            "and its lengths for what is ragged"
        )
    return found


def _split(part: Nested, mode: Mode) -> tuple[Nested, Nested]:
    """Return features and labels; in prediction there are features alone."""
    if mode is Mode.PREDICTION:
        return part, None
    if isinstance(part, tuple) and len(part) == 2:
        return part[0], part[1]
    raise ModelError(
        f"feed() in mode {mode}: expected (features, labels), found {describe(part)}; sample "
        "weights go with the labels, in a dict, and into loss(labels, predictions)"
    )


def _failed(number: int, error: Exception) -> str:
    return f"feed() failed on record {number}: {type(error).__name__}: {error} ({place_of(error)})"


def _not_one_each(found: int | str | None, expected: int) -> ModelError:
    return ModelError(
        f"feed() in mode prediction gave {found} examples of {expected} records; expected one for "
        "each, in their order, so that predictions can be told apart"
    )
