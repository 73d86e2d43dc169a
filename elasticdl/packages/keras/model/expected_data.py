"""The data that a built model expects: labels that its loss takes, and words that have ids."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from elasticdl.data.strings import Array
from elasticdl.packages.keras.model.placed import PlacedModel
from elasticdl.packages.keras.types import Nested

IsNoClass = Callable[[Callable[..., object], Array, int], bool]

_OF_TWO = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
_FUNCTIONS_OF_TWO = (keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy)


def is_refused(loss: Callable[..., object], label: Array, num_classes: int) -> bool:
    """Say whether a loss on TensorFlow raises on a label because of its number."""

    def raises(one: Array) -> bool:
        try:
            loss(tf.constant(one), tf.zeros((1, num_classes)))
        except Exception as error:  # other faults are told by training
            return isinstance(error, tf.errors.InvalidArgumentError)
        return False

    return raises(label) and not raises(np.zeros_like(label))


class ExpectedData:
    """What a model that is built expects of the data; see `ChecksData`.

    Args:
        placed: The model.
        loss: `loss` of the model file.
        is_no_class: See `problem_of_labels`.
    """

    def __init__(
        self,
        placed: PlacedModel,
        loss: Callable[..., object] | None,
        is_no_class: IsNoClass = is_refused,
    ) -> None:
        self._placed = placed
        self._loss = loss
        self._is_no_class = is_no_class

    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """Return the words of features that the model looks up."""
        return vocabularies_of(self._placed.model)

    def problem_of_labels(self, labels: Array) -> str:
        """Say which label is none of the classes of the model."""
        outputs = self._placed.sample_outputs
        return problem_of_labels(self._loss, outputs, labels, self._is_no_class)


def problem_of_labels(
    loss: Callable[..., object] | None,
    outputs: Nested,
    labels: Array,
    is_no_class: IsNoClass = is_refused,
) -> str:
    """Say which label is none of a model's classes; "" if that is not seen.

    Whole numbers may be no classes. So the loss is asked for one that is out of range, on an output
    of zeros, and only then.

    Args:
        loss: `loss` of the model file.
        outputs: The outputs of the model.
        labels: Some labels.
        is_no_class: Given the loss, a label out of range and the number of classes, says whether
            labels are classes.
    """
    if isinstance(loss, str):
        with contextlib.suppress(ValueError):  # of no such name, which building the model tells
            loss = keras.losses.get(loss)
    outside_of_two = (labels < 0) | (labels > 1) if labels.dtype.kind in "iuf" else np.zeros(0)
    if outside_of_two.any() and _is_of_two(loss):
        return (
            f"a label is {labels[outside_of_two][0]:g}, and binary cross-entropy takes 0 to 1; "
            f"{outside_of_two.sum():,} of {labels.size:,} labels are outside"
        )
    shape = getattr(outputs, "shape", None)
    if loss is None or shape is None or len(shape) != 2 or not _are_whole(labels):
        return ""
    num_classes = int(shape[-1])
    is_one_each = labels.size == len(labels)
    outside = (labels < 0) | (labels >= num_classes)
    if num_classes < 2 or not is_one_each or not outside.any():
        return ""
    wrong = labels[outside.reshape(len(labels), -1).any(axis=1)]
    if not is_no_class(loss, wrong[:1], num_classes):
        return ""
    return (
        f"a label is {int(wrong.flat[0])}, and the model's output has {num_classes} classes, "
        f"0 to {num_classes - 1}; {len(wrong):,} of {len(labels):,} labels are outside"
    )


def _are_whole(labels: Array) -> bool:
    """Say whether labels are whole numbers, which a `Table` gives as float32."""
    return labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and not (labels % 1).any())


def _is_of_two(loss: object) -> bool:
    """Say whether a loss is Keras' cross-entropy of two classes."""
    if isinstance(loss, functools.partial):
        loss = loss.func
    return isinstance(loss, _OF_TWO) or any(loss is function for function in _FUNCTIONS_OF_TWO)


def vocabularies_of(model: keras.Model) -> dict[str, tuple[str, ...]]:
    """Return the words of each input that goes unchanged into a lookup layer.

    Nothing is known of a model that is no graph of layers, or of inputs that are changed first.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs or not isinstance(model, keras.Model):
        return {}
    names = {id(tensor): tensor.name for tensor in keras.tree.flatten(inputs)}
    found: dict[str, tuple[str, ...]] = {}
    for layer in model.layers:
        words = _words(layer)
        nodes = getattr(layer, "_inbound_nodes", ())
        for node in nodes if words else ():
            for tensor in node.input_tensors:
                if id(tensor) in names:
                    found[names[id(tensor)]] = words
    return found


def _words(layer: keras.layers.Layer) -> tuple[str, ...]:
    """Return the words that have ids of their own; none of a layer that is no lookup."""
    if isinstance(layer, keras.layers.StringLookup | keras.layers.IntegerLookup):
        # An inverted lookup takes ids and gives words, so its input has no words.
        if layer.invert:
            return ()
        return tuple(str(word) for word in layer.get_vocabulary(include_special_tokens=False))
    return ()
