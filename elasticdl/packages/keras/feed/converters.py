"""Operations that `tf.vectorized_map` has no form of: how each runs on all records at once.

A converter is given the module of TensorFlow that converts, which has no public name, and an
operation with its converted inputs. If a converter raises, the feed takes the compiled way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import tensorflow as tf


class Pfor(Protocol):
    """The module of TensorFlow that converts, as far as it is used here."""

    def wrap(self, tensor: tf.Tensor, is_stacked: bool) -> object:
        """Return what a converter gives: a tensor, and whether it has a value for each record."""


class Given(Protocol):
    """An operation with its converted inputs."""

    op: tf.Operation
    num_inputs: int

    def input(self, number: int) -> Wrapped:
        """Return an input, whatever it is."""

    def stacked_input(self, number: int) -> tf.Tensor:
        """Return an input that has a value for each record."""

    def unstacked_input(self, number: int) -> tf.Tensor:
        """Return an input that is the same for all records."""


class Wrapped(Protocol):
    """A converted tensor."""

    t: tf.Tensor
    is_stacked: bool


Converter = Callable[[Pfor, Given], object]
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
UNEVEN = "the strings of the records split into different numbers of parts"


def _elementwise(pfor: Pfor, given: Given) -> object:
    """Run an operation that maps each element, of any shape, on all records at once.

    `DecodeRaw` is one of them as long as the strings are equally long, and says so if they are not.
    """
    inputs = [given.stacked_input(0)]
    inputs += [given.unstacked_input(number) for number in range(1, given.num_inputs)]
    return _wrapped(pfor, given, inputs)


def _substr(pfor: Pfor, given: Given) -> object:
    """Cut all strings at one place."""
    place, length = given.unstacked_input(1), given.unstacked_input(2)
    if place.shape.rank != 0 or length.shape.rank != 0:
        raise ValueError("No pfor vectorization defined for Substr at several places")
    return _wrapped(pfor, given, [given.stacked_input(0), place, length])


def _find(pfor: Pfor, given: Given) -> object:
    """Look all keys up in one table."""
    inputs = [given.unstacked_input(0), given.stacked_input(1), given.unstacked_input(2)]
    return _wrapped(pfor, given, inputs)


def _join(pfor: Pfor, given: Given) -> object:
    """Join strings of equal shapes, and scalars that are the same for all records."""
    inputs = [given.input(number) for number in range(given.num_inputs)]
    ranks = {one.t.shape.rank for one in inputs if one.is_stacked}
    if len(ranks) != 1 or any(one.t.shape.rank != 0 for one in inputs if not one.is_stacked):
        raise ValueError("No pfor vectorization defined for StringJoin of several shapes")
    separator = given.op.get_attr("separator")
    joined = tf.raw_ops.StringJoin(inputs=[one.t for one in inputs], separator=separator)
    return pfor.wrap(joined, True)


def _wrapped(pfor: Pfor, given: Given, inputs: list[tf.Tensor]) -> object:
    """Run the operation itself on other inputs."""
    # Only this module, which is not public, has the names of an operation's inputs.
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(given.op.type)
    raw = getattr(tf.raw_ops, given.op.type)
    named = dict(zip([one.name for one in definition.input_arg], inputs, strict=True))
    known = inspect.signature(raw).parameters  # types are not among them where inputs tell them
    named |= {one.name: given.op.get_attr(one.name) for one in definition.attr if one.name in known}
    return pfor.wrap(raw(**named), True)


def _split(pfor: Pfor, given: Given) -> list[object]:
    """Split the strings of all records.

    Each record then has its parts at the same places, so a later step, such as a `RaggedTensor`
    that is made and cut, has one form for all records. Records that split otherwise are an error
    when the function runs.
    """
    operation = given.op
    strings = given.stacked_input(0)
    separator = given.unstacked_input(1)
    flat = tf.reshape(strings, [-1])
    if operation.type == "StringSplit":
        skip_empty = operation.get_attr("skip_empty")
        found = tf.raw_ops.StringSplit(input=flat, delimiter=separator, skip_empty=skip_empty)
    else:
        maxsplit = operation.get_attr("maxsplit")
        found = tf.raw_ops.StringSplitV2(input=flat, sep=separator, maxsplit=maxsplit)
    num_records, num_strings = tf.unstack(tf.shape(strings, out_type=tf.int64))
    indices, values = _by_record(found.indices, found.values, num_records, num_strings)
    # The 0 is the maximum where no string has a part.
    shape = tf.stack([num_strings, tf.reduce_max(tf.concat([indices[:, 1] + 1, [0]], 0))])
    # Only the strings differ between records; their places and shape are the same for all.
    return [pfor.wrap(indices, False), pfor.wrap(values, True), pfor.wrap(shape, False)]


def _by_record(
    indices: tf.Tensor, values: tf.Tensor, num_records: tf.Tensor, num_strings: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return where each record has its parts, shape (n, 2), and the parts, shape (records, n)."""
    num_values = tf.size(values, tf.int64)
    num_parts = num_values // num_records
    with tf.control_dependencies([_require(num_parts * num_records == num_values)]):
        # The later tensors depend on these shapes, so they wait for the check.
        by_record = tf.stack([num_records, num_parts])
    places = tf.reshape(indices, tf.concat([by_record, [2]], 0))
    before = tf.reshape(tf.range(num_records) * num_strings, [-1, 1])
    places = tf.stack([places[:, :, 0] - before, places[:, :, 1]], axis=2)
    with tf.control_dependencies([_require(tf.reduce_all(places == places[:1]))]):
        return tf.identity(places[0]), tf.reshape(values, by_record)


def _require(truth: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(truth, [UNEVEN])


CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys((*_ELEMENTWISE, "DecodeRaw"), _elementwise),
    "LookupTableFindV2": _find,
    "StringJoin": _join,
    "StringSplit": _split,  # tf.compat.v1.string_split
    "StringSplitV2": _split,
    "Substr": _substr,
}


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
