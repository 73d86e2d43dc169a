"""The ways to run a `feed`: plain, as TensorFlow runs it, and compiled, with a vectorised form."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.data.base import Records
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.keras.feed.faults import RUN_ERRORS, naming_the_record, reason
from elasticdl.packages.keras.feed.minibatch import (
    Structure,
    common_num_rows,
    describe,
    num_records,
)
from elasticdl.packages.keras.feed.proof import NUM_PROVED, same
from elasticdl.packages.keras.feed.records import RecordBatch, as_batch, cut
from elasticdl.packages.keras.feed.user import UserFeed
from elasticdl.packages.keras.types import Nested

# Minibatches are parsed together up to this many records or bytes: a call costs half a millisecond.
TOGETHER_RECORDS = 4096
TOGETHER_BYTES = 4 * 2**20
_HIGH_SEED = 2**31 - 1


Numbers = NDArray[np.int64]
Parsed = tuple[Nested, Numbers | None]
"""A minibatch as `feed` gives it; when predicting, the number of the record that each row is of."""
OnRecords = Callable[[RecordBatch], Nested]


class ChosenWay:
    """One way of running a feed."""

    may_change_rows = True  # a function of the user sees whole minibatches

    def __init__(self, user: UserFeed, structure: Structure) -> None:
        self.user = user
        self.structure = structure

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[Parsed]:
        """Yield the minibatches of a task."""
        raise NotImplementedError

    def check_rows(self, element: Nested, numbers: Numbers | None) -> int:
        """Return how many rows a minibatch has.

        Raises:
            ModelError: Its tensors differ in their number of rows, or have more or fewer rows than
                there are records.
        """
        found = common_num_rows(element) if self.may_change_rows else num_records(element)
        if found is None:
            raise ModelError(
                f"{self.user.name} gives a minibatch of {describe(element)}: expected as many rows "
                "in each tensor, one for each record"
            )
        if numbers is not None and found != len(numbers):
            raise ModelError(
                f"{self.user.name} gives {found} rows for {len(numbers)} records in mode "
                f"{self.user.mode}, where each row is to stand beside its record: after batch() a "
                "map must keep the rows and their order; leave records out with filter, or make "
                "several rows of one with flat_map, before batch()"
            )
        return found


class Compiled(ChosenWay):
    """One compiled function a minibatch, and a faster one that must give the same.

    Args:
        user: The user's feed.
        structure: The structure of a minibatch.
        reference: The code of the user as a function of records: maps record by record, or a
            batched feed.
        shuffled: Whether the records of a task are permuted.
        may_change_rows: Whether a function of the user sees whole minibatches.
    """

    def __init__(
        self,
        user: UserFeed,
        structure: Structure,
        reference: OnRecords,
        shuffled: bool,
        may_change_rows: bool,
    ) -> None:
        super().__init__(user, structure)
        # A prediction stands beside its record, so no record may move.
        self._shuffled = shuffled and user.mode != Mode.PREDICTION
        self.may_change_rows = may_change_rows
        self._one_by_one = reference
        self._vectorised: OnRecords | None = None
        self._num_proved = 0
        self._records_together = 1

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[Parsed]:
        """See `ChosenWay.run`."""
        together = size * max(1, self._records_together // size)
        is_prediction = self.user.mode == Mode.PREDICTION
        for batch in cut(records, together, seed if self._shuffled else None):
            start = 0
            for minibatch in self._parse_together(batch, size):
                yield minibatch, batch.numbers[start : start + size] if is_prediction else None
                start += size

    def _parse_together(self, batch: RecordBatch, size: int) -> Iterator[Nested]:
        """Parse several minibatches in one call, and cut the result up."""
        if len(batch) > size and self._vectorised is not None:
            try:
                parsed = self._vectorised(batch)
            except RUN_ERRORS:
                pass  # one minibatch fails; found below
            else:
                if self._is_proved(batch, parsed):
                    yield from _cut(parsed, len(batch), size)
                    return
        for start in range(0, len(batch), size):
            yield self._parse(batch.part(start, start + size))

    def one_by_one(self, batch: RecordBatch) -> Nested:
        """Run what the user wrote; the reference for the faster form."""
        return naming_the_record(self._one_by_one, batch, self.user.name)

    def _parse(self, batch: RecordBatch) -> Nested:
        if self._vectorised is None:
            return self.one_by_one(batch)
        try:
            parsed = self._vectorised(batch)
        except RUN_ERRORS as error:
            # Record by record is what the user wrote: it either works, or names the record.
            parsed = self.one_by_one(batch)
            self._give_up(f"vectorised, a minibatch failed: {reason(error)}")
            return parsed
        return parsed if self._is_proved(batch, parsed) else self.one_by_one(batch)

    def _is_proved(self, batch: RecordBatch, parsed: Nested) -> bool:
        """Compare what the first records of the job gave; with a difference, give up."""
        if self._num_proved >= NUM_PROVED:
            return True
        difference = same(self.one_by_one(batch), parsed)
        if difference:
            self._give_up(
                f"vectorised, it gives something else for records {batch.numbers.min()} to "
                f"{batch.numbers.max()} of a task: {difference}"
            )
        self._num_proved += len(batch)
        return not difference

    def vectorise(self, function: OnRecords, num_proved: int, records_together: int) -> None:
        """Run vectorised from now on; the first records have given the same."""
        self._vectorised = function
        self._num_proved = num_proved
        self._records_together = records_together

    def _give_up(self, why: str) -> None:
        self._vectorised = None
        self.user.say_slow(why)


def records_together(parsed: Nested, num_records: int) -> int:
    """Return how many records may be parsed in one call, whatever the size of a minibatch."""
    leaves = tf.nest.flatten(parsed)
    if not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return 1
    record_bytes = sum(max(leaf.dtype.size, 1) * int(tf.size(leaf)) for leaf in leaves)
    return int(min(TOGETHER_RECORDS, TOGETHER_BYTES * num_records // max(record_bytes, 1)))


def _cut(parsed: Nested, num_records: int, size: int) -> list[Nested]:
    """Cut dense tensors of many records into those of minibatches."""
    whole, rest = divmod(num_records, size)
    sizes = [size] * whole + [rest] * bool(rest)
    columns = [tf.split(leaf, sizes) for leaf in tf.nest.flatten(parsed)]
    parts = zip(*columns, strict=True)
    return [tf.nest.pack_sequence_as(parsed, list(minibatch)) for minibatch in parts]


class Plain(ChosenWay):
    """The pipeline as the user wrote it, built for each task and seeded by it.

    Its maps run one after the other, so that what they draw is the same for the same task.
    """

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[Parsed]:
        """See `ChosenWay.run`."""
        task = as_batch(list(records))
        is_prediction = self.user.mode == Mode.PREDICTION
        elements = self._elements(task, seed)
        while True:
            try:
                element = next(elements, None)
            except RUN_ERRORS:
                naming_the_record(lambda b: list(self._elements(b, seed)), task, self.user.name)
                raise
            if element is None:
                return
            if is_prediction:
                numbers, element = element
                yield element, numbers.numpy()
            else:
                yield element, None

    def _elements(self, batch: RecordBatch, seed: int) -> tf.data.Iterator:
        drawn = mix(seed, 0)
        # Maps without a seed of their own draw by TensorFlow's global seed.
        tf.random.set_seed(drawn)
        dataset = self.user.batched(self.user(batch, self.user.drawing(drawn)))
        return iter(dataset.with_options(in_order()))


def in_order() -> tf.data.Options:
    """Return the options with which a pipeline gives the same each time."""
    options = tf.data.Options()
    options.deterministic = True
    return options


def mix(seed: int, index: int) -> int:
    """Return a number below 2**31 - 1 that depends on both, and looks drawn at random.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    x = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return (x ^ x >> 31) % _HIGH_SEED
