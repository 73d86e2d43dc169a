"""The `tf.data.Dataset` that a user's `feed` is given: it notes what `feed` asks for.

See `docs/designs/feed.md`, which has a row for each method.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import NoReturn

import numpy as np
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.keras.feed.methods import BY_TASK, OTHER, READING, refusal
from elasticdl.packages.keras.types import Nested, Specs

logger = logging.getLogger(__name__)

OWN_SIZES = 0
"""As `batch_size`: minibatches of whatever size `feed` makes (`bucket_by_sequence_length`)."""


@dataclass(frozen=True, slots=True)
class Noted:
    """The steps of a `feed` that was `map`, `shuffle` and one `batch`.

    `record_maps` run on each record, `batch_maps` (those after `batch`) on each minibatch.
    """

    record_maps: tuple[Callable[..., Nested], ...] = ()
    batch_maps: tuple[Callable[..., Nested], ...] = ()
    shuffled: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """Says how the plain pipeline runs. Its maps run one after the other, because they may draw.

    seed: The seed of shuffles.
    numbered: Each element travels with the number of its record, and none is shuffled: what is
        made of a record is to stand beside it (prediction).
    in_order: None is shuffled either: records are trained as they come.
    eager: The dataset that `feed` is given where there is no pipeline; None: `NotedDataset`.
    """

    seed: int = 0
    numbered: bool = False
    in_order: bool = False
    eager: Callable[[tf.data.Dataset, Drawing], NotedDataset] | None = None

    def root(self, source: tf.data.Dataset) -> NotedDataset:
        """Return the dataset of raw records that `feed` is given."""
        if self.eager is not None:
            return self.eager(source, self)
        return NotedDataset(source, self, noted=Noted())


@cache
def say_unshuffled() -> None:
    """Say once that `shuffle` has no effect."""
    logger.info("shuffle in feed does nothing: the training data keep the order of their source")


@contextmanager
def seeds_reaching_into_maps() -> Iterator[None]:
    """Keep TensorFlow from warning that a seed set outside of a map is used in it: it shall be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Seed .* from outer graph", UserWarning)
        yield


class NotedDataset(tf.data.Dataset):  # type: ignore[misc]  # tensorflow has no types
    """A dataset over a plain pipeline that notes `map`, `shuffle` and `batch` beside it.

    Methods that treat each record by itself work as TensorFlow's own: the plain pipeline is always
    there. `noted` is None once one was used that is more than maps, a shuffle and a batch. Methods
    that mean something else for a task than for all the data are refused.

    Attributes:
        plain: The pipeline that TensorFlow would run. If `Drawing.numbered` is set, its elements
            are (number of the record, what the user sees).
        noted: The same in a form that can run for a whole minibatch at once, or None.
        why: The reason why the notes ended.
        batch_size: Size of `batch`, if the pipeline's elements are minibatches; or `OWN_SIZES`.
    """

    def __init__(
        self,
        plain: tf.data.Dataset,
        drawing: Drawing,
        noted: Noted | None = None,
        batch_size: int | None = None,
        why: str = "",
    ) -> None:
        self.plain = plain
        self.noted = noted
        self.batch_size = batch_size
        self.why = why
        self._drawing = drawing
        super().__init__(plain._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self.plain]

    @property
    def element_spec(self) -> Specs:
        """The structure of an element, as the user sees it."""
        spec = self.plain.element_spec
        return spec[1] if self._drawing.numbered else spec

    # --- noted -----------------------------------------------------------------------------------

    def map(
        self,
        map_func: Callable[..., Nested],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        **kwargs: object,
    ) -> NotedDataset:
        """Note `map_func`; the order of elements is kept whatever `deterministic` says."""
        function = _beside_number(map_func) if self._drawing.numbered else map_func
        # `num_parallel_calls` is left out: maps that draw must run in the order of the records.
        with seeds_reaching_into_maps():
            plain = self.plain.map(function, **kwargs)
        noted = self.noted
        if noted is not None and self.batch_size is None:
            noted = replace(noted, record_maps=(*noted.record_maps, map_func))
        elif noted is not None:
            noted = replace(noted, batch_maps=(*noted.batch_maps, map_func))
        return self._with(plain, noted=noted)

    def shuffle(
        self, buffer_size: int | tf.Tensor, *args: object, **kwargs: object
    ) -> NotedDataset:
        """Note a shuffle of all records of a task; the plain one is seeded by the task."""
        if self._drawing.in_order:
            say_unshuffled()
        if self._drawing.numbered or self._drawing.in_order:
            return self
        # A task that runs again must give its records in the same order.
        plain = self.plain.shuffle(
            buffer_size, seed=self._drawing.seed, reshuffle_each_iteration=False
        )
        if self.batch_size is not None:
            return self._with(plain, noted=None, why="it shuffles minibatches")
        noted = None if self.noted is None else replace(self.noted, shuffled=True)
        return self._with(plain, noted=noted)

    def batch(
        self, batch_size: int, drop_remainder: bool = False, *args: object, **kwargs: object
    ) -> NotedDataset:
        """Note that `feed` makes minibatches itself."""
        self._check_batch("batch", drop_remainder)
        plain = self.plain.batch(batch_size, False, *args, **kwargs)
        return self._with(plain, noted=self.noted, batch_size=int(batch_size))

    # --- each record by itself: run as the plain pipeline does -----------------------------------

    def filter(self, predicate: Callable[..., tf.Tensor], name: str | None = None) -> NotedDataset:
        """Leave records out; after `batch`, minibatches."""
        function = _without_number(predicate) if self._drawing.numbered else predicate
        return self._ends_notes("filter", self.plain.filter(function, name))

    def flat_map(
        self, map_func: Callable[..., tf.data.Dataset], name: str | None = None
    ) -> NotedDataset:
        """Make any number of examples of a record."""
        function = self._of_one_record("flat_map", map_func)
        return self._ends_notes("flat_map", self.plain.flat_map(function, name))

    def interleave(
        self,
        map_func: Callable[..., Nested],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> NotedDataset:
        """Make any number of examples of a record, in turn with those of the next records."""
        function = self._of_one_record("interleave", map_func)
        plain = self.plain.interleave(function, cycle_length, block_length, name=name)
        return self._ends_notes("interleave", plain)

    def ignore_errors(self, *args: object, **kwargs: object) -> NotedDataset:
        """Leave out the records on which a map before it fails."""
        return self._ends_notes("ignore_errors", self.plain.ignore_errors(*args, **kwargs))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: object = None,
        padding_values: object = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> NotedDataset:
        """Make minibatches; how far to pad depends on all records of one."""
        self._check_batch("padded_batch", drop_remainder)
        padding = self._padding(padded_shapes, padding_values)
        plain = self.plain.padded_batch(batch_size, *padding, False, name)
        return self._ends_notes("padded_batch", plain, int(batch_size))

    def ragged_batch(
        self, batch_size: int, drop_remainder: bool = False, *args: object, **kwargs: object
    ) -> NotedDataset:
        """Make minibatches of records of different shapes."""
        self._check_batch("ragged_batch", drop_remainder)
        plain = self.plain.ragged_batch(batch_size, False, *args, **kwargs)
        return self._ends_notes("ragged_batch", plain, int(batch_size))

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., tf.Tensor],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: object = None,
        padding_values: object = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> NotedDataset:
        """Make minibatches of records of similar length, of the sizes that it is given."""
        self._check_batch("bucket_by_sequence_length", drop_remainder)
        numbered = self._drawing.numbered
        plain = self.plain.bucket_by_sequence_length(
            _without_number(element_length_func) if numbered else element_length_func,
            bucket_boundaries,
            bucket_batch_sizes,
            *self._padding(padded_shapes, padding_values),
            pad_to_bucket_boundary=pad_to_bucket_boundary,
            no_padding=no_padding,
            name=name,
        )
        return self._ends_notes("bucket_by_sequence_length", plain, OWN_SIZES)

    def rebatch(
        self, batch_size: int, drop_remainder: bool = False, name: str | None = None
    ) -> NotedDataset:
        """Make minibatches of others."""
        _keep_remainder("rebatch", drop_remainder)
        plain = self.plain.rebatch(batch_size, False, name)
        return self._ends_notes("rebatch", plain, int(batch_size))

    def unbatch(self, name: str | None = None) -> NotedDataset:
        """Make records of minibatches again."""
        done = self._ends_notes("unbatch", self.plain.unbatch(name))
        # `_with` takes None for "as before", so it is set here.
        done.batch_size = None
        return done

    def with_options(self, options: tf.data.Options, name: str | None = None) -> NotedDataset:
        """Pass the options to the plain pipeline; they change no minibatch."""
        return self._with(self.plain.with_options(options, name), noted=self.noted)

    # --- no effect -------------------------------------------------------------------------------

    def prefetch(self, *args: object, **kwargs: object) -> NotedDataset:
        """Do nothing: a worker prepares minibatches ahead of the step by itself."""
        return self

    def cache(self, *args: object, **kwargs: object) -> NotedDataset:
        """Do nothing: what one task's records gave must not be given for another's."""
        return self

    # --- refused, except for arguments by which they do nothing ----------------------------------

    def repeat(self, count: int | None = None, name: str | None = None) -> NotedDataset:
        """Refuse: a task's records are trained once, epochs are counted by the job."""
        if _is(count, 1):
            return self
        raise ModelError(
            f"feed calls dataset.repeat({'' if count is None else count}): elasticdl trains each "
            "record once an epoch; leave it out and say --num_epochs; to make more examples of a "
            "record, use flat_map"
        )

    def take(self, count: int, name: str | None = None) -> NotedDataset:
        """Refuse, unless it takes all."""
        if _is(count, -1):
            return self
        raise refusal(f"dataset.take({count})", "take")

    def skip(self, count: int, name: str | None = None) -> NotedDataset:
        """Refuse, unless it skips none."""
        if _is(count, 0):
            return self
        raise refusal(f"dataset.skip({count})", "skip")

    def shard(self, num_shards: int, index: int, name: str | None = None) -> NotedDataset:
        """Refuse, unless there is one shard."""
        if _is(num_shards, 1):
            return self
        raise refusal(f"dataset.shard({num_shards}, {index})", "shard")

    # --- parts -----------------------------------------------------------------------------------

    def _with(
        self,
        plain: tf.data.Dataset,
        noted: Noted | None,
        batch_size: int | None = None,
        why: str = "",
    ) -> NotedDataset:
        return NotedDataset(
            plain,
            self._drawing,
            noted,
            self.batch_size if batch_size is None else batch_size,
            self.why or (why if noted is None else ""),
        )

    def _ends_notes(
        self, name: str, plain: tf.data.Dataset, batch_size: int | None = None
    ) -> NotedDataset:
        return self._with(plain, None, batch_size, f"it uses dataset.{name}")

    def _of_one_record(self, name: str, map_func: Callable[..., Nested]) -> Callable[..., Nested]:
        if self.batch_size is not None:
            raise ModelError(
                f"feed calls dataset.{name} after it has made minibatches: what comes of it may be "
                f"minibatches or examples; use {name} before batch(), or unbatch() first"
            )
        return _repeating_number(map_func) if self._drawing.numbered else map_func

    def _check_batch(self, name: str, drop_remainder: bool) -> None:
        if self.batch_size is not None:
            raise ModelError(
                f"feed calls dataset.{name} on minibatches: it would join them at the borders of "
                "tasks differently than in all the data; make minibatches once"
            )
        _keep_remainder(name, drop_remainder)

    def _padding(self, shapes: object, values: object) -> tuple[object, object]:
        """Return `padded_shapes` and `padding_values` for the plain pipeline's elements."""
        if not self._drawing.numbered:
            return shapes, values
        if values is not None and not tf.nest.is_nested(values):
            values = tf.nest.map_structure(lambda _: values, self.element_spec)
        return (
            None if shapes is None else ([], shapes),
            None if values is None else (np.int64(0), values),
        )


def _refused(name: str) -> Callable[..., NoReturn]:
    def method(self: NotedDataset, *args: object, **kwargs: object) -> NoReturn:
        call = {"__iter__": "iterating over it", "__len__": "len(dataset)"}
        raise refusal(call.get(name, f"dataset.{name}()"), name)

    method.__name__ = name
    method.__doc__ = f"Refuse `{name}`."
    return method


# An inherited method would run on the records of one task, so it is replaced.
for _name in (*BY_TASK, *READING, *OTHER):
    if _name not in vars(NotedDataset):
        setattr(NotedDataset, _name, _refused(_name))


def unpacked(function: Callable[..., Nested], element: Nested) -> Nested:
    """Call a user's function on an element as `tf.data` does: a tuple is its arguments."""
    return function(*element) if type(element) is tuple else function(element)


def _beside_number(function: Callable[..., Nested]) -> Callable[..., Nested]:
    def mapped(number: tf.Tensor, element: Nested) -> Nested:
        result = unpacked(function, element)
        # tf.data makes a tuple of a list only at the top level, which is the pair here.
        return number, tuple(result) if isinstance(result, list) else result

    return mapped


def _without_number(function: Callable[..., Nested]) -> Callable[..., Nested]:
    return lambda number, element: unpacked(function, element)


def _repeating_number(function: Callable[..., Nested]) -> Callable[..., Nested]:
    def examples(number: tf.Tensor, element: Nested) -> tf.data.Dataset:
        numbers = tf.data.Dataset.from_tensors(number).repeat()
        return tf.data.Dataset.zip((numbers, unpacked(function, element)))

    return examples


def _is(value: object, expected: int) -> bool:
    return isinstance(value, int | np.integer) and value == expected


def _keep_remainder(name: str, drop_remainder: bool) -> None:
    if drop_remainder:
        raise ModelError(
            f"feed calls dataset.{name} with drop_remainder=True, which loses the last records of "
            "each task; leave it out (or the whole batch: elasticdl makes the minibatches)"
        )
