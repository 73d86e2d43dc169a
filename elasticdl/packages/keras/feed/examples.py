"""A compiled `feed` that begins with `parse_example`: Rust parses the records instead.

In the graph of the vectorised maps an operation parses the records to tensors. The operations after
it are taken out as a function of those tensors, and Rust fills the tensors from the records. A
record that Rust does not decode, because it is unusual or wrong, goes to TensorFlow's operation
with its minibatch: its word is final. See `docs/designs/feed.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl import _core
from elasticdl.data.strings import Array
from elasticdl.packages.keras.feed.records import RecordBatch, string_tensor
from elasticdl.packages.keras.model.function import FlatFunction, StructuredFunction, as_tensor
from elasticdl.packages.keras.types import ConcreteFunction, Nested

_PARSERS = ("ParseExample", "ParseExampleV2")
_KINDS = {tf.int64: "int64", tf.float32: "float", tf.string: "bytes"}
_LEAST_TIMED = 512  # records; of fewer the time of a call says little
_TIMED_CALLS = 4
Fill = Array | tuple[bytes, NDArray[np.int64]] | None
Values = Array | tuple[bytes, NDArray[np.int64]]


class UnfitError(Exception):
    """Says why a function does not begin with parsing that Rust can do."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that the operation parses, and its outputs that have it.

    shape: The shape of a dense one's values in a record; None: sparse or ragged.
    outputs: Its tensors: dense (values), sparse (indices, values, shape), ragged (values, splits).
    """

    name: str
    dtype: tf.DType
    outputs: tuple[tf.Tensor, ...]
    shape: tuple[int, ...] | None = None
    fill: Fill = None

    @property
    def wanted(self) -> tuple[str, str, int | None, Fill]:
        """Return the arguments that ask `_core.decode_examples` for this feature."""
        width = None if self.shape is None else int(np.prod(self.shape, dtype=np.int64))
        return self.name, _KINDS[self.dtype], width, self.fill

    def tensors(self, values: Values, splits: NDArray[np.int64]) -> list[tf.Tensor]:
        """Return what the operation would have given, in the order of `outputs`."""
        flat = string_tensor(*values) if isinstance(values, tuple) else values
        if self.shape is not None:
            return [_tensor(flat, (len(splits) - 1, *self.shape))]
        if len(self.outputs) == 2:
            return [_tensor(flat), tf.constant(splits, self.outputs[1].dtype)]
        counts = np.diff(splits)
        rows = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(int(splits[-1])) - np.repeat(splits[:-1], counts)
        shape = np.array([len(counts), counts.max(initial=0)])
        return [tf.constant(np.stack([rows, places], axis=1)), _tensor(flat), tf.constant(shape)]


class ParsedByRust:
    """A function of records whose parsing is done by Rust, and the rest of it by TensorFlow.

    Args:
        function: It takes a vector of records.

    Raises:
        UnfitError: It does not begin with `parse_example`, or not so that Rust could do it.
    """

    def __init__(self, function: StructuredFunction) -> None:
        self._whole = function
        self._features = _features(_parser(function.concrete))
        self._wanted = [feature.wanted for feature in self._features]
        self._rest = _rest(function.concrete, self._features)
        self.num_undecoded = 0
        """Calls that TensorFlow parsed after all."""

    def __call__(self, batch: RecordBatch) -> Nested:
        """Return what the function gives for the records of a batch."""
        assert not isinstance(batch.records, Mapping), "columns are parsed already"
        try:
            columns = _core.decode_examples(batch.records, self._wanted)
        except ValueError:
            self.num_undecoded += 1
            return self._whole(batch.tensors())
        tensors = [
            tensor
            for feature, (_, values, splits) in zip(self._features, columns, strict=True)
            for tensor in feature.tensors(values, splits)
        ]
        return self._whole.pack(self._rest(*tensors))


def fastest(
    function: Callable[[Nested], Nested], sample: RecordBatch
) -> tuple[Callable[[RecordBatch], Nested], str]:
    """Return a function of records that does what the one given does, and how its records come."""
    if isinstance(sample.records, dict):
        return on_tensors(function), "records come as columns"
    if not isinstance(function, StructuredFunction):
        return on_tensors(function), "TensorFlow parses the records"
    by_tensorflow = on_tensors(function)
    try:
        by_rust = ParsedByRust(function)
        if len(sample) >= _LEAST_TIMED:
            rust, tensorflow = (_microseconds(f, sample) for f in (by_rust, by_tensorflow))
            if rust > tensorflow:
                how = f"faster here, {tensorflow:.1f} us a record, than Rust, {rust:.1f} us"
                return by_tensorflow, f"TensorFlow parses the records: {how}"
        return by_rust, "Rust parses the records"
    except UnfitError as error:
        return by_tensorflow, f"TensorFlow parses the records: {error}"
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:  # a graph of another kind
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return by_tensorflow, f"TensorFlow parses the records: {what}"


def _microseconds(function: Callable[[RecordBatch], Nested], sample: RecordBatch) -> float:
    """Return how long a record takes, at best: a first call and disturbed ones do not count."""
    seconds = []
    for _ in range(_TIMED_CALLS):
        began = time.perf_counter()
        function(sample)
        seconds.append(time.perf_counter() - began)
    return min(seconds) / len(sample) * 1e6


def on_tensors(function: Callable[[Nested], Nested]) -> Callable[[RecordBatch], Nested]:
    """Return a function of records that calls the one given with their tensors."""
    return lambda batch: function(batch.tensors())


def _parser(concrete: ConcreteFunction) -> tf.Operation:
    """Return the operation that parses the records."""
    records = concrete.inputs[0]
    used = [op for op in _sources(concrete.outputs) if op.type in _PARSERS]
    parsers = [op for op in used if _is_copy(op.inputs[0], records)]
    if len(parsers) != 1:
        raise UnfitError(
            "it parses the records more than once"
            if parsers
            else "it does not begin with parse_single_example or parse_example"
        )
    return parsers[0]


def _is_copy(tensor: tf.Tensor, records: tf.Tensor) -> bool:
    """Say whether a tensor is the records in their order: also as vectorised maps gather them.

    Their index is that of the loop which they replace. A later proof shows that the results are
    equal.
    """
    while tensor is not records:
        op = tensor.op
        if op.type != "Identity" and not (op.type == "GatherV2" and "/pfor/" in op.name):
            return False
        tensor = op.inputs[0]
    return True


def _features(op: tf.Operation) -> list[Feature]:
    inputs, outputs = list(op.inputs), list(op.outputs)
    dense_types = list(op.get_attr("Tdense"))
    sparse_types = list(op.get_attr("sparse_types"))
    if op.type == "ParseExample":
        n = len(sparse_types)
        keys = [_static(tensor) for tensor in inputs[2 : 2 + n + len(dense_types)]]
        sparse_keys, dense_keys, ragged_keys = keys[:n], keys[n:], []
        ragged_types: list[tf.DType] = []
    else:
        sparse_keys, dense_keys, ragged_keys = (list(_static(tensor)) for tensor in inputs[2:5])
        ragged_types = list(op.get_attr("ragged_value_types"))
    n, d, r = len(sparse_types), len(dense_types), len(ragged_types)
    found = [
        Feature(_text(key), dtype, (outputs[k], outputs[n + k], outputs[2 * n + k]))
        for k, (key, dtype) in enumerate(zip(sparse_keys, sparse_types, strict=True))
    ]
    shapes = [tf.TensorShape(shape).as_list() for shape in op.get_attr("dense_shapes")]
    for k, (key, dtype, shape) in enumerate(zip(dense_keys, dense_types, shapes, strict=True)):
        if None in shape:
            raise UnfitError(f"feature {_text(key)!r} is padded to the longest record")
        default = _static(inputs[len(inputs) - d + k])
        fill = _fill(dtype, shape, np.asarray(default))
        found.append(Feature(_text(key), dtype, (outputs[3 * n + k],), tuple(shape), fill))
    for k, (key, dtype) in enumerate(zip(ragged_keys, ragged_types, strict=True)):
        place = 3 * n + d + k
        found.append(Feature(_text(key), dtype, (outputs[place], outputs[place + r])))
    names = [feature.name for feature in found]
    if len(set(names)) != len(names):
        raise UnfitError("it takes a feature twice")
    if not found:
        raise UnfitError("it parses no feature")
    return found


def _fill(dtype: tf.DType, shape: Sequence[int], default: Array) -> Fill:
    """Return the values of a record that lacks a feature; None if it must be there."""
    width = int(np.prod(shape, dtype=np.int64))
    if default.size == 0 and width > 0:
        return None
    values = np.broadcast_to(default.reshape(-1), (width,))
    if dtype != tf.string:
        return np.ascontiguousarray(values, dtype.as_numpy_dtype)
    offsets = np.cumsum([0, *(len(value) for value in values.tolist())], dtype=np.int64)
    return b"".join(values.tolist()), offsets


def _rest(concrete: ConcreteFunction, features: Sequence[Feature]) -> FlatFunction:
    """Return the function of the parsed tensors that gives the outputs of the whole function."""
    records = concrete.inputs[0]
    parsed = [output for feature in features for output in feature.outputs]
    # The parsed tensors tell the number of records as well.
    counts = [op.outputs[0] for op in records.consumers() if op.type == "Shape"]
    replaced = {tensor.ref() for tensor in [*parsed, *counts]}
    if records.op in _sources(concrete.outputs, replaced):
        raise UnfitError("it uses the records in another way as well")
    definition = concrete.graph.as_graph_def()
    first = features[0]
    captures = [(outer, inner.name) for outer, inner in concrete.graph.captures]

    def rest(*columns: tf.Tensor) -> list[tf.Tensor]:
        given = dict(zip((tensor.name for tensor in parsed), columns, strict=True))
        given |= {tensor.name: _count(first, columns, tensor.dtype) for tensor in counts}
        graph = tf.compat.v1.get_default_graph()
        given |= {name: graph.capture(outer) for outer, name in captures}
        names = [tensor.name for tensor in concrete.outputs]
        found = tf.graph_util.import_graph_def(definition, given, names, name="")
        return [given.get(name, tensor) for name, tensor in zip(names, found, strict=True)]

    specs = [_spec(feature, k) for feature in features for k in range(len(feature.outputs))]
    traced: tf.types.experimental.PolymorphicFunction = tf.function(rest, autograph=False)
    return FlatFunction(traced.get_concrete_function(*specs))


def _count(first: Feature, columns: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Return the number of records as the shape of their vector, of the first feature's tensors."""
    if first.shape is not None:
        count = tf.shape(columns[0], dtype)[:1]
    elif len(first.outputs) == 2:
        count = tf.shape(columns[1], dtype)[:1] - 1
    else:
        count = tf.cast(columns[2][:1], dtype)
    return count


def _spec(feature: Feature, place: int) -> tf.TensorSpec:
    if feature.shape is not None:
        return tf.TensorSpec((None, *feature.shape), feature.dtype)
    if len(feature.outputs) == 2:
        return tf.TensorSpec((None,), (feature.dtype, feature.outputs[1].dtype)[place])
    return (
        tf.TensorSpec((None, 2), tf.int64),
        tf.TensorSpec((None,), feature.dtype),
        tf.TensorSpec((2,), tf.int64),
    )[place]


def _sources(
    outputs: Sequence[tf.Tensor], without: Container[object] = ()
) -> Iterator[tf.Operation]:
    """Yield the operations that tensors are computed by, leaving out those of some tensors."""
    waiting, seen = [tensor.op for tensor in outputs if tensor.ref() not in without], set()
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        yield op
        waiting += [tensor.op for tensor in op.inputs if tensor.ref() not in without]
        waiting += op.control_inputs


def _static(tensor: tf.Tensor) -> Array:
    """Return the value of a tensor that is written down; its shape may be another."""
    while tensor.op.type in ("Reshape", "Identity"):
        tensor = tensor.op.inputs[0]
    value: Array | None = tf.get_static_value(tensor)
    if value is None:
        raise UnfitError("what it parses is computed and not written down")
    return value


def _text(key: object) -> str:
    raw = key.item() if isinstance(key, np.ndarray) else key
    return raw.decode() if isinstance(raw, bytes) else str(raw)


def _tensor(values: Array | tf.Tensor, shape: tuple[int, ...] | None = None) -> tf.Tensor:
    if isinstance(values, np.ndarray):
        return as_tensor(values if shape is None else values.reshape(shape))
    return values if shape is None else tf.reshape(values, shape)
