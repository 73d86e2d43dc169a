"""A Keras model as an export has it: a SavedModel that takes rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.average import as_numbers
from elasticdl.backends.base import Float32, Int64
from elasticdl.backends.served import (
    FeatureSpec,
    not_scored,
    num_ids,
    outputs_by_name,
    parts,
)
from elasticdl.data.strings import Array
from elasticdl.errors import ExportError
from elasticdl.packages.keras.export_beside import DESCRIPTION, MODEL
from elasticdl.packages.keras.types import Nested, Specs


class KerasServed:
    """`ServedModel` of a SavedModel."""

    def __init__(self, folder: Path) -> None:
        """Load it.

        Raises:
            ExportError: It cannot be loaded, or takes what no request can say.
        """
        self._folder = folder
        try:
            self._model = tf.saved_model.load(str(folder / MODEL))
            described = json.loads((folder / DESCRIPTION).read_text())
            self._outputs, self.lookups = described["outputs"], described["lookups"]
            self.num_ids = num_ids(described["tables"])
        except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
            raise ExportError(f"{folder}: the model cannot be loaded: {error}") from error
        (self._specs,), _ = self._model.ids.concrete_functions[0].structured_input_signature
        self.features = _features(self._specs, folder)
        self._shapes = (_shapes(self._model.dense), _shapes(self._model.state))

    def set_parameters(self, dense: Float32, state: Float32) -> None:
        """See `ServedModel`."""
        groups = (self._model.dense, self._model.state)
        values_of_groups = parts(self._folder, self._shapes, dense, state)
        for group, values in zip(groups, values_of_groups, strict=True):
            for variable, value in zip(group, values, strict=True):
                # A mean over workers may be a little less than the integer that it stands for.
                whole = np.round(value) if variable.dtype.is_integer else value
                variable.assign(tf.cast(whole, variable.dtype))

    def ids(self, features: Mapping[str, Array]) -> list[Int64]:
        """See `ServedModel`."""
        found = _called(self._model.ids, self._given(features))
        return [np.ascontiguousarray(ids.numpy(), np.int64) for ids in found]

    def score(self, features: Mapping[str, Array], rows: Sequence[Float32]) -> dict[str, Array]:
        """See `ServedModel`."""
        given = [tf.constant(of_site) for of_site in rows]
        outputs = _called(self._model.score, self._given(features), given)
        named = outputs_by_name(outputs, self._outputs)
        return {name: as_numbers(value) for name, value in named.items()}

    def _given(self, features: Mapping[str, Array]) -> Nested:
        if isinstance(self._specs, dict):
            return {
                name: tf.constant(features[name], spec.dtype) for name, spec in self._specs.items()
            }
        (value,) = features.values()
        return tf.constant(value, self._specs.dtype)


def _called(function: Callable[..., Any], *given: object) -> Any:
    try:
        return function(*given)
    except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
        raise not_scored(error) from error


def _shapes(variables: Sequence[keras.Variable]) -> list[list[int]]:
    return [[int(n) for n in variable.shape] for variable in variables]


def _features(specs: Specs, folder: Path) -> list[FeatureSpec]:
    named: Mapping[str, tf.TensorSpec] = (
        dict(sorted(specs.items()))
        if isinstance(specs, dict)
        else {getattr(specs, "name", "") or "features": specs}
    )
    wrong = [name for name, spec in named.items() if not isinstance(spec, tf.TensorSpec)]
    if wrong:
        raise ExportError(
            f"{folder}: feature {wrong[0]!r} is {named[wrong[0]]}; only dense tensors can be asked "
            "for over HTTP"
        )
    return [
        FeatureSpec(
            name,
            "str" if spec.dtype == tf.string else spec.dtype.name,
            tuple(None if n is None else int(n) for n in spec.shape.as_list()[1:]),
        )
        for name, spec in named.items()
    ]
