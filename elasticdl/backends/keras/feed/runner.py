"""Running a user's `feed`: all records of a minibatch at once where that gives the same result.

Three ways, from the fastest to the most general; `docs/designs/feed.md` says how one is chosen:

- vectorised: the maps of `feed` run on whole minibatches (`tf.vectorized_map`);
- compiled: the maps run record by record, in one compiled function a minibatch;
- plain: TensorFlow runs the pipeline as the user wrote it, built anew for each task.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.backends.keras.feed.dataset import Drawing, Noted, NotedDataset
from elasticdl.backends.keras.feed.minibatch import KerasMinibatch, Structure, describe, num_records
from elasticdl.backends.keras.feed.vectorize import draws_random_numbers, register_converters, same
from elasticdl.backends.keras.model.function import StructuredFunction
from elasticdl.data.base import Metadata, Records
from elasticdl.errors import DataError, ElasticdlError, ModelError
from elasticdl.job import Mode

logger = logging.getLogger(__name__)

Feed = Callable[[Any, Any, Any], Any]
# TensorFlow quotes a record that does not parse, and fails to decode its own message if the
# record's bytes are no UTF-8.
RUN_ERRORS = (tf.errors.OpError, UnicodeDecodeError)
_NODES = re.compile(r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:\w+\]|name: *$")
_PREAMBLE = re.compile(
    r"^Graph execution error: .*?<stack traces unavailable> "
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)
NUM_SAMPLES = 256  # records that a vectorised feed is compared on
# Minibatches are parsed together up to this many records or bytes: a call costs half a millisecond.
TOGETHER_RECORDS = 4096
TOGETHER_BYTES = 4 * 2**20
_HIGH_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Batch:
    """Raw records of one minibatch, and the number of each in its source."""

    records: Any  # list of bytes, or dict of arrays
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def tensors(self) -> Any:
        if isinstance(self.records, dict):
            return {name: tf.constant(column) for name, column in self.records.items()}
        return tf.constant(self.records, tf.string)

    def part(self, start: int, stop: int) -> _Batch:
        """Return the records from `start` up to `stop`."""
        if isinstance(self.records, dict):
            chosen: Any = {name: column[start:stop] for name, column in self.records.items()}
        else:
            chosen = self.records[start:stop]
        return _Batch(chosen, self.numbers[start:stop])

    def take(self, indices: NDArray[np.int64]) -> _Batch:
        """Return the records of these indices, in their order."""
        if isinstance(self.records, dict):
            chosen: Any = {name: column[indices] for name, column in self.records.items()}
        else:
            chosen = [self.records[i] for i in indices]
        return _Batch(chosen, self.numbers[indices])


class FeedRunner:
    """Turns raw records into minibatches; the way is chosen once for each mode."""

    def __init__(self, feed: Feed, metadata: Metadata) -> None:
        self._feed = feed
        self._metadata = metadata
        self._ways: dict[tuple[Mode, int], _Way] = {}
        self._choosing = threading.Lock()

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[KerasMinibatch]:
        """Yield the minibatches of one task; see `Predictor.minibatches`."""
        chunks = (chunk for chunk in records if len(chunk))
        first = _take(chunks, NUM_SAMPLES)
        if not first:
            return
        way = self._way(first, mode, minibatch_size)
        batches = way.run(itertools.chain(first, chunks), minibatch_size, seed)
        for index, (features, labels) in enumerate(batches):
            tensors = way.structure.flatten(features, labels)
            yield KerasMinibatch(
                features=features,
                labels=labels,
                num_records=num_records(features),
                structure=way.structure,
                tensors=tensors,
                mode=mode,
                seed=_mix(seed, index),
            )

    def _way(self, first: list[Records], mode: Mode, minibatch_size: int) -> _Way:
        with self._choosing:
            way = self._ways.get((mode, minibatch_size))
            if way is None:
                user = _UserFeed(self._feed, mode, self._metadata, minibatch_size)
                sample = _as_batch(first)
                way = _choose(user, sample.part(0, NUM_SAMPLES))
                self._ways[mode, minibatch_size] = way
            return way


class _UserFeed:
    """The user's function for one mode, with its complaints put into words."""

    def __init__(self, feed: Feed, mode: Mode, metadata: Metadata, minibatch_size: int) -> None:
        self.mode = mode
        self.name = getattr(feed, "__name__", "feed")
        self._feed = feed
        self._metadata = metadata
        self._minibatch_size = minibatch_size

    def __call__(self, batch: _Batch, drawing: Drawing) -> NotedDataset:
        """Run the function on a dataset of the records of `batch`; nothing is parsed yet."""
        source = tf.data.Dataset.from_tensor_slices(batch.tensors())
        root = NotedDataset(source, drawing, noted=Noted())
        try:
            dataset = self._feed(root, self.mode, self._metadata)
        except ElasticdlError:
            raise
        except Exception as error:
            raise ModelError(
                f"{self.name} raised {type(error).__name__} in mode {self.mode}: {error}"
            ) from error
        if not isinstance(dataset, tf.data.Dataset):
            raise ModelError(
                f"{self.name} must return the dataset (dataset.map(...)), "
                f"found {type(dataset).__name__}"
            )
        if not isinstance(dataset, NotedDataset):
            dataset = NotedDataset(dataset, drawing, why="it returns a dataset of its own")
        if dataset.batch_size not in (None, self._minibatch_size):
            raise ModelError(
                f"{self.name} makes minibatches of {dataset.batch_size}, the job's "
                f"--minibatch_size is {self._minibatch_size}: leave batch() out of {self.name}"
            )
        return dataset

    def batched(self, dataset: NotedDataset) -> Any:
        """Return the plain pipeline of a dataset that `self` gave, with minibatches made."""
        plain = dataset.plain
        return plain if dataset.batch_size is not None else plain.batch(self._minibatch_size)

    def structure(self, dataset: NotedDataset) -> Structure:
        """Check what the dataset gives and say what a minibatch of it is made of."""
        try:
            spec = self.batched(dataset).element_spec
        except (TypeError, ValueError) as error:
            raise ModelError(f"{self.name} gives records that do not batch: {error}") from error
        found = describe(dataset.element_spec)
        if self.mode == Mode.PREDICTION:
            return Structure(spec, None)
        if not (isinstance(spec, tuple) and len(spec) == 2):
            raise ModelError(
                f"{self.name} must give (features, labels) in mode {self.mode}, found {found}"
            )
        return Structure(*spec)

    def split(self, element: Any) -> tuple[Any, Any]:
        """Take a minibatch apart into features and labels."""
        return (element, None) if self.mode == Mode.PREDICTION else (element[0], element[1])


class _Way:
    """One way of running a feed."""

    def __init__(self, user: _UserFeed, structure: Structure) -> None:
        self.user = user
        self.structure = structure

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[tuple[Any, Any]]:
        """Yield (features, labels) of each minibatch of a task."""
        raise NotImplementedError


class _Compiled(_Way):
    """Maps in one compiled function a minibatch: record by record, or vectorised as well."""

    def __init__(self, user: _UserFeed, structure: Structure, noted: Noted, sample: _Batch) -> None:
        super().__init__(user, structure)
        self._shuffled = noted.shuffled
        self._one_by_one = _compile_one_by_one(noted, sample)
        self.vectorised: Any = None
        self.records_together = 1

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[tuple[Any, Any]]:
        together = size * max(1, self.records_together // size)
        for batch in _batches(records, together, seed if self._shuffled else None):
            for minibatch in self._parse_together(batch, size):
                yield self.user.split(minibatch)

    def _parse_together(self, batch: _Batch, size: int) -> Iterator[Any]:
        """Parse several minibatches in one call, and cut the result up."""
        if len(batch) > size and self.vectorised is not None:
            try:
                minibatches = _cut(self.vectorised(batch.tensors()), len(batch), size)
            except RUN_ERRORS:
                pass  # one minibatch fails; found below
            else:
                yield from minibatches
                return
        for start in range(0, len(batch), size):
            yield self._parse(batch.part(start, start + size))

    def one_by_one(self, batch: _Batch) -> Any:
        """Run the maps record by record; the reference for the vectorised form."""
        return _naming_the_record(lambda b: self._one_by_one(b.tensors()), batch, self.user.name)

    def _parse(self, batch: _Batch) -> Any:
        if self.vectorised is None:
            return self.one_by_one(batch)
        try:
            return self.vectorised(batch.tensors())
        except RUN_ERRORS as error:
            # Record by record is what the user wrote: it either works, or names the record.
            parsed = self.one_by_one(batch)
            self.vectorised = None
            _say_slow(self.user, f"vectorised, a minibatch failed: {_reason(error)}")
            return parsed


class _Plain(_Way):
    """The pipeline as the user wrote it, built for each task and seeded by it."""

    def __init__(self, user: _UserFeed, structure: Structure, one_by_one: bool) -> None:
        super().__init__(user, structure)
        self._one_by_one = one_by_one

    def run(self, records: Iterator[Records], size: int, seed: int) -> Iterator[tuple[Any, Any]]:
        task = _as_batch(list(records))
        drawing = Drawing(_mix(seed, 0), self._one_by_one)

        def pipeline(batch: _Batch) -> Iterator[Any]:
            tf.random.set_seed(drawing.seed)
            options = tf.data.Options()
            options.deterministic = True
            dataset = self.user.batched(self.user(batch, drawing))
            return iter(dataset.with_options(options))

        elements = pipeline(task)
        while True:
            try:
                element = next(elements, None)
            except RUN_ERRORS:
                _naming_the_record(lambda b: list(pipeline(b)), task, self.user.name)
                raise
            if element is None:
                return
            yield self.user.split(element)


def _choose(user: _UserFeed, sample: _Batch) -> _Way:
    """Try the ways on the first records of the job and take the fastest that is right."""
    dataset = user(sample, Drawing())
    structure = user.structure(dataset)
    noted = dataset.noted
    if noted is None:
        _say_slow(user, dataset.why)
        return _Plain(user, structure, one_by_one=False)
    if draws_random_numbers(noted, sample.tensors()):
        _say_slow(user, "it draws random numbers, which only the plain pipeline repeats")
        return _Plain(user, structure, one_by_one=True)
    way = _Compiled(user, structure, noted, sample)
    expected = way.one_by_one(sample)
    try:
        vectorised = _compile_vectorised(noted, sample)
        found = vectorised(sample.tensors())
    except Exception as error:  # whatever has no vectorised form raises in its own way
        _say_slow(user, _first_line(error))
        return way
    difference = same(expected, found)
    if difference:
        _say_slow(user, f"vectorised, it gives something else: {difference}")
    else:
        way.vectorised = vectorised
        way.records_together = _records_together(noted, found, len(sample))
    return way


def _records_together(noted: Noted, parsed: Any, num_records: int) -> int:
    """Return how many records may be parsed in one call, whatever the size of a minibatch."""
    leaves = tf.nest.flatten(parsed)
    if noted.batch_maps or not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
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


def _compile_one_by_one(noted: Noted, sample: _Batch) -> Any:
    def run(records: Any) -> Any:
        count = tf.shape(tf.nest.flatten(records)[0], tf.int64)[0]
        dataset = tf.data.Dataset.from_tensor_slices(records)
        for function in noted.record_maps:
            dataset = dataset.map(function, tf.data.AUTOTUNE)
        dataset = dataset.batch(count)
        for function in noted.batch_maps:
            dataset = dataset.map(function)
        return dataset.get_single_element()

    return StructuredFunction(run, _relaxed(sample.tensors()))


def _compile_vectorised(noted: Noted, sample: _Batch) -> Any:
    register_converters()

    def composed(functions: tuple[Callable[..., Any], ...], context: Any) -> Callable[[Any], Any]:
        converted = [tf.__internal__.autograph.tf_convert(f, context) for f in functions]

        def apply(element: Any) -> Any:
            for function in converted:
                element = _as_element(
                    function(*element) if isinstance(element, tuple) else function(element)
                )
            return element

        unconverted: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert(apply)
        return unconverted

    def run(records: Any) -> Any:
        context = tf.__internal__.autograph.control_status_ctx()  # that AutoGraph is on
        if noted.record_maps:
            per_record = composed(noted.record_maps, context)
            records = tf.vectorized_map(per_record, records, fallback_to_while_loop=False)
        return composed(noted.batch_maps, context)(records)

    return StructuredFunction(run, _relaxed(sample.tensors()))


def _as_element(result: Any) -> Any:
    """Make of a map's result what `tf.data` makes of it: lists are tensors, values are too."""
    if isinstance(result, tuple):
        return (
            type(result)(*map(_as_element, result))
            if hasattr(result, "_fields")
            else tuple(map(_as_element, result))
        )
    if isinstance(result, dict):
        return {key: _as_element(value) for key, value in result.items()}
    if isinstance(result, tf.SparseTensor | tf.RaggedTensor | tf.Tensor):
        return result
    return tf.convert_to_tensor(result)


def _relaxed(tensors: Any) -> Any:
    return tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), tensors)


def _take(chunks: Iterator[Records], count: int) -> list[Records]:
    """Take chunks off an iterator until they hold `count` records, or all."""
    taken: list[Records] = []
    while sum(map(len, taken)) < count and (chunk := next(chunks, None)) is not None:
        taken.append(chunk)
    return taken


def _as_batch(chunks: list[Records]) -> _Batch:
    numbers = np.concatenate([np.arange(c.start, c.start + len(c)) for c in chunks])
    if chunks[0].columns:
        names = chunks[0].columns
        records: Any = {n: np.concatenate([c.columns[n] for c in chunks]) for n in names}
    else:
        records = [value for chunk in chunks for value in chunk.values]
    return _Batch(records, numbers)


def _batches(records: Iterator[Records], size: int, seed: int | None) -> Iterator[_Batch]:
    """Cut records into minibatches; with a seed, in the order of a permutation of them all."""
    if seed is not None:
        task = _as_batch(list(records))
        order = np.random.default_rng(seed).permutation(len(task))
        for start in range(0, len(task), size):
            yield task.take(order[start : start + size])
        return
    waiting: list[Records] = []
    num_waiting = 0
    for chunk in records:
        waiting.append(chunk)
        num_waiting += len(chunk)
        if num_waiting < size:
            continue
        joined = _as_batch(waiting)
        whole = num_waiting - num_waiting % size
        for start in range(0, whole, size):
            yield joined.part(start, start + size)
        left = joined.part(whole, num_waiting)
        num_waiting = len(left)
        waiting = [_as_records(left)] if num_waiting else []
    if waiting:
        yield _as_batch(waiting)


def _as_records(batch: _Batch) -> Records:
    start = int(batch.numbers[0])
    if isinstance(batch.records, dict):
        return Records(start, columns=batch.records)
    return Records(start, values=batch.records)


def _naming_the_record(run: Callable[[_Batch], Any], batch: _Batch, name: str) -> Any:
    """Return `run(batch)`; if it fails, find the record that does not parse and name it."""
    try:
        return run(batch)
    except RUN_ERRORS as error:
        failure: Exception = error
    suspects = batch
    while len(suspects) > 1:
        middle = len(suspects) // 2
        for half in (suspects.part(0, middle), suspects.part(middle, len(suspects))):
            try:
                run(half)
            except RUN_ERRORS as error:
                failure, suspects = error, half
                break
        else:
            raise ModelError(
                f"{name} gives records that do not fit into one minibatch, though each parses; "
                f"do their shapes differ? {_reason(failure)}"
            ) from failure
    raise DataError(
        f"record {suspects.numbers[0]} does not parse in {name}: {_reason(failure)}"
    ) from failure


def _reason(error: Any) -> str:
    """Return TensorFlow's message without the names of its nodes, and shortened."""
    if isinstance(error, UnicodeDecodeError):
        message = error.object.decode("utf-8", "backslashreplace")
    else:
        message = error.message
    text = " ".join(_NODES.sub(" ", message).split())
    readable = "".join(c if c.isprintable() else "?" for c in _PREAMBLE.sub("", text))
    return readable[:300]


def _first_line(error: Exception) -> str:
    text = str(error)
    match = re.search(r"No pfor vectorization defined for (\w+)", text)
    if match:
        return f"{match[1]} has no vectorised form"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:200]


def _say_slow(user: _UserFeed, why: str) -> None:
    logger.warning("%s runs unvectorised in mode %s: %s", user.name, user.mode, why)


def _mix(seed: int, index: int) -> int:
    """Return a number below 2**31 - 1 that depends on both, and looks drawn at random.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    x = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return (x ^ x >> 31) % _HIGH_SEED
