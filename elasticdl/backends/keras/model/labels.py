"""Labels that a loss does not take: classes that the model's output does not have."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from elasticdl.backends.keras.types import Nested
from elasticdl.data.strings import Array


def problem_of_labels(loss: Callable[..., object] | None, outputs: Nested, labels: Array) -> str:
    """Say which label is none of a model's classes; "" if that is not seen.

    Whole numbers may be no classes. So the loss is asked for one that is out of range, on an output
    of zeros, and only then.
    """
    shape = getattr(outputs, "shape", None)
    if loss is None or shape is None or len(shape) != 2 or labels.dtype.kind not in "iu":
        return ""
    num_classes = int(shape[-1])
    is_one_each = labels.size == len(labels)
    outside = (labels < 0) | (labels >= num_classes)
    if num_classes < 2 or not is_one_each or not outside.any():
        return ""
    wrong = labels[outside.reshape(len(labels), -1).any(axis=1)]
    try:
        loss(tf.constant(wrong[:1]), tf.zeros((1, num_classes)))
    except Exception as error:
        if not isinstance(error, tf.errors.InvalidArgumentError):
            return ""  # of something else, which training will tell
        return (
            f"a label is {int(wrong.flat[0])}, and the model's output has {num_classes} classes, "
            f"0 to {num_classes - 1}; {len(wrong):,} of {len(labels):,} labels are outside"
        )
    return ""
