"""The maps of a `feed` as one compiled function of raw records, traced once."""

from __future__ import annotations

import re
from collections.abc import Callable

import tensorflow as tf

from elasticdl.packages.keras.feed.converters import register_converters
from elasticdl.packages.keras.feed.dataset import Noted, seeds_reaching_into_maps, unpacked
from elasticdl.packages.keras.feed.records import RecordBatch, num_rows, spec_for_any_number
from elasticdl.packages.keras.model.function import StructuredFunction
from elasticdl.packages.keras.types import Nested, Specs

_DRAWS = re.compile(
    r"^(Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal"
    r"|Stateful(?!PartitionedCall)|Rng"
    r"|SampleDistortedBoundingBox|AnonymousSeedGenerator|.*CandidateSampler$)"
)


def compile_one_by_one(noted: Noted, sample: RecordBatch) -> StructuredFunction:
    """Return a function of raw records that runs the maps on one record after the other."""

    def run(records: Nested) -> Nested:
        count = num_rows(tf.nest.flatten(records)[0])
        dataset = tf.data.Dataset.from_tensor_slices(records)
        for function in noted.record_maps:
            dataset = dataset.map(function, tf.data.AUTOTUNE)
        dataset = dataset.batch(count)
        for function in noted.batch_maps:
            dataset = dataset.map(function)
        return dataset.get_single_element()

    return StructuredFunction(run, relaxed(sample.tensors()))


def compile_vectorised(noted: Noted, sample: RecordBatch) -> StructuredFunction:
    """Return a function of raw records that runs the maps on all of them at once.

    Raises:
        Exception: Any, if an operation has no vectorised form.
    """
    register_converters()

    def composed(
        functions: tuple[Callable[..., Nested], ...], context: object
    ) -> Callable[[Nested], Nested]:
        converted = [tf.__internal__.autograph.tf_convert(f, context) for f in functions]

        def apply(element: Nested) -> Nested:
            for function in converted:
                element = as_element(unpacked(function, element))
            return element

        unconverted: Callable[[Nested], Nested] = tf.autograph.experimental.do_not_convert(apply)
        return unconverted

    def run(records: Nested) -> Nested:
        context = tf.__internal__.autograph.control_status_ctx()  # that AutoGraph is on
        if noted.record_maps:
            per_record = composed(noted.record_maps, context)
            records = tf.vectorized_map(per_record, records, fallback_to_while_loop=False)
        return composed(noted.batch_maps, context)(records)

    return StructuredFunction(run, relaxed(sample.tensors()))


def as_element(result: Nested) -> Nested:
    """Make of a map's result what `tf.data` makes of it: lists are tensors, values are too."""
    if isinstance(result, tuple):
        made = tuple(map(as_element, result))
        return getattr(type(result), "_make", tuple)(made)  # a namedtuple stays one
    if isinstance(result, dict):
        return {key: as_element(value) for key, value in result.items()}
    if isinstance(result, tf.SparseTensor | tf.RaggedTensor | tf.Tensor):
        return result
    return tf.convert_to_tensor(result)


def relaxed(tensors: Nested) -> Specs:
    """Return the specs of tensors, for any number of records."""
    return tf.nest.map_structure(spec_for_any_number, tensors)


def draws_random_numbers(noted: Noted, sample: Nested) -> bool:
    """Say whether a map has operations that draw: each run of them gives something else."""

    def run(records: Nested) -> Nested:
        dataset = tf.data.Dataset.from_tensor_slices(records)
        for function in noted.record_maps:
            dataset = dataset.map(function)
        if noted.batch_maps:
            # A draw shows with a minibatch of one record as well.
            dataset = dataset.batch(1)
        for function in noted.batch_maps:
            dataset = dataset.map(function)
        return dataset._variant_tensor

    with seeds_reaching_into_maps():
        return has_draws(tf.function(run).get_concrete_function(sample).graph)


def has_draws(graph: tf.Graph) -> bool:
    """Say whether a function that a graph calls has operations that draw."""
    library = graph.as_graph_def().library.function
    return any(_DRAWS.match(node.op) for function in library for node in function.node_def)


def draws(graph: tf.Graph) -> bool:
    """Say whether a graph itself has operations that draw."""
    return any(_DRAWS.match(op.type) for op in graph.get_operations())
