"""A column of records as a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.data.strings import Column, Strings


def column_tensor(column: Column) -> Any:
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


def _ragged(rows: NDArray[Any]) -> Any:
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=splits[1:])
    values = tf.constant(np.concatenate(rows))
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def spec_for_any_number(tensor: Any) -> Any:
    """Return the spec of such tensors of any number of records."""
    if isinstance(tensor, tf.RaggedTensor):
        shape = [None, None, *tensor.shape[2:]]
        return tf.RaggedTensorSpec(shape, tensor.dtype, 1, tensor.row_splits.dtype)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def num_rows(tensor: Any) -> Any:
    """Return how many records a tensor is of, as int64."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows(tf.int64)
    return tf.shape(tensor, tf.int64)[0]
