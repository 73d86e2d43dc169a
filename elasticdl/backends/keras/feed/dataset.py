"""The `tf.data.Dataset` that a user's `feed` is given: it notes what `feed` asks for.

See `docs/designs/feed.md`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from elasticdl.errors import ModelError


@dataclass(frozen=True, slots=True)
class Noted:
    """What `feed` did, as far as it was `map`, `shuffle` and one `batch`.

    `record_maps` run on each record, `batch_maps` (those after `batch`) on each minibatch.
    """

    record_maps: tuple[Callable[..., Any], ...] = ()
    batch_maps: tuple[Callable[..., Any], ...] = ()
    shuffled: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the plain pipeline draws: `seed` for shuffles; `one_by_one` if its maps draw too."""

    seed: int = 0
    one_by_one: bool = False


@contextmanager
def seeds_reaching_into_maps() -> Iterator[None]:
    """Keep TensorFlow from warning that a seed set outside of a map is used in it: it shall be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Seed .* from outer graph", UserWarning)
        yield


class NotedDataset(tf.data.Dataset):  # type: ignore[misc]  # tensorflow has no types
    """A dataset over a plain pipeline that notes `map`, `shuffle` and `batch` beside it.

    Every method works as TensorFlow's own: the plain pipeline is always there. `noted` is None
    once a method was used that is more than maps, a shuffle and a batch.

    Attributes:
        plain: The pipeline that TensorFlow would run.
        noted: The same in a form that can run for a whole minibatch at once, or None.
        why: What ended the notes.
        batch_size: Size of `batch`, if the pipeline's elements are minibatches.
    """

    def __init__(
        self,
        plain: Any,
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

    def _inputs(self) -> list[Any]:
        return [self.plain]

    @property
    def element_spec(self) -> Any:
        """The structure of an element, as the plain pipeline says."""
        return self.plain.element_spec

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        **kwargs: Any,
    ) -> NotedDataset:
        """Note `map_func`; the order of elements is kept whatever `deterministic` says."""
        if self._drawing.one_by_one:
            num_parallel_calls = None
        with seeds_reaching_into_maps():
            plain = self.plain.map(map_func, num_parallel_calls, **kwargs)
        noted = self.noted
        if noted is not None and self.batch_size is None:
            noted = replace(noted, record_maps=(*noted.record_maps, map_func))
        elif noted is not None:
            noted = replace(noted, batch_maps=(*noted.batch_maps, map_func))
        return self._with(plain, noted=noted)

    def shuffle(self, buffer_size: Any, *args: Any, **kwargs: Any) -> NotedDataset:
        """Note a shuffle of all records of a task; the plain one is seeded by the task."""
        plain = self.plain.shuffle(
            buffer_size, seed=self._drawing.seed, reshuffle_each_iteration=False
        )
        if self.batch_size is not None:
            return self._with(plain, noted=None, why="it shuffles minibatches")
        noted = None if self.noted is None else replace(self.noted, shuffled=True)
        return self._with(plain, noted=noted)

    def batch(
        self, batch_size: Any, drop_remainder: bool = False, *args: Any, **kwargs: Any
    ) -> NotedDataset:
        """Note that `feed` makes minibatches itself."""
        self._keep_remainder(drop_remainder)
        plain = self.plain.batch(batch_size, False, *args, **kwargs)
        noted = self.noted if self.batch_size is None else None
        return self._with(plain, noted=noted, batch_size=int(batch_size), why="it uses batch twice")

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> NotedDataset:
        """Run as the plain pipeline: how far to pad depends on all records of a minibatch."""
        self._keep_remainder(drop_remainder)
        plain = self.plain.padded_batch(batch_size, padded_shapes, padding_values, False, name)
        return self._with(
            plain, noted=None, batch_size=int(batch_size), why="it uses dataset.padded_batch"
        )

    def ragged_batch(
        self, batch_size: Any, drop_remainder: bool = False, *args: Any, **kwargs: Any
    ) -> NotedDataset:
        """Run as the plain pipeline."""
        self._keep_remainder(drop_remainder)
        plain = self.plain.ragged_batch(batch_size, False, *args, **kwargs)
        return self._with(
            plain, noted=None, batch_size=int(batch_size), why="it uses dataset.ragged_batch"
        )

    def unbatch(self, name: str | None = None) -> NotedDataset:
        """Run as the plain pipeline, whose elements are records again."""
        done = self._with(self.plain.unbatch(name), noted=None, why="it uses dataset.unbatch")
        done.batch_size = None
        return done

    def repeat(self, count: Any = None, name: str | None = None) -> NotedDataset:
        """Refuse: a task's records are trained once, epochs are counted by the job."""
        if count == 1:
            return self
        raise ModelError(
            f"feed calls dataset.repeat({'' if count is None else count}): elasticdl trains each "
            "record once an epoch; leave it out and say --num_epochs"
        )

    def prefetch(self, *args: Any, **kwargs: Any) -> NotedDataset:
        """Do nothing: a worker prepares minibatches ahead of the step by itself."""
        return self

    def cache(self, *args: Any, **kwargs: Any) -> NotedDataset:
        """Do nothing: what one task's records gave must not be given for another's."""
        return self

    def with_options(self, options: Any, name: str | None = None) -> NotedDataset:
        """Pass the options to the plain pipeline; they change no minibatch."""
        return self._with(self.plain.with_options(options, name), noted=self.noted)

    def _with(
        self, plain: Any, noted: Noted | None, batch_size: int | None = None, why: str = ""
    ) -> NotedDataset:
        return NotedDataset(
            plain,
            self._drawing,
            noted,
            self.batch_size if batch_size is None else batch_size,
            self.why or (why if noted is None else ""),
        )

    def _keep_remainder(self, drop_remainder: bool) -> None:
        if drop_remainder:
            raise ModelError(
                "feed batches with drop_remainder=True, which loses the last records of each "
                "task; leave it out (or the whole batch: elasticdl makes the minibatches)"
            )


def _passed_on(name: str) -> Callable[..., Any]:
    """Make a method that runs on the plain pipeline and ends the notes."""

    def method(self: NotedDataset, *args: Any, **kwargs: Any) -> Any:
        plain = getattr(self.plain, name)(*args, **kwargs)
        return self._with(plain, noted=None, why=f"it uses dataset.{name}")

    method.__name__ = name
    method.__doc__ = f"Run `{name}` as the plain pipeline does."
    return method


PASSED_ON = (
    "bucket_by_sequence_length",
    "concatenate",
    "enumerate",
    "filter",
    "flat_map",
    "group_by_window",
    "ignore_errors",
    "interleave",
    "rebatch",
    "rejection_resample",
    "scan",
    "shard",
    "skip",
    "take",
    "take_while",
    "unique",
    "window",
)
for _name in PASSED_ON:
    setattr(NotedDataset, _name, _passed_on(_name))
