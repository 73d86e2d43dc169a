"""The ways to run a `feed`: plain, as TensorFlow runs it, and compiled, with a vectorised form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.backends.keras.feed.compile import has_draws, relaxed
from elasticdl.backends.keras.feed.dataset import seeds_reaching_into_maps
from elasticdl.backends.keras.feed.faults import RUN_ERRORS, naming_the_record, reason
from elasticdl.backends.keras.feed.minibatch import (
    Structure,
    common_num_rows,
    describe,
    num_records,
)
from elasticdl.backends.keras.feed.proof import FeedProof, same
from elasticdl.backends.keras.feed.records import RecordBatch, as_batch, cut
from elasticdl.backends.keras.feed.user import UserFeed
from elasticdl.backends.keras.types import Nested
from elasticdl.data.base import Records
from elasticdl.errors import ModelError
from elasticdl.job import Mode

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
            ModelError: Its tensors have different ones, or not those of the records they are of.
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
        reference: What the user wrote, as a function of records: maps record by record, or a
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
        # What is predicted stands beside its record: nothing is moved.
        self._shuffled = shuffled and user.mode != Mode.PREDICTION
        self.may_change_rows = may_change_rows
        self._one_by_one = reference
        self._vectorised: OnRecords | None = None
        self._proof = FeedProof(0)
        self._records_together = 1

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[Parsed]:
        """See `Way.run`."""
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
                if self._proves(batch, parsed):
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
        return parsed if self._proves(batch, parsed) else self.one_by_one(batch)

    def _proves(self, batch: RecordBatch, parsed: Nested) -> bool:
        """Compare what some records gave, if it is time to; with a difference, give up."""
        divisible = self._records_together > 1
        chosen = self._proof.choose(len(batch), divisible)
        if not chosen:
            return True
        part = slice(chosen.start, chosen.stop)
        found = tf.nest.map_structure(lambda leaf: leaf[part], parsed) if divisible else parsed
        difference = same(self.one_by_one(batch.part(part.start, part.stop)), found)
        if difference:
            numbers = batch.numbers[part]
            self._give_up(
                f"vectorised, it gives something else for records {numbers.min()} to "
                f"{numbers.max()} of a task: {difference}"
            )
        else:
            self._proof.passed(chosen)
        return not difference

    def vectorise(self, function: OnRecords, num_proved: int, records_together: int) -> None:
        """Run vectorised from now on; the first records have given the same."""
        self._vectorised = function
        self._proof = FeedProof(num_proved)
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
    """The pipeline as the user wrote it, seeded by each task.

    It is traced once; one that draws is built anew for each task, with maps one after the other.
    """

    def __init__(self, user: UserFeed, structure: Structure, traced: Pipeline | None) -> None:
        super().__init__(user, structure)
        self._traced = traced

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[Parsed]:
        """See `Way.run`."""
        task = as_batch(list(records))
        is_prediction = self.user.mode == Mode.PREDICTION

        def pipeline(batch: RecordBatch) -> tf.data.Iterator:
            if self._traced is not None:
                return self._traced(batch, mix(seed, 0))
            return built_anew(self.user, batch, mix(seed, 0))

        elements = pipeline(task)
        while True:
            try:
                element = next(elements, None)
            except RUN_ERRORS:
                naming_the_record(lambda b: list(pipeline(b)), task, self.user.name)
                raise
            if element is None:
                return
            if is_prediction:
                numbers, element = element
                yield element, numbers.numpy()
            else:
                yield element, None


class Pipeline:
    """A function of a task's records and its seed that gives the task's minibatches.

    To build a pipeline of three functions takes 40 to 75 ms of processor time, since TensorFlow
    traces each of them anew; to call this takes 12 to 40 ms.

    Attributes:
        draws: Whether a function of the user's draws random numbers. Then this is not to be used:
            it would go on drawing from where the task before stopped.
    """

    def __init__(self, user: UserFeed, sample: RecordBatch) -> None:
        def build(numbers: tf.Tensor, records: Nested, seed: tf.Tensor) -> tf.Tensor:
            drawing = replace(user.drawing(), seed=seed)
            with _autograph_in_maps():
                dataset = user.batched(user.of(numbers, records, drawing))
            self._element_spec = dataset.element_spec
            return tf.data.experimental.to_variant(dataset)

        numbers, records = relaxed(tf.constant(sample.numbers)), relaxed(sample.tensors())
        # Else a shuffle would depend on what was run before; 0 may not be, with a seed of a tensor.
        tf.random.set_seed(1)
        with seeds_reaching_into_maps():
            function = tf.function(build, autograph=False)
            self._build = function.get_concrete_function(
                numbers, records, tf.TensorSpec([], tf.int64)
            )
        self.draws = has_draws(self._build.graph)

    def __call__(self, batch: RecordBatch, seed: int) -> tf.data.Iterator:
        """Yield the minibatches of the records."""
        variant = self._build(
            tf.constant(batch.numbers), batch.tensors(), tf.constant(seed, tf.int64)
        )
        dataset = tf.data.experimental.from_variant(variant, self._element_spec)
        return iter(dataset.with_options(in_order()))


def _autograph_in_maps() -> AbstractContextManager[object]:
    """Return the context in which `tf.data` converts functions, as where nothing is traced."""
    outer = tf.__internal__.autograph.control_status_ctx()
    made: AbstractContextManager[object] = type(outer)(status=type(outer.status).ENABLED)
    return made


def built_anew(user: UserFeed, batch: RecordBatch, seed: int) -> tf.data.Iterator:
    """Yield the minibatches of the records of a feed that draws: the same for the same seed."""
    tf.random.set_seed(seed)
    dataset = user.batched(user(batch, user.drawing(seed, one_by_one=True)))
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
