"""Raw records on their way into `feed`: joined, permuted and cut into minibatches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.data.base import Records
from elasticdl.data.strings import Array, Column, Strings, concatenate
from elasticdl.errors import DataError


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Raw records of one minibatch, and the number of each in its source."""

    records: list[bytes] | Mapping[str, Column]
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def tensors(self) -> tf.Tensor | dict[str, tf.Tensor]:
        """Return the records as `feed` sees them: a vector of strings, or a dict of columns."""
        if isinstance(self.records, Mapping):
            return {name: self._tensor(name, column) for name, column in self.records.items()}
        return tf.constant(self.records, tf.string)

    def _tensor(self, name: str, column: Column) -> tf.Tensor | tf.RaggedTensor:
        try:
            return column_tensor(column)
        except (TypeError, ValueError) as error:
            row = next((row for row, value in enumerate(column) if value is None), None)
            if row is None:
                raise DataError(f"column {name!r} is no tensor: {error}") from error
            number = int(self.numbers[row])
            raise DataError(
                f"record {number}: column {name!r} is None: expected NaN for a missing number, "
                '"" for missing text, and an empty array for a missing list',
                number,
            ) from error

    def part(self, start: int, stop: int) -> RecordBatch:
        """Return the records from `start` up to `stop`."""
        if isinstance(self.records, Mapping):
            chosen: list[bytes] | Mapping[str, Column] = {
                name: column[start:stop] for name, column in self.records.items()
            }
        else:
            chosen = self.records[start:stop]
        return RecordBatch(chosen, self.numbers[start:stop])

    def take(self, indices: NDArray[np.int64]) -> RecordBatch:
        """Return the records of these indices, in their order."""
        if isinstance(self.records, Mapping):
            chosen: list[bytes] | Mapping[str, Column] = {
                name: column[indices] for name, column in self.records.items()
            }
        else:
            chosen = [self.records[i] for i in indices]
        return RecordBatch(chosen, self.numbers[indices])


def take_chunks(chunks: Iterator[Records], count: int) -> list[Records]:
    """Take chunks off an iterator until they hold `count` records, or all."""
    taken: list[Records] = []
    while sum(map(len, taken)) < count and (chunk := next(chunks, None)) is not None:
        taken.append(chunk)
    return taken


def as_batch(chunks: list[Records]) -> RecordBatch:
    """Join chunks."""
    numbers = np.concatenate([chunk.numbers for chunk in chunks])
    if chunks[0].columns:
        names = chunks[0].columns
        records: list[bytes] | Mapping[str, Column] = {
            n: concatenate([c.columns[n] for c in chunks]) for n in names
        }
    else:
        records = [value for chunk in chunks for value in chunk.values]
    return RecordBatch(records, numbers)


def cut(records: Iterator[Records], size: int, seed: int | None) -> Iterator[RecordBatch]:
    """Cut records into minibatches; with a seed, in the order of a permutation of them all."""
    if seed is not None:
        # A permutation of a task needs all of its records at once.
        task = as_batch(list(records))
        order = np.random.default_rng(seed).permutation(len(task))
        for start in range(0, len(task), size):
            yield task.take(order[start : start + size])
        return
    waiting: list[Records] = []
    num_waiting = 0
    for chunk in records:
        waiting.append(chunk)
        num_waiting += len(chunk)
        if num_waiting < size:
            continue
        joined = as_batch(waiting)
        whole = num_waiting - num_waiting % size
        for start in range(0, whole, size):
            yield joined.part(start, start + size)
        left = joined.part(whole, num_waiting)
        num_waiting = len(left)
        waiting = [_as_records(left)] if num_waiting else []
    if waiting:
        yield as_batch(waiting)


def _as_records(batch: RecordBatch) -> Records:
    if isinstance(batch.records, Mapping):
        return Records(columns=batch.records, order=batch.numbers)
    return Records(values=batch.records, order=batch.numbers)


def column_tensor(column: Column) -> tf.Tensor | tf.RaggedTensor:
    """Return a tensor whose first axis is the record; it is ragged where a record has an array.

    Times and spans are whole numbers of their unit, for TensorFlow has no type for them.
    """
    if isinstance(column, Strings):
        return tf.constant(column.as_bytes())
    if column.dtype.kind in "mM":
        return tf.constant(column.astype(np.int64))
    if column.dtype == object and len(column) and isinstance(column[0], np.ndarray):
        return _ragged(column)
    return tf.constant(column)


def _ragged(rows: Array) -> tf.RaggedTensor:
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=splits[1:])
    values = column_tensor(np.concatenate(rows))
    # The splits are made of the lengths, so they need no validation.
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def spec_for_any_number(tensor: tf.Tensor) -> tf.TypeSpec:
    """Return the spec of such tensors of any number of records."""
    if isinstance(tensor, tf.RaggedTensor):
        shape = [None, None, *tensor.shape[2:]]
        return tf.RaggedTensorSpec(shape, tensor.dtype, 1, tensor.row_splits.dtype)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def num_rows(tensor: tf.Tensor) -> tf.Tensor:
    """Return the number of records of a tensor, as int64."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows(tf.int64)
    return tf.shape(tensor, tf.int64)[0]


SEPARATOR = b"\x1f"  # the "unit separator" of ASCII: text does not have it


def string_tensor(data: bytes, offsets: NDArray[np.int64]) -> tf.Tensor:
    """Return a vector of strings; string i is `data[offsets[i]:offsets[i + 1]]`.

    TensorFlow cuts them itself, out of one: to slice each of them in Python takes longer.
    """
    count = len(offsets) - 1
    if SEPARATOR in data:
        return _one_by_one(data, offsets)
    joined = np.insert(np.frombuffer(data, np.uint8), offsets[1:-1], SEPARATOR[0])
    return split(joined.tobytes(), count, lambda: _one_by_one(data, offsets))


def split(joined: bytes, count: int, otherwise: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Return the strings that are joined by `SEPARATOR`; what `otherwise` gives if it cannot."""
    if count < 2:
        return otherwise()
    found = tf.raw_ops.StringSplitV2(input=[joined], sep=SEPARATOR).values
    return found if found.shape[0] == count else otherwise()


def _one_by_one(data: bytes, offsets: NDArray[np.int64]) -> tf.Tensor:
    ends = offsets.tolist()
    values = [data[start:end] for start, end in itertools.pairwise(ends)]
    return tf.constant(values, tf.string)
