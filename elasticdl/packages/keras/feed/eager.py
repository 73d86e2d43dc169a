"""`--run_eagerly`: the functions of `feed` are called in Python, on one record at a time."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NoReturn

import numpy as np
import tensorflow as tf

from elasticdl.data.base import Records
from elasticdl.errors import DataError, ModelError
from elasticdl.job import Mode
from elasticdl.packages.keras.feed.compile import as_element
from elasticdl.packages.keras.feed.dataset import (
    Drawing,
    Noted,
    NotedDataset,
    say_unshuffled,
    unpacked,
)
from elasticdl.packages.keras.feed.records import RecordBatch, cut
from elasticdl.packages.keras.feed.user import UserFeed
from elasticdl.packages.keras.feed.ways import ChosenWay, Parsed, mix
from elasticdl.packages.keras.types import Nested

_NEEDS_PIPELINE = (
    "bucket_by_sequence_length",
    "ignore_errors",
    "interleave",
    "padded_batch",
    "ragged_batch",
    "rebatch",
    "unbatch",
)


class StepKind(Enum):
    """The kinds of steps of a dataset."""

    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class DatasetStep:
    """One method of the dataset: the user's function, or the buffer size of a shuffle."""

    kind: StepKind
    function: Callable[..., Nested] = tf.identity
    buffer_size: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of `feed`: on each example, and after `batch` on each minibatch."""

    examples: tuple[DatasetStep, ...] = ()
    minibatches: tuple[DatasetStep, ...] = ()

    @property
    def keeps_records(self) -> bool:
        """Whether one example is made of each record."""
        return all(step.kind in (StepKind.MAP, StepKind.SHUFFLE) for step in self.examples)

    @property
    def shuffles(self) -> bool:
        """Whether the order of the examples is drawn."""
        return any(step.kind is StepKind.SHUFFLE for step in self.examples)


class EagerDataset(NotedDataset):
    """Notes maps, filters, shuffles and one `batch`; `plain` stays the records as they were read.

    Attributes:
        steps: The steps that were noted, in order.
    """

    def __init__(
        self,
        plain: tf.data.Dataset,
        drawing: Drawing,
        batch_size: int | None = None,
        steps: Steps | None = None,
    ) -> None:
        super().__init__(plain, drawing, Noted(), batch_size)
        self.steps = steps or Steps()

    def map(self, map_func: Callable[..., Nested], *args: object, **kwargs: object) -> EagerDataset:
        """Note a function of examples, or of minibatches after `batch`."""
        return self._noting(DatasetStep(StepKind.MAP, map_func))

    def filter(self, predicate: Callable[..., tf.Tensor], name: str | None = None) -> EagerDataset:
        """Note which examples, or after `batch` which minibatches, are left out."""
        return self._noting(DatasetStep(StepKind.FILTER, predicate))

    def flat_map(
        self, map_func: Callable[..., tf.data.Dataset], name: str | None = None
    ) -> EagerDataset:
        """Note a function that makes any number of examples of one."""
        self._of_one_record("flat_map", map_func)
        return self._noting(DatasetStep(StepKind.FLAT_MAP, map_func))

    def shuffle(
        self, buffer_size: int | tf.Tensor, *args: object, **kwargs: object
    ) -> EagerDataset:
        """Note a shuffle of the examples of a task."""
        if self.batch_size is not None:
            raise _refused("shuffle after batch")
        if self._drawing.in_order:
            say_unshuffled()
            return self
        return self._noting(DatasetStep(StepKind.SHUFFLE, buffer_size=buffer_size))

    def batch(
        self, batch_size: int, drop_remainder: bool = False, *args: object, **kwargs: object
    ) -> EagerDataset:
        """Note that `feed` makes minibatches itself."""
        self._check_batch("batch", drop_remainder)
        return EagerDataset(self.plain, self._drawing, int(batch_size), self.steps)

    def with_options(self, options: tf.data.Options, name: str | None = None) -> EagerDataset:
        """Do nothing: there is no pipeline."""
        return self

    def _noting(self, step: DatasetStep) -> EagerDataset:
        steps = self.steps
        if self.batch_size is None:
            steps = replace(steps, examples=(*steps.examples, step))
        else:
            steps = replace(steps, minibatches=(*steps.minibatches, step))
        return EagerDataset(self.plain, self._drawing, self.batch_size, steps)


def _refused(what: str) -> ModelError:
    return ModelError(
        f"feed uses {what}: with --run_eagerly it may map, filter, flat_map, shuffle and batch; "
        "leave the flag out, or that method while you look for the fault"
    )


def _refusing(name: str) -> Callable[..., NoReturn]:
    def method(self: EagerDataset, *args: object, **kwargs: object) -> NoReturn:
        raise _refused(f"dataset.{name}")

    method.__name__ = name
    method.__doc__ = f"Refuse `{name}`, which needs a pipeline."
    return method


# Functions run in Python here, without the pipeline that these methods need.
for _name in _NEEDS_PIPELINE:
    setattr(EagerDataset, _name, _refusing(_name))


Example = tuple[int, Nested]
"""What was made of a record, behind the record's number."""


class Eager(ChosenWay):
    """Runs the functions of `feed` on tensors that have values: `print` and `.numpy()` work."""

    def __init__(self, user: UserFeed, sample: RecordBatch) -> None:
        """Call the user's function, and its maps on a few records.

        Raises:
            ModelError: `feed` does more than can be done without a pipeline, or leaves out all
                records of the sample.
        """
        dataset = user(sample, replace(user.drawing(), numbered=False, eager=EagerDataset))
        assert isinstance(dataset, EagerDataset)
        self._steps = dataset.steps
        self.user = user  # which `_examples` names
        first = next(self._minibatches(self._examples(iter([sample]), None), 1), None)
        if first is None:
            raise ModelError(
                f"{user.name} leaves out the first {len(sample)} records, in mode {user.mode}: "
                "with --run_eagerly what it gives is learnt from these; leave the flag out, or "
                "try other records"
            )
        parsed, numbers = first
        drawing = user.drawing()
        if drawing.numbered:
            parsed = (tf.constant(numbers, tf.int64), parsed)
        # A dataset of the parsed example has the structure that `UserFeed` looks at.
        plain = tf.data.Dataset.from_tensor_slices(parsed)
        super().__init__(user, user.structure(NotedDataset(plain, drawing)))

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[Parsed]:
        """See `ChosenWay.run`. The order is that of the job without --run_eagerly."""
        # Functions without a seed of their own draw by TensorFlow's global seed, as in the plain
        # way.
        tf.random.set_seed(mix(seed, 0))
        is_prediction = self.user.mode == Mode.PREDICTION
        is_shuffled = self._steps.shuffles and not is_prediction
        if self._steps.keeps_records:
            batches = cut(records, size, seed if is_shuffled else None)
            minibatches: Iterator[tuple[Nested, Sequence[int]]] = itertools.chain.from_iterable(
                self._minibatches(self._examples(iter([batch]), None), size) for batch in batches
            )
        else:
            # A filter or flat_map changes the number of examples. So minibatches are cut after it,
            # as the pipeline of TensorFlow does.
            examples = self._examples(cut(records, size, None), seed if is_shuffled else None)
            minibatches = self._minibatches(examples, size)
        for parsed, numbers in minibatches:
            yield parsed, np.array(numbers, np.int64) if is_prediction else None

    def _examples(self, batches: Iterator[RecordBatch], seed: int | None) -> Iterator[Example]:
        """Yield what becomes of records; in their own order, if there is no seed."""
        examples: Iterator[Example] = itertools.chain.from_iterable(map(_records, batches))
        for step in self._steps.examples:
            if step.kind is not StepKind.SHUFFLE:
                examples = self._stepped(examples, step)
            elif seed is not None:
                examples = _shuffled(examples, step.buffer_size, mix(seed, 0))
        return examples

    def _stepped(self, examples: Iterator[Example], step: DatasetStep) -> Iterator[Example]:
        for number, element in examples:
            made: tf.Tensor | tf.data.Dataset = self._called(step.function, element, number)
            match step.kind:
                case StepKind.FILTER:
                    if made:
                        yield number, element
                case StepKind.FLAT_MAP:
                    yield from ((number, one) for one in made)
                case _:
                    yield number, as_element(made)

    def _called(self, function: Callable[..., Nested], element: Nested, number: int) -> Nested:
        try:
            with _traced_inside():
                return unpacked(function, element)
        except Exception as error:
            raise DataError(
                f"record {number} does not parse in {self.user.name}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _minibatches(
        self, examples: Iterator[Example], size: int
    ) -> Iterator[tuple[Nested, Sequence[int]]]:
        """Yield minibatches, and for each row the number of its record."""
        while batch := list(itertools.islice(examples, size)):
            numbers, elements = zip(*batch, strict=True)
            minibatches = iter([(numbers[0], _stack(elements))])
            for step in self._steps.minibatches:
                minibatches = self._stepped(minibatches, step)
            for _, minibatch in minibatches:
                yield minibatch, numbers


@contextlib.contextmanager
def _traced_inside() -> Iterator[None]:
    """Let the dataset that a `flat_map` makes trace its own maps, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run_functions")
        yield


def _records(batch: RecordBatch) -> Iterator[Example]:
    source = tf.data.Dataset.from_tensor_slices(batch.tensors())
    return zip(batch.numbers.tolist(), source, strict=True)


def _shuffled(examples: Iterator[Example], buffer_size: int, seed: int) -> Iterator[Example]:
    """Yield them in the order in which the plain pipeline would (`feed/ways.py`)."""
    known = list(examples)
    tf.random.set_seed(seed)
    order = tf.data.Dataset.range(len(known)).shuffle(
        buffer_size, seed=seed, reshuffle_each_iteration=False
    )
    for place in list(order.as_numpy_iterator()):
        yield known[place]


def _stack(elements: Sequence[Nested]) -> Nested:
    """Make one minibatch of records, as `batch` does."""

    def stack(*parts: tf.Tensor) -> tf.Tensor:
        if isinstance(parts[0], tf.SparseTensor):
            return tf.sparse.concat(0, [tf.sparse.expand_dims(part, 0) for part in parts])
        if isinstance(parts[0], tf.RaggedTensor):
            return tf.ragged.stack(parts)
        return tf.stack(parts)

    return tf.nest.map_structure(stack, *elements)
