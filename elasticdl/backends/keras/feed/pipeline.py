"""The plain pipeline of a `feed`, traced once and run for each task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf

from elasticdl.backends.keras.feed.compile import relaxed
from elasticdl.backends.keras.feed.dataset import seeds_reaching_into_maps
from elasticdl.backends.keras.feed.records import RecordBatch
from elasticdl.backends.keras.feed.user import UserFeed
from elasticdl.backends.keras.feed.vectorize import has_draws


class Pipeline:
    """A function of a task's records and its seed that gives the task's minibatches.

    To build a pipeline of three functions takes 40 to 75 ms of processor time, since TensorFlow
    traces each of them anew; to call this takes 12 to 40 ms.

    Attributes:
        draws: Whether a function of the user's draws random numbers. Then this is not to be used:
            it would go on drawing from where the task before stopped.
    """

    def __init__(self, user: UserFeed, sample: RecordBatch) -> None:
        def build(numbers: Any, records: Any, seed: Any) -> Any:
            drawing = replace(user.drawing(), seed=seed)
            with _autograph_in_maps():
                dataset = user.batched(user.of(numbers, records, drawing))
            self._element_spec = dataset.element_spec
            return tf.data.experimental.to_variant(dataset)

        specs = relaxed((tf.constant(sample.numbers), sample.tensors()))
        # Else a shuffle would depend on what was run before; 0 may not be, with a seed of a tensor.
        tf.random.set_seed(1)
        with seeds_reaching_into_maps():
            function = tf.function(build, autograph=False)
            self._build = function.get_concrete_function(*specs, tf.TensorSpec([], tf.int64))
        self.draws = has_draws(self._build.graph)

    def __call__(self, batch: RecordBatch, seed: int) -> Iterator[Any]:
        """Yield the minibatches of the records."""
        variant = self._build(
            tf.constant(batch.numbers), batch.tensors(), tf.constant(seed, tf.int64)
        )
        dataset = tf.data.experimental.from_variant(variant, self._element_spec)
        return iter(dataset.with_options(in_order()))


def _autograph_in_maps() -> Any:
    """Return the context in which `tf.data` converts functions, as where nothing is traced."""
    outer = tf.__internal__.autograph.control_status_ctx()
    return type(outer)(status=type(outer.status).ENABLED)


def built_anew(user: UserFeed, batch: RecordBatch, seed: int) -> Iterator[Any]:
    """Yield the minibatches of the records of a feed that draws: the same for the same seed."""
    tf.random.set_seed(seed)
    dataset = user.batched(user(batch, user.drawing(seed, one_by_one=True)))
    return iter(dataset.with_options(in_order()))


def in_order() -> Any:
    """Return the options with which a pipeline gives the same each time."""
    options = tf.data.Options()
    options.deterministic = True
    return options
