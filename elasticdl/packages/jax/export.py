"""The trained model on JAX as a SavedModel: what JAX has compiled, called by TensorFlow.

Tables, and variables, are TensorFlow's, as in the export of a model on TensorFlow; the rest is one
operation, `XlaCallModule`, of any number of records. A server of it needs neither Keras nor JAX.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf
from jax import export
from jax.experimental import jax2tf

from elasticdl.backends.average import as_numbers
from elasticdl.backends.base import Float32, TableSource
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.packages.jax.computation import JaxComputation
from elasticdl.packages.jax.lookups import JaxCollector
from elasticdl.packages.jax.placed import JaxModel
from elasticdl.packages.jax.step import GivenArrays, JaxInference
from elasticdl.packages.jax.variables import JaxVariables
from elasticdl.packages.keras.export import (
    NOTES,
    named_features,
    said_by_tensorflow,
    signatures_of,
)
from elasticdl.packages.keras.export_beside import DENSE, DESCRIPTION, MODEL, describe_beside
from elasticdl.packages.keras.exporter import ask_written, exporting, writing
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, Structure
from elasticdl.packages.keras.metrics.kinds import mask_of
from elasticdl.packages.keras.model.held import HeldVariables
from elasticdl.packages.keras.saved_tables import saved_table, write_rows
from elasticdl.packages.keras.types import Nested


def shape_of_any(shape: tf.TensorShape | Sequence[int | None], number: int) -> str:
    """Return a shape as JAX says it: `b` records, and a name for each other size that is free."""
    sizes = [str(size) if size is not None else f"d{number}_{k}" for k, size in enumerate(shape)]
    if sizes and shape[0] is None:
        sizes[0] = "b"
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def problem_of_any_size(placed: JaxModel, collector: JaxCollector, inferred: KerasMinibatch) -> str:
    """Say why the model cannot be traced for any number of records; "" if it can.

    Args:
        placed: The model.
        collector: Its lookups in inference.
        inferred: A minibatch of inference.
    """
    seed = jnp.zeros([], jnp.uint32)
    inference = JaxInference(placed, collector.tables, inferred.structure)
    try:
        features = _features_of_any(inferred.structure)
        rows = _rows_of_any(placed, collector, features)
        sizes = placed.dense.size, placed.state.size
        dense, state = (jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes)
        jax.eval_shape(inference.compute, GivenArrays(rows, dense, state, seed, features))
    except Exception as error:  # of code of the user, Keras or JAX
        return plain(error)
    return ""


def _features_of_any(structure: Structure) -> list[jax.ShapeDtypeStruct]:
    """Return features of any number of records, without values."""
    # Sizes of one name are the same size only within one scope.
    scope = export.SymbolicScope()
    return [
        jax.ShapeDtypeStruct(
            export.symbolic_shape(shape_of_any(spec.shape, k), scope=scope),
            spec.dtype.as_numpy_dtype,
        )
        for k, spec in enumerate(structure.feature_specs)
    ]


def _rows_of_any(
    placed: JaxModel, collector: JaxCollector, features: Sequence[jax.ShapeDtypeStruct]
) -> list[jax.ShapeDtypeStruct]:
    """Return the rows of each lookup; their sizes follow from those of the features."""
    # Ids are computed with 64 bits, as in a step.
    with jax.enable_x64(True):
        ids = jax.eval_shape(collector.ids_of_all, jnp.zeros([], jnp.uint32), *features)
    return [
        jax.ShapeDtypeStruct((*one.shape, placed.tables[table].dim), jnp.float32)
        for one, table in zip(ids, collector.tables, strict=True)
    ]


def plain(error: Exception) -> str:
    """Return the words of an error on one line, without what Keras prints in bold."""
    return " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())[:500]


# An export may be served on another kind of machine than the one that trained the model.
_PLATFORMS = ("cpu", "cuda")


class ServedByTensorFlow(tf.Module):  # type: ignore[misc]  # tensorflow has no types
    """A model on JAX as functions of TensorFlow, with the values given.

    Args:
        placed: The model.
        collector: Its lookups in inference.
        sample: A minibatch like the ones that are served.
        dense: The values of its variables.
        state: The values of its variables that are not trained.
    """

    def __init__(
        self,
        placed: JaxModel,
        collector: JaxCollector,
        sample: KerasMinibatch,
        dense: Float32,
        state: Float32,
    ) -> None:
        super().__init__()
        self.dense = _variables(placed.dense, dense)
        self.state = _variables(placed.state, state)
        self._structure = sample.structure
        self._collector = collector
        self._inference = JaxInference(placed, collector.tables, sample.structure)
        self._seed = np.uint32(0)
        # These are the sizes that an array may have: the number of records is free.
        self._shapes = [shape_of_any(spec.shape, k) for k, spec in enumerate(self._specs)]
        rows = _rows_of_any(placed, collector, _features_of_any(sample.structure))
        self._shapes_of_rows = [f"({', '.join(map(str, part.shape))})" for part in rows]

    @property
    def _specs(self) -> Sequence[tf.TensorSpec]:
        return self._structure.feature_specs

    def ids_of(self, features: Nested) -> list[tf.Tensor]:
        """Return the ids of each lookup, int64."""
        flat = tf.nest.flatten(features)
        computed: Sequence[tf.Tensor] = []
        if any(site.feature is None for site in self._collector.sites):
            # Ids keep their 64 bits; otherwise JAX cuts them to 32.
            with jax.enable_x64(True):
                compute = self._converted(self._collector.computed, [None, *self._shapes])
                computed = compute(tf.constant(self._seed), *flat)
        others = iter(computed)
        return [
            next(others) if site.feature is None else tf.cast(flat[site.feature], tf.int64)
            for site in self._collector.sites
        ]

    def outputs_of(self, features: Nested, rows: Sequence[tf.Tensor]) -> Nested:
        """Return what the model gives for features and the rows of each lookup."""
        num_dense, num_state = len(self.dense), len(self.state)

        def infer(*arrays: jax.Array) -> list[jax.Array]:
            ends = np.cumsum([num_dense, num_state, len(rows)]).tolist()
            dense, state, given, flat = (list(part) for part in _cut(arrays, ends))
            placed = self._inference.placed
            vectors = placed.dense.join(dense), placed.state.join(state)
            outputs, _ = self._inference.compute(GivenArrays(given, *vectors, self._seed, flat))
            return list(outputs.leaves)

        shapes = [None] * (num_dense + num_state) + self._shapes_of_rows + self._shapes
        call = self._converted(infer, shapes)
        flat = call(*self.dense, *self.state, *rows, *tf.nest.flatten(features))
        return keras.tree.pack_sequence_as(self._inference.structure_of_outputs, list(flat))

    @staticmethod
    def _converted(
        function: Callable[..., object], shapes: Sequence[str | None]
    ) -> Callable[..., list[tf.Tensor]]:
        converted: Callable[..., list[tf.Tensor]] = jax2tf.convert(
            function,
            polymorphic_shapes=list(shapes),
            # A served model computes no gradients, so the export has none.
            with_gradient=False,
            native_serialization_platforms=_PLATFORMS,
        )
        return converted


def export_inside(
    placed: JaxModel,
    collector: JaxCollector,
    sample: KerasMinibatch,
    directory: Path,
    dense: Float32,
    state: Float32,
    tables: TableSource,
) -> None:
    """Write the model with its tables; see `keras/export.py`."""
    served = ServedByTensorFlow(placed, collector, sample, dense, state)
    saved = [saved_table(table) for table in placed.tables]

    def serve(features: Nested) -> Nested:
        pairs = zip(collector.tables, served.ids_of(features), strict=True)
        return served.outputs_of(features, [saved[table](ids) for table, ids in pairs])

    specs = named_features(sample.structure, placed.model)
    served.serve = tf.function(serve, input_signature=[specs], autograph=False)
    served.tables = saved
    signatures = signatures_of(served.serve, specs)
    tf.saved_model.save(served, str(directory), signatures=signatures)
    if saved:
        write_rows(saved, tables, directory)
    notes = directory / NOTES
    notes.parent.mkdir(exist_ok=True)
    has_masks = any(mask_of(leaf) is not None for leaf in keras.tree.flatten(placed.sample_outputs))
    notes.write_text(json.dumps({"output_names": placed.output_names, "has_masks": has_masks}))


def export_with_rows_beside(
    placed: JaxModel,
    collector: JaxCollector,
    sample: KerasMinibatch,
    directory: Path,
    dense: Float32,
    state: Float32,
) -> None:
    """Write all of the model but its rows; see `keras/export_beside.py`."""
    served = ServedByTensorFlow(placed, collector, sample, dense, state)
    specs = named_features(sample.structure, placed.model)
    served.ids = tf.function(served.ids_of, input_signature=[specs], autograph=False)
    shapes = [ids.shape for ids in served.ids.get_concrete_function().structured_outputs]
    rows = [
        tf.TensorSpec([*shape, placed.tables[table].dim], tf.float32)
        for shape, table in zip(shapes, collector.tables, strict=True)
    ]
    served.score = tf.function(served.outputs_of, input_signature=[specs, rows], autograph=False)
    tf.saved_model.save(served, str(directory / MODEL))
    values = {v.path: value for v, value in _named(placed, served)}
    np.savez(directory / DENSE, allow_pickle=False, **values)
    description = describe_beside(placed, collector.tables)
    (directory / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


def problem_in_tensorflow(placed: JaxModel, collector: JaxCollector, sample: KerasMinibatch) -> str:
    """Say why TensorFlow cannot run what JAX has compiled of the model; "" if it can."""
    dense, state = placed.dense.values(), placed.state.values()
    served = ServedByTensorFlow(placed, collector, sample, dense, state)

    def zeros(ids: tf.Tensor, dim: int) -> tf.Tensor:
        rows = tf.zeros(tf.concat([tf.shape(ids), [dim]], 0))
        # Zeros in the shape of a tensor have no static shape, and `outputs_of` reads the static
        # one.
        return tf.ensure_shape(rows, [*ids.shape, dim])

    def call(features: Nested) -> Nested:
        pairs = zip(served.ids_of(features), collector.tables, strict=True)
        rows = [zeros(ids, placed.tables[table].dim) for ids, table in pairs]
        return served.outputs_of(features, rows)

    specs = named_features(sample.structure, placed.model)
    try:
        with compiling_for_any_size():
            tf.function(call, input_signature=[specs], autograph=False)(sample.features)
    except (tf.errors.OpError, ModelError) as error:
        return said_by_tensorflow(error)
    return ""


@contextmanager
def compiling_for_any_size() -> Iterator[None]:
    """Raise a plain error if JAX cannot compile a model for any number of records.

    Raises:
        ModelError: It cannot.
    """
    try:
        yield
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ModelError(
            "--output: JAX cannot compile the model for any number of records, as one that is "
            f"served needs it: {plain(error)}"
        ) from error


def _variables(group: JaxVariables, flat: Float32) -> list[tf.Variable]:
    return [
        tf.Variable(np.asarray(value), trainable=False, name=variable.name)
        for variable, value in group.split(jax.numpy.asarray(flat))
    ]


def _named(placed: JaxModel, served: ServedByTensorFlow) -> list[tuple[keras.Variable, Array]]:
    variables = [*placed.dense.variables, *placed.state.variables]
    held = [*served.dense, *served.state]
    return [(v, as_numbers(one.numpy())) for v, one in zip(variables, held, strict=True)]


def _cut(arrays: Sequence[jax.Array], ends: Sequence[int]) -> list[Sequence[jax.Array]]:
    starts = [0, *ends]
    stops = [*ends, len(arrays)]
    return [arrays[start:stop] for start, stop in zip(starts, stops, strict=True)]


class JaxExporter:
    """The `Exporter` of a model that JAX computes.

    Args:
        placed: The model.
        computed: Computes it.
        sample: A minibatch of it.
        held: Its variables.
    """

    def __init__(
        self,
        placed: JaxModel,
        computed: JaxComputation,
        sample: KerasMinibatch,
        held: HeldVariables,
    ) -> None:
        self._placed = placed
        self._computed = computed
        # A served model runs in inference, and its lookups are those of inference.
        self._sample = replace(sample, mode=Mode.PREDICTION)
        self._held = held

    def check(self, beside: bool) -> None:
        """Look whether the model can be exported; see `ChecksExport`."""
        with exporting(self._held):
            found = self._computed.collected(self._sample)
            if problem := problem_of_any_size(self._placed, found, self._sample):
                raise ModelError(
                    "--output could not export this model: JAX cannot trace it for any number of "
                    f"records, as one that is served needs it: {problem}. Take the sizes of shapes "
                    "from keras.ops.shape(x), say -1 in a reshape, or KERAS_BACKEND=tensorflow"
                )
            if problem := problem_in_tensorflow(self._placed, found, self._sample):
                raise ModelError(
                    "--output could not export this model: TensorFlow, which runs what is "
                    f"exported, cannot run what JAX compiles of it: {problem}. Write it with other "
                    "operations, or KERAS_BACKEND=tensorflow"
                )

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write a SavedModel that serves without elasticdl, Keras or JAX; see `Trainer.export`."""
        with writing(directory), exporting(self._held):
            collector = self._computed.collected(self._sample)
            given = self._placed, collector, self._sample, directory, dense, state
            with compiling_for_any_size():
                if tables is None:
                    export_with_rows_beside(*given)
                else:
                    export_inside(*given, tables)
            ask_written(directory, self._sample, beside=tables is None)
