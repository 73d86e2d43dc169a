"""The ways to run a `feed`, and the choice of one; `docs/designs/feed.md` says how it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.backends.keras.feed.compile import (
    compile_one_by_one,
    compile_vectorised,
    relaxed,
)
from elasticdl.backends.keras.feed.examples import ParsedByRust, fastest, on_tensors
from elasticdl.backends.keras.feed.faults import RUN_ERRORS, naming_the_record, reason
from elasticdl.backends.keras.feed.minibatch import (
    Structure,
    common_num_rows,
    describe,
    num_records,
)
from elasticdl.backends.keras.feed.pipeline import Pipeline, built_anew
from elasticdl.backends.keras.feed.proof import Proof, same
from elasticdl.backends.keras.feed.records import RecordBatch, as_batch, cut
from elasticdl.backends.keras.feed.user import UserFeed
from elasticdl.backends.keras.feed.vectorize import draws, draws_random_numbers, has_draws
from elasticdl.backends.keras.model.function import StructuredFunction
from elasticdl.data.base import Records
from elasticdl.errors import ModelError
from elasticdl.job import Mode

# Minibatches are parsed together up to this many records or bytes: a call costs half a millisecond.
TOGETHER_RECORDS = 4096
TOGETHER_BYTES = 4 * 2**20
_HIGH_SEED = 2**31 - 1


Numbers = NDArray[np.int64]
OnRecords = Callable[[RecordBatch], Any]
Parsed = tuple[Any, Numbers | None]
"""A minibatch as `feed` gives it; when predicting, the number of the record that each row is of."""


class Way:
    """One way of running a feed."""

    may_change_rows = True  # a function of the user sees whole minibatches

    def __init__(self, user: UserFeed, structure: Structure) -> None:
        self.user = user
        self.structure = structure

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[Parsed]:
        """Yield the minibatches of a task."""
        raise NotImplementedError

    def check_rows(self, element: Any, numbers: Numbers | None) -> int:
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


class Compiled(Way):
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
        self._proof = Proof(0)
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

    def _parse_together(self, batch: RecordBatch, size: int) -> Iterator[Any]:
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

    def one_by_one(self, batch: RecordBatch) -> Any:
        """Run what the user wrote; the reference for the faster form."""
        return naming_the_record(self._one_by_one, batch, self.user.name)

    def _parse(self, batch: RecordBatch) -> Any:
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

    def _proves(self, batch: RecordBatch, parsed: Any) -> bool:
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
        self._proof = Proof(num_proved)
        self._records_together = records_together

    def _give_up(self, why: str) -> None:
        self._vectorised = None
        self.user.say_slow(why)


class Plain(Way):
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

        def pipeline(batch: RecordBatch) -> Iterator[Any]:
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


def choose(user: UserFeed, sample: RecordBatch) -> Way:
    """Try the ways on the first records of the job and take the fastest that is right."""
    dataset = user(sample, user.drawing())
    structure = user.structure(dataset)
    noted = dataset.noted
    if noted is None:
        traced, why = _trace(user, sample)
        user.say_slow(dataset.why + why)
        return Plain(user, structure, traced)
    if draws_random_numbers(noted, sample.tensors()):
        user.say_slow("it draws random numbers, which only the plain pipeline repeats")
        return Plain(user, structure, traced=None)
    reference = on_tensors(compile_one_by_one(noted, sample))
    way = Compiled(user, structure, reference, noted.shuffled, bool(noted.batch_maps))
    expected = way.one_by_one(sample)
    try:
        whole = compile_vectorised(noted, sample)
        whole(sample.tensors())
    except Exception as error:  # whatever has no vectorised form raises in its own way
        user.say_slow(_first_line(error))
        return way
    function, how = fastest(whole, sample)
    found = function(sample)
    difference = same(expected, found)
    if difference and isinstance(function, ParsedByRust):
        how = f"parsed by TensorFlow: Rust gives something else: {difference}"
        function = on_tensors(whole)
        found = function(sample)
        difference = same(expected, found)
    if difference:
        user.say_slow(f"vectorised, it gives something else: {difference}")
    else:
        together = 1 if noted.batch_maps else _records_together(found, len(sample))
        way.vectorise(function, len(sample), together)
        user.say(f"runs vectorised in mode {user.mode}; {how}")
    return way


def choose_batched(user: UserFeed, sample: RecordBatch, run_eagerly: bool) -> Way:
    """Compile a feed that is given many records at once; see `elasticdl.batched`.

    Raises:
        ModelError: It draws random numbers, or does not give a minibatch.
    """
    is_training = user.mode == Mode.TRAINING
    if run_eagerly:
        structure = user.structure_of(user.call(sample.tensors()))
        return Compiled(user, structure, lambda b: user.call(b.tensors()), is_training, True)
    try:
        whole = StructuredFunction(user.call, relaxed(sample.tensors()))
    except ModelError as error:  # AutoGraph puts a stack before what was said
        raise ModelError(str(error).rpartition(f"{ModelError.__name__}: ")[2].strip()) from error
    if has_draws(whole.concrete.graph) or draws(whole.concrete.graph):
        raise ModelError(
            f"{user.name} is batched and draws random numbers, which a task that is done again "
            "would not repeat: use tf.random.stateless_*, seeded by something of the record"
        )
    reference = on_tensors(whole)
    way = Compiled(user, user.structure_of(whole.structure), reference, is_training, True)
    expected = way.one_by_one(sample)
    function, how = fastest(whole, sample)
    found = function(sample)
    difference = same(expected, found)
    if difference:
        how = f"TensorFlow parses the records: Rust gives something else: {difference}"
        function, found = reference, expected
    half = len(sample) // 2
    together = 1
    if half and common_num_rows(expected) == len(sample):
        parts = [way.one_by_one(sample.part(0, half)), way.one_by_one(sample.part(half, 2 * half))]
        together = _records_together(found, len(sample)) if _is_by_row(expected, parts) else 1
    way.vectorise(function, len(sample), together)
    user.say(f"runs batched in mode {user.mode}; {how}")
    return way


def _is_by_row(whole: Any, parts: list[Any]) -> bool:
    """Say whether what was made of records in parts is what was made of all of them at once."""
    leaves = [tf.nest.flatten(part) for part in (whole, *parts)]
    if not all(isinstance(leaf, tf.Tensor) for part in leaves for leaf in part):
        return False
    joined = [tf.concat(pair, 0) for pair in zip(*leaves[1:], strict=True)]
    cut_off = [leaf[: len(both)] for leaf, both in zip(leaves[0], joined, strict=True)]
    return not same(cut_off, joined)


def _trace(user: UserFeed, sample: RecordBatch) -> tuple[Pipeline | None, str]:
    """Return the traced pipeline, or None and why it is built anew for each task."""
    try:
        traced = Pipeline(user, sample)
        if traced.draws:
            return None, " and draws random numbers"
        next(traced(sample, seed=0), None)
    except Exception as error:  # what works when called may fail in many ways when traced
        return None, f", and cannot be traced once for all tasks ({_first_line(error)})"
    return traced, ""


def _records_together(parsed: Any, num_records: int) -> int:
    """Return how many records may be parsed in one call, whatever the size of a minibatch."""
    leaves = tf.nest.flatten(parsed)
    if not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return 1
    record_bytes = sum(max(leaf.dtype.size, 1) * int(tf.size(leaf)) for leaf in leaves)
    return int(min(TOGETHER_RECORDS, TOGETHER_BYTES * num_records // max(record_bytes, 1)))


def _cut(parsed: Any, num_records: int, size: int) -> list[Any]:
    """Cut dense tensors of many records into those of minibatches."""
    whole, rest = divmod(num_records, size)
    sizes = [size] * whole + [rest] * bool(rest)
    columns = [tf.split(leaf, sizes) for leaf in tf.nest.flatten(parsed)]
    parts = zip(*columns, strict=True)
    return [tf.nest.pack_sequence_as(parsed, list(minibatch)) for minibatch in parts]


def _first_line(error: Exception) -> str:
    text = str(error)
    match = re.search(r"No pfor vectorization defined for (\w+)", text)
    if match:
        return f"{match[1]} has no vectorised form"
    if isinstance(error, tf.errors.OpError):
        return reason(error)[:200]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:200]


def mix(seed: int, index: int) -> int:
    """Return a number below 2**31 - 1 that depends on both, and looks drawn at random.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    x = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return (x ^ x >> 31) % _HIGH_SEED
