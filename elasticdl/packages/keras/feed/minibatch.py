"""A minibatch as compiled functions like it: flat tensors, and how they fold into structures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from elasticdl.backends.base import Int64, Minibatch
from elasticdl.job import Mode
from elasticdl.packages.keras.types import Nested, Specs


class Structure:
    """The structure of a minibatch of `feed`: the nesting of its parts, their shapes and dtypes.

    Attributes:
        features: Nested `TypeSpec`s of the features; the first dimension is the record.
        labels: The same for the labels, or None in PREDICTION.
        weights: The same for the sample weights, or None if `feed` gives none.
        key: Equal for equal structures.
        specs: The `TensorSpec`s of a minibatch of any size, sparse and ragged ones taken apart.
    """

    def __init__(self, features: Specs, labels: Specs = None, weights: Specs = None) -> None:
        self.features = features
        self.labels = labels
        self.weights = weights
        parts = [_components(features), _components(labels), _components(weights)]
        self.specs: list[tf.TensorSpec] = [spec for part in parts for spec in part]
        self._ends = list(itertools.accumulate(map(len, parts)))
        # A dict of specs cannot be hashed, and its text can.
        self.key = repr((features, labels, weights))

    @classmethod
    def of(cls, features: Nested, labels: Nested = None, weights: Nested = None) -> Structure:
        """Return the structure of minibatches like this one, with any number of records."""

        def relaxed(value: tf.Tensor) -> tf.TypeSpec:
            spec = tf.type_spec_from_value(value)
            return (
                tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
                if isinstance(spec, tf.TensorSpec)
                else spec._with_tensor_ranks_only()
                if hasattr(spec, "_with_tensor_ranks_only")
                else spec
            )

        def specs(part: Nested) -> Specs:
            return None if part is None else tf.nest.map_structure(relaxed, part)

        return cls(specs(features), specs(labels), specs(weights))

    @property
    def feature_specs(self) -> list[tf.TensorSpec]:
        """The part of `specs` that is features."""
        return self.specs[: self._ends[0]]

    def flatten(
        self, features: Nested, labels: Nested = None, weights: Nested = None
    ) -> tuple[tf.Tensor, ...]:
        """Take a minibatch apart into tensors, in the order of `specs`."""
        flat = tf.nest.flatten(features, expand_composites=True)
        for spec, part in ((self.labels, labels), (self.weights, weights)):
            if spec is not None:
                flat += tf.nest.flatten(part, expand_composites=True)
        return tuple(flat)

    def fold_features(self, tensors: Sequence[tf.Tensor]) -> Nested:
        """Put the features together again, from all tensors or only theirs."""
        parts = list(tensors[: self._ends[0]])
        return tf.nest.pack_sequence_as(self.features, parts, expand_composites=True)

    def fold_labels(self, tensors: Sequence[tf.Tensor]) -> Nested:
        """Put the labels together again, from all tensors."""
        parts = list(tensors[self._ends[0] : self._ends[1]])
        return tf.nest.pack_sequence_as(self.labels, parts, expand_composites=True)

    def fold_weights(self, tensors: Sequence[tf.Tensor]) -> Nested:
        """Put the sample weights together again, from all tensors; None if there are none."""
        if self.weights is None:
            return None
        parts = list(tensors[self._ends[1] : self._ends[2]])
        return tf.nest.pack_sequence_as(self.weights, parts, expand_composites=True)


@dataclass(frozen=True, slots=True)
class KerasMinibatch(Minibatch):
    """A minibatch with its tensors taken apart once, in the background, for compiled functions.

    `seed` drives what the model itself draws (dropout). `weights` are the sample weights, if
    `feed` gives any. `pulled` has the ids of each lookup, once they were asked for.
    """

    structure: Structure
    tensors: tuple[tf.Tensor, ...]
    mode: Mode
    seed: int
    weights: Nested = None
    pulled: list[Int64] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, minibatch: Minibatch) -> KerasMinibatch:
        """Return the minibatch itself if a `FeedRunner` made it; else (in tests) take it apart."""
        if isinstance(minibatch, cls):
            return minibatch
        features, labels = (
            None if part is None else tf.nest.map_structure(tf.convert_to_tensor, part)
            for part in (minibatch.features, minibatch.labels)
        )
        structure = Structure.of(features, labels)
        return cls(
            features=features,
            labels=labels,
            num_records=num_records(features),
            structure=structure,
            tensors=structure.flatten(features, labels),
            mode=Mode.PREDICTION if labels is None else Mode.TRAINING,
            seed=0,
        )


def num_records(structure: Nested) -> int:
    """Return how many records a minibatch's nested tensors hold."""
    return _num_rows(tf.nest.flatten(structure)[0])


def common_num_rows(structure: Nested) -> int | None:
    """Return how many rows each of a minibatch's tensors has; None if they differ."""
    counts = {_num_rows(leaf) for leaf in tf.nest.flatten(structure) if leaf is not None}
    return counts.pop() if len(counts) == 1 else None


def _num_rows(leaf: tf.Tensor) -> int:
    if isinstance(leaf, tf.SparseTensor):
        return int(leaf.dense_shape.numpy()[0])
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.row_splits.shape[0]) - 1
    return int(leaf.shape[0]) if len(leaf.shape) else -1


def describe(structure: Nested | Specs) -> str:
    """Say in one line what a nested structure of tensors or specs is made of."""

    def leaf(x: tf.Tensor | tf.TypeSpec) -> str:
        is_array = not isinstance(x.shape, tf.TensorShape)  # of NumPy or JAX
        is_plain = is_array or isinstance(x, tf.Tensor | tf.TensorSpec)
        kind = "" if is_plain else type(x).__name__ + " "
        is_known = is_array or x.shape.rank is not None
        return f"{kind}{x.dtype.name}{list(x.shape) if is_known else '[?]'}"

    if isinstance(structure, dict):
        return "{" + ", ".join(f"{k!r}: {describe(v)}" for k, v in structure.items()) + "}"
    if isinstance(structure, list | tuple):
        inner = ", ".join(describe(v) for v in structure)
        return f"({inner})"
    if structure is None:
        return "None"
    is_tensor = hasattr(structure, "dtype") and hasattr(structure, "shape")
    return leaf(structure) if is_tensor else type(structure).__name__


def _components(structure: Specs) -> list[tf.TensorSpec]:
    if structure is None:
        return []
    return [
        tf.TensorSpec(c.shape, c.dtype) for c in tf.nest.flatten(structure, expand_composites=True)
    ]
