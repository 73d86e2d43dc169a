"""The types of this room's values. TensorFlow and Keras have no stubs, so these names are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import keras
import tensorflow as tf

Nested: TypeAlias = "tf.Tensor | Sequence[Nested] | Mapping[str, Nested] | None"
"""Tensors in tuples, lists and dicts, as `feed` or a model makes them; also sparse, also ragged."""

Specs: TypeAlias = "tf.TypeSpec | Sequence[Specs] | Mapping[str, Specs] | None"
"""What such tensors are: their shapes and dtypes, in the same tuples, lists and dicts."""

Lookup: TypeAlias = "Callable[[keras.layers.Layer, tf.Tensor], tf.Tensor]"
"""Gives the rows of the ids with which an embedding layer is called."""

ConcreteFunction: TypeAlias = tf.types.experimental.ConcreteFunction
"""A function that is traced, for arguments of one structure."""
