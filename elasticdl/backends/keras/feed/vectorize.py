"""Whether a user's maps may run on all records at once, and whether they then give the same."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from elasticdl.backends.keras.feed.dataset import Noted, seeds_reaching_into_maps
from elasticdl.backends.keras.feed.minibatch import describe

ULPS = 16
_DRAWS = re.compile(
    r"^(Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|Stateful|Rng"
    r"|SampleDistortedBoundingBox|AnonymousSeedGenerator|.*CandidateSampler$)"
)
_ELEMENTWISE = (
    "AsString",
    "RegexFullMatch",
    "RegexReplace",
    "StaticRegexFullMatch",
    "StaticRegexReplace",
    "StringLength",
    "StringLower",
    "StringStrip",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "StringToNumber",
    "StringUpper",
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
        graph = tf.function(run).get_concrete_function(sample).graph
    library = graph.as_graph_def().library.function
    return any(_DRAWS.match(node.op) for function in library for node in function.node_def)


def same(expected: Any, found: Any) -> str:
    """Compare two minibatches: floats to a few units in the last place, all else exactly.

    Returns:
        What differs, or an empty string.
    """
    try:
        tf.nest.assert_same_structure(expected, found)
    except (TypeError, ValueError):
        return f"{describe(found)} instead of {describe(expected)}"
    pairs = zip(
        tf.nest.flatten(expected, expand_composites=True),
        tf.nest.flatten(found, expand_composites=True),
        strict=True,
    )
    for a, b in pairs:
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{describe(b)} instead of {describe(a)}"
        if not _equal(a.numpy(), b.numpy()):
            return f"other values in {describe(a)}"
    return ""


def _equal(a: Any, b: Any) -> bool:
    if not np.issubdtype(a.dtype, np.inexact):
        return bool(np.array_equal(a, b))
    if not a.size:
        return True
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    a, b = a[finite].astype(np.float64), b[finite].astype(np.float64)
    # A difference of large numbers has the rounding of those: hence the largest of the array.
    largest = np.abs(a).max(initial=0.0)
    epsilon = float(np.finfo(np.float32).eps)
    return bool(np.all(np.abs(a - b) <= ULPS * epsilon * np.maximum(np.abs(a), 0.1 * largest)))


@cache
def register_converters() -> None:
    """Teach `tf.vectorized_map` string operations that treat each element by itself.

    TensorFlow has no converter for them; for an operation that maps every element of its first
    input, whatever the shape, the converter is the operation itself. `DecodeRaw` is one more as
    long as the strings are equally long, and says so if they are not.
    """
    try:
        from tensorflow.python.framework import op_def_registry
        from tensorflow.python.ops.parallel_for import pfor
    except ImportError:  # not a public module; without it more feeds run record by record
        return

    def convert(pfor_input: Any) -> Any:
        op = pfor_input.op
        inputs = [pfor_input.stacked_input(0)]
        inputs += [pfor_input.unstacked_input(i) for i in range(1, len(op.inputs))]
        definition = op_def_registry.get(op.type)
        attrs = {a.name: op.get_attr(a.name) for a in definition.attr}
        names = [argument.name for argument in definition.input_arg]
        raw = getattr(tf.raw_ops, op.type)
        return pfor.wrap(raw(**dict(zip(names, inputs, strict=True)), **attrs), True)

    for name in (*_ELEMENTWISE, "DecodeRaw"):
        try:
            pfor.RegisterPFor(name)(convert)
        except (AssertionError, KeyError, ValueError):  # TensorFlow has its own by now
            continue
