"""Layers that change the structure of values: to ragged or sparse, or several features joined."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import Shape
from elasticdl.packages.keras.preprocessing.base import RawLayer, as_tensor, map_values
from elasticdl.packages.keras.preprocessing.numbers import positive


class _Lists(RawLayer):
    """The common base of `ToRagged` and `ToSparse`: a list of values for each record."""

    def __init__(
        self, sep: str | None = ",", ignore_value: object = None, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.sep = sep
        self.ignore_value = ignore_value

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "sep": self.sep, "ignore_value": self.ignore_value}

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return (records, unknown)."""
        return (input_shape[0], None)

    def _ragged(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the values of each record in order, without ignored values."""
        lists = _as_lists(as_tensor(inputs))
        if lists.dtype == tf.string and self.sep:
            # A record with "1,2" and "3" has three values.
            lists = tf.strings.split(lists, self.sep).merge_dims(1, 2)
        ignored = self.ignore_value
        if ignored is None:
            ignored = "" if lists.dtype == tf.string else -1
        kept = tf.not_equal(lists.values, tf.cast(ignored, lists.dtype))
        return tf.ragged.boolean_mask(lists, lists.with_values(kept))


@keras.saving.register_keras_serializable(package="elasticdl")
class ToRagged(_Lists):
    """Gives a ragged tensor of each record's values, without filling.

    Args:
        sep: Strings are cut at this: "a,b" is two values. None: strings are not cut.
        ignore_value: The filling; None: "" for strings, -1 for numbers.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return a ragged tensor of (records, values)."""
        return self._ragged(inputs)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call."""
        return keras.KerasTensor((inputs.shape[0], None), inputs.dtype, ragged=True)


@keras.saving.register_keras_serializable(package="elasticdl")
class ToSparse(_Lists):
    """Gives a sparse tensor of each record's values, without filling.

    A remaining value keeps its column. If strings were cut, values move to the left instead.

    Args:
        ignore_value: The filling; None: "" for strings, -1 for numbers.
        sep: Strings are cut at this; None: strings are not cut.
    """

    def __init__(
        self, ignore_value: object = None, sep: str | None = None, **kwargs: object
    ) -> None:
        super().__init__(sep=sep, ignore_value=ignore_value, **kwargs)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return a sparse tensor of (records, columns)."""
        inputs = as_tensor(inputs)
        if isinstance(inputs, tf.RaggedTensor) or (inputs.dtype == tf.string and self.sep):
            return self._ragged(inputs).to_sparse()
        ignored = self.ignore_value
        if ignored is None:
            ignored = "" if inputs.dtype == tf.string else -1
        if isinstance(inputs, tf.SparseTensor):
            return tf.sparse.retain(inputs, tf.not_equal(inputs.values, ignored))
        kept = tf.not_equal(inputs, tf.cast(ignored, inputs.dtype))
        indices = tf.where(kept)
        return tf.SparseTensor(
            indices, tf.gather_nd(inputs, indices), tf.shape(inputs, out_type=tf.int64)
        )

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call."""
        shape = inputs.shape if len(inputs.shape) > 1 else (inputs.shape[0], None)
        return keras.KerasTensor(shape, inputs.dtype, sparse=True)


@keras.saving.register_keras_serializable(package="elasticdl")
class ToDense(RawLayer):
    """Gives a dense tensor of records' values, with the same number for each by filling at the end.

    Args:
        filling: The value after a record's last value; None: "" for strings, 0 for numbers.
        newest: The number of values of a record that are kept, the last ones. None: all are kept,
            and the longest record of the minibatch decides the width.
    """

    def __init__(self, filling: object = None, newest: int | None = None, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.filling = filling
        self.newest = None if newest is None else positive("newest", newest, self)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return a tensor of (records, places), as wide as the longest record or `newest`."""
        lists = _as_lists(as_tensor(inputs))
        if self.newest is not None:
            lists = lists[:, -self.newest :]
        return lists.to_tensor(self.filling)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return (records, unknown)."""
        return (input_shape[0], None)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call."""
        return keras.KerasTensor((inputs.shape[0], None), inputs.dtype)

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "filling": self.filling, "newest": self.newest}


@keras.saving.register_keras_serializable(package="elasticdl")
class ConcatenateWithOffset(RawLayer):
    """Adds an offset to the ids of each feature, and joins the features.

    So several features share one table: with sizes 10 and 5 and offsets 0 and 10, the ids of the
    second feature begin at 10. Features may be dense, sparse or ragged. If one is ragged, the
    result is ragged; otherwise, if one is sparse, the result is sparse.

    Args:
        offsets: A number for each feature; None: ids are not changed.
        axis: The axis along which features are joined; by default the last one.
    """

    def __init__(
        self, offsets: Sequence[int] | None = None, axis: int = -1, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.offsets = None if offsets is None else [int(offset) for offset in offsets]
        self.axis = int(axis)

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the ids of all features."""
        features = [as_tensor(feature) for feature in self._checked(inputs)]
        if len({feature.dtype for feature in features}) > 1:  # buckets are int32, hashes int64
            features = [map_values(_as_int64, feature) for feature in features]
        offsets = self.offsets or [0] * len(features)
        moved = [_moved(ids, by) for ids, by in zip(features, offsets, strict=True)]
        if any(isinstance(feature, tf.RaggedTensor) for feature in moved):
            return tf.concat([_as_ragged(feature) for feature in moved], self.axis)
        if any(isinstance(feature, tf.SparseTensor) for feature in moved):
            return tf.sparse.concat(self.axis, [_as_sparse(feature) for feature in moved])
        return tf.concat(moved, self.axis)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape of all features together."""
        shape = list(input_shape[0])
        widths = [one[self.axis] for one in input_shape]
        known = [width for width in widths if width is not None]
        shape[self.axis] = sum(known) if len(known) == len(widths) else None
        return tuple(shape)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the spec of a symbolic call."""
        features = self._checked(inputs)
        shape = self.compute_output_shape([feature.shape for feature in features])
        ragged = any(getattr(feature, "ragged", False) for feature in features)
        sparse = not ragged and any(feature.sparse for feature in features)
        if ragged:
            shape = tuple(None if k else n for k, n in enumerate(shape))
        dtypes = {feature.dtype for feature in features}
        dtype = dtypes.pop() if len(dtypes) == 1 else "int64"
        return keras.KerasTensor(shape, dtype, sparse=sparse, ragged=ragged)

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "offsets": self.offsets, "axis": self.axis}

    def _checked(self, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        if not isinstance(inputs, list | tuple):
            raise ModelError(
                f"ConcatenateWithOffset {self.name!r} is called with a list of features, found "
                f"{inputs!r}"
            )
        if self.offsets is not None and len(self.offsets) != len(inputs):
            raise ModelError(
                f"ConcatenateWithOffset {self.name!r} has {len(self.offsets)} offsets and is "
                f"called with {len(inputs)} features; expected one offset for each"
            )
        return inputs


def _as_int64(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.int64)


def _moved(ids: tf.Tensor, by: int) -> tf.Tensor:
    return map_values(lambda values: values + tf.cast(by, values.dtype), ids)


def _as_lists(tensor: tf.Tensor) -> tf.Tensor:
    """Return a ragged tensor with one list of values for each record."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.merge_dims(1, -1) if tensor.shape.rank > 2 else tensor
    if isinstance(tensor, tf.SparseTensor):
        return _as_ragged(tensor)
    if tensor.shape.rank == 1:
        tensor = tensor[:, None]
    elif tensor.shape.rank > 2:
        tensor = tf.reshape(tensor, [tf.shape(tensor)[0], -1])
    return tf.RaggedTensor.from_tensor(tensor)


def _as_ragged(tensor: tf.Tensor) -> tf.Tensor:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor
    if isinstance(tensor, tf.SparseTensor):  # its values need not begin at column 0
        return tf.RaggedTensor.from_value_rowids(
            tensor.values, tensor.indices[:, 0], tensor.dense_shape[0], validate=False
        )
    return tf.RaggedTensor.from_tensor(tensor)


def _as_sparse(tensor: tf.Tensor) -> tf.Tensor:
    if isinstance(tensor, tf.SparseTensor):
        return tensor
    shape = tf.shape(tensor, out_type=tf.int64)
    indices = tf.where(tf.ones_like(tensor, tf.bool))
    return tf.SparseTensor(indices, tf.reshape(tensor, [-1]), shape)
