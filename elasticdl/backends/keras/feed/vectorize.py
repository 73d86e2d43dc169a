"""Whether a user's maps may run on all records at once."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import tensorflow as tf

from elasticdl.backends.keras.feed.converters import CONVERTERS
from elasticdl.backends.keras.feed.dataset import Noted, seeds_reaching_into_maps

_DRAWS = re.compile(
    r"^(Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal"
    r"|Stateful(?!PartitionedCall)|Rng"
    r"|SampleDistortedBoundingBox|AnonymousSeedGenerator|.*CandidateSampler$)"
)


def draws_random_numbers(noted: Noted, sample: Any) -> bool:
    """Say whether a map has operations that draw: each run of them gives something else."""

    def run(records: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(records)
        for function in noted.record_maps:
            dataset = dataset.map(function)
        if noted.batch_maps:
            dataset = dataset.batch(1)
        for function in noted.batch_maps:
            dataset = dataset.map(function)
        return dataset._variant_tensor

    with seeds_reaching_into_maps():
        return has_draws(tf.function(run).get_concrete_function(sample).graph)


def has_draws(graph: Any) -> bool:
    """Say whether a function that a graph calls has operations that draw."""
    library = graph.as_graph_def().library.function
    return any(_DRAWS.match(node.op) for function in library for node in function.node_def)


def draws(graph: Any) -> bool:
    """Say whether a graph itself has operations that draw."""
    return any(_DRAWS.match(op.type) for op in graph.get_operations())


@cache
def register_converters() -> None:
    """Teach `tf.vectorized_map` operations that TensorFlow has no converter for."""
    try:
        from tensorflow.python.ops.parallel_for import pfor
    except ImportError:  # not a public module; without it more feeds run record by record
        return
    for name, converter in CONVERTERS.items():
        try:
            pfor.RegisterPFor(name)(partial(converter, pfor))
        except (AssertionError, KeyError, ValueError):  # TensorFlow has its own by now
            continue
