"""Minibatches as JAX takes them: dense NumPy arrays of numbers, in the nesting that `feed` gives.

JAX computes with 32 bits. A whole number of 64 bits is refused where a step would cut it off; ids
are looked up with all of their bits (`lookups.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Minibatch
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, Structure
from elasticdl.packages.keras.types import Specs

log = logging.getLogger(__name__)

_MANY_SHAPES = 8
_INT32 = np.iinfo(np.int32)
_UINT32 = np.iinfo(np.uint32)


def as_arrays(minibatch: Minibatch) -> KerasMinibatch:
    """Return a minibatch with arrays alone, as which it may have been given."""
    taken = KerasMinibatch.of(minibatch)
    is_done = all(isinstance(tensor, np.ndarray) for tensor in taken.tensors)
    return taken if is_done else in_arrays(taken)


def in_arrays(minibatch: KerasMinibatch) -> KerasMinibatch:
    """Return a minibatch whose tensors are arrays.

    Raises:
        ModelError: `feed` gives what JAX has no arrays for.
    """
    structure = minibatch.structure
    for name, spec in _leaves(structure):
        _check(spec, name)
    tensors = tuple(np.asarray(tensor) for tensor in minibatch.tensors)
    return replace(
        minibatch,
        tensors=tensors,
        features=structure.fold_features(tensors),
        labels=None if structure.labels is None else structure.fold_labels(tensors),
        weights=structure.fold_weights(tensors),
    )


def _leaves(structure: Structure) -> Iterator[tuple[str, tf.TypeSpec]]:
    """Yield the name and specification of each tensor, in the order of `tf.nest`."""
    parts = {"features": structure.features, "labels": structure.labels}
    for what, part in {**parts, "sample weights": structure.weights}.items():
        if part is not None:
            yield from _within(part, what)


def _within(part: Specs, name: str) -> Iterator[tuple[str, tf.TypeSpec]]:
    if isinstance(part, Mapping):
        # `tf.nest` takes the parts of a dict in the order of its sorted keys.
        for key in sorted(part):
            yield from _within(part[key], f"{name} {key}")
    elif isinstance(part, list | tuple):
        for number, one in enumerate(part):
            yield from _within(one, f"{name} {number}")
    else:
        yield name, part


def _check(spec: tf.TypeSpec, what: str) -> None:
    if not isinstance(spec, tf.TensorSpec):
        kind = type(spec).__name__.removesuffix("Spec")
        raise ModelError(
            f"feed gives a tf.{kind} ({what}), and JAX has dense arrays alone: make one in feed, "
            "such as by to_tensor(shape=...) or padded_batch, or say KERAS_BACKEND=tensorflow"
        )
    if spec.dtype == tf.string:
        raise ModelError(
            f"feed gives strings ({what}), and JAX has none: make numbers of them in feed, such as "
            "by tf.strings.to_hash_bucket_fast or keras.layers.StringLookup, or say "
            "KERAS_BACKEND=tensorflow"
        )


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """The names of a structure's tensors, in their order."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, structure: Structure) -> FeatureNames:
        """Name features, labels and weights."""
        return cls(tuple(name for name, _ in _leaves(structure)))

    def check(self, tensors: Sequence[Array], are_used: Sequence[bool]) -> None:
        """Refuse whole numbers that a step would cut off to 32 bits.

        Raises:
            ModelError: Names the feature.
        """
        for name, array, is_used in zip(self.names, tensors, are_used, strict=True):
            # The step does not use some features, such as ids. These may be larger.
            if not is_used or array.dtype not in (np.int64, np.uint64) or not array.size:
                continue
            limits = _INT32 if array.dtype == np.int64 else _UINT32
            low, high = int(array.min()), int(array.max())
            if low < limits.min or high > limits.max:
                raise ModelError(
                    f"{name} has the number {low if low < limits.min else high}, and JAX computes "
                    f"with {limits.dtype.name}: only ids of tables may be larger. Make it smaller "
                    "in feed (as a float, or by a modulus), or say KERAS_BACKEND=tensorflow"
                )


class ShapesSeen:
    """Counts the shapes of minibatches: for each of them a step is compiled."""

    def __init__(self) -> None:
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()

    def note(self, tensors: Sequence[Array]) -> None:
        """Note the shapes of a minibatch; say so once if there are many."""
        shapes = tuple(array.shape for array in tensors)
        if shapes in self._shapes:
            return
        self._shapes.add(shapes)
        if len(self._shapes) != _MANY_SHAPES:
            return
        of_records = {tuple(shape[1:] for shape in each) for each in self._shapes}
        log.warning(
            "minibatches have %d different shapes so far, and JAX compiles a step for each of "
            "them; expected one, and another at the end of a shard: %s",
            len(self._shapes),
            "leave no records out in feed"
            if len(of_records) == 1
            else "pad lists to one width in feed, such as by to_tensor(shape=...)",
        )
