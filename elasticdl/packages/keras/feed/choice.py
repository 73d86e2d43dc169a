"""The choice of a way to run a `feed`; `docs/designs/feed.md` says how it is made."""

from __future__ import annotations

import re

import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.keras.feed.compile import (
    compile_one_by_one,
    compile_vectorised,
    draws,
    draws_random_numbers,
    has_draws,
    relaxed,
)
from elasticdl.packages.keras.feed.examples import ParsedByRust, fastest, on_tensors
from elasticdl.packages.keras.feed.faults import reason
from elasticdl.packages.keras.feed.minibatch import (
    common_num_rows,
)
from elasticdl.packages.keras.feed.proof import same
from elasticdl.packages.keras.feed.records import RecordBatch
from elasticdl.packages.keras.feed.user import UserFeed
from elasticdl.packages.keras.feed.ways import (
    ChosenWay,
    Compiled,
    OnRecords,
    Plain,
    records_together,
)
from elasticdl.packages.keras.model.function import StructuredFunction
from elasticdl.packages.keras.types import Nested


def choose(user: UserFeed, sample: RecordBatch) -> ChosenWay:
    """Try the ways on the first records of the job and take the fastest that is right."""
    dataset = user(sample, user.drawing())
    structure = user.structure(dataset)
    noted = dataset.noted
    if noted is None:
        user.say_slow(dataset.why)
        return Plain(user, structure)
    # Compiled maps would draw other numbers when a task is done again.
    if draws_random_numbers(noted, sample.tensors()):
        user.say_slow("it draws random numbers, which only the plain pipeline repeats")
        return Plain(user, structure)
    reference = on_tensors(compile_one_by_one(noted, sample))
    way = Compiled(user, structure, reference, noted.shuffled, bool(noted.batch_maps))
    expected = way.one_by_one(sample)
    try:
        whole = compile_vectorised(noted, sample)
        whole(sample.tensors())
    except Exception as error:  # whatever has no vectorised form raises in its own way
        user.say_slow(_first_line(error))
        return way
    function, how, found = _fast(whole, sample, expected)
    if difference := same(expected, found):
        user.say_slow(f"vectorised, it gives something else: {difference}")
    else:
        together = 1 if noted.batch_maps else records_together(found, len(sample))
        way.vectorise(function, len(sample), together)
        user.say(f"runs vectorised in mode {user.mode}; {how}")
    return way


def choose_batched(user: UserFeed, sample: RecordBatch, run_eagerly: bool) -> ChosenWay:
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
    function, how, found = _fast(whole, sample, expected)
    half = len(sample) // 2
    together = 1
    if half and common_num_rows(expected) == len(sample):
        parts = [way.one_by_one(sample.part(0, half)), way.one_by_one(sample.part(half, 2 * half))]
        together = records_together(found, len(sample)) if _is_by_row(expected, parts) else 1
    way.vectorise(function, len(sample), together)
    user.say(f"runs batched in mode {user.mode}; {how}")
    return way


def _fast(
    whole: StructuredFunction, sample: RecordBatch, expected: Nested
) -> tuple[OnRecords, str, Nested]:
    """Return the fastest form of a function, the way of its records, and its output for a sample.

    If Rust parses them and gives something unexpected, TensorFlow is to parse them.
    """
    function, how = fastest(whole, sample)
    found = function(sample)
    difference = same(expected, found)
    if difference and isinstance(function, ParsedByRust):
        how = f"TensorFlow parses the records: Rust gives something else: {difference}"
        function = on_tensors(whole)
        found = function(sample)
    return function, how, found


def _is_by_row(whole: Nested, parts: list[Nested]) -> bool:
    """Say whether records give the same in parts as all at once."""
    leaves = [tf.nest.flatten(part) for part in (whole, *parts)]
    if not all(isinstance(leaf, tf.Tensor) for part in leaves for leaf in part):
        return False
    joined = [tf.concat(pair, 0) for pair in zip(*leaves[1:], strict=True)]
    # A sample of an odd number of records has one more than its two halves.
    cut_off = [leaf[: len(both)] for leaf, both in zip(leaves[0], joined, strict=True)]
    return not same(cut_off, joined)


def _first_line(error: Exception) -> str:
    text = str(error)
    match = re.search(r"No pfor vectorization defined for (\w+)", text)
    if match:
        return f"{match[1]} has no vectorised form"
    if isinstance(error, tf.errors.OpError):
        return reason(error)[:200]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:200]
