"""Layers that make numbers of numbers and strings."""

from __future__ import annotations

import math

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.keras.preprocessing.base import ElementLayer


@keras.saving.register_keras_serializable(package="elasticdl")
class Normalizer(ElementLayer):
    """Gives `(x - subtractor) / divisor`.

    The mean and the standard deviation standardise a value. The minimum and the range scale it to 0
    to 1.

    Args:
        subtractor: A number.
        divisor: A number that is not 0.
    """

    def __init__(self, subtractor: float, divisor: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.subtractor = float(subtractor)
        self.divisor = float(divisor)
        if not (math.isfinite(self.subtractor) and math.isfinite(self.divisor) and self.divisor):
            raise ModelError(
                f"Normalizer {self.name!r}: subtractor and divisor must be numbers and divisor "
                f"not 0, found subtractor={subtractor!r}, divisor={divisor!r}; a feature of one "
                "single value tells a model nothing"
            )

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {
            **super().get_config(),
            "subtractor": self.subtractor,
            "divisor": self.divisor,
        }

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        values = tf.cast(values, self.compute_dtype)
        return (values - self.subtractor) / self.divisor

    def _output_dtype(self) -> str:
        return str(self.compute_dtype)


@keras.saving.register_keras_serializable(package="elasticdl")
class LogRound(ElementLayer):
    """Gives `round(log(x))` as an integer, or `default_value` if that is out of range.

    Args:
        num_bins: The limit of results; they are below it.
        default_value: The result if the logarithm is negative, is not below `num_bins`, or does not
            exist (for zero, a negative number, or NaN).
        base: The base of the logarithm; None: e.
    """

    def __init__(
        self, num_bins: int, default_value: int = 0, base: float | None = None, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.num_bins = positive("num_bins", num_bins, self)
        self.default_value = int(default_value)
        self.base = base
        if base is not None and not (base > 0 and base != 1):
            raise ModelError(
                f"LogRound {self.name!r}: base must be above 0 and not 1, or None, found {base!r}"
            )

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "default_value": self.default_value,
            "base": self.base,
        }

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        # In float64 the logarithm of 1000 to the base 10 is 3, and the logarithm of 10**2.5 is
        # below 2.5.
        logarithms = tf.math.log(tf.cast(values, tf.float64))
        if self.base is not None:
            logarithms /= math.log(self.base)
        return rounded_below(self.num_bins, logarithms, self.default_value)

    def _output_dtype(self) -> str:
        return "int64"


@keras.saving.register_keras_serializable(package="elasticdl")
class RoundIdentity(ElementLayer):
    """Gives `round(x)` as an integer, or `default_value` if it is not in `[0, num_buckets)`.

    Halves are rounded to the even neighbour, as in NumPy.
    """

    def __init__(self, num_buckets: int, default_value: int = 0, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.num_buckets = positive("num_buckets", num_buckets, self)
        self.default_value = int(default_value)

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "default_value": self.default_value,
        }

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        return rounded_below(self.num_buckets, values, self.default_value)

    def _output_dtype(self) -> str:
        return "int64"


@keras.saving.register_keras_serializable(package="elasticdl")
class ToNumber(ElementLayer):
    """Parses strings as numbers; an empty string, or spaces, gives `default_value`.

    A string that is no number ends the step with an error of TensorFlow, which quotes the string.

    Args:
        out_type: "float32", "float64", "int32" or "int64", also as a type of TensorFlow.
        default_value: The result for a missing value.
    """

    def __init__(
        self, out_type: object = "float32", default_value: float = 0, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.out_type: str = tf.as_dtype(out_type).name
        if self.out_type not in ("float32", "float64", "int32", "int64"):
            raise ModelError(
                f"ToNumber {self.name!r}: out_type must be float32, float64, int32 or int64, "
                f"found {self.out_type}"
            )
        self.default_value = default_value

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {
            **super().get_config(),
            "out_type": self.out_type,
            "default_value": self.default_value,
        }

    def _of_values(self, values: tf.Tensor) -> tf.Tensor:
        if values.dtype != tf.string:
            return tf.cast(values, self.out_type)
        values = tf.strings.strip(values)
        missing = tf.equal(values, "")
        # Every element is parsed, so a missing value needs a number in its place.
        numbers = tf.strings.to_number(tf.where(missing, "0", values), self.out_type)
        return tf.where(missing, tf.constant(self.default_value, self.out_type), numbers)

    def _output_dtype(self) -> str:
        return self.out_type


def rounded_below(limit: int, values: tf.Tensor, default: int) -> tf.Tensor:
    """Return `round(values)` as integers, or `default` for those not in [0, limit)."""
    if values.dtype.is_integer:
        rounded = tf.cast(values, tf.int64)
        return tf.where((rounded >= 0) & (rounded < limit), rounded, tf.constant(default, tf.int64))
    rounded = tf.round(values)
    # Comparisons with NaN are false, so no integer is made of NaN.
    inside = (rounded >= 0) & (rounded < tf.constant(limit, rounded.dtype))
    integers = tf.cast(tf.where(inside, rounded, tf.zeros_like(rounded)), tf.int64)
    return tf.where(inside, integers, tf.constant(default, tf.int64))


def positive(what: str, value: object, layer: keras.layers.Layer) -> int:
    """Return a setting of a layer that must be a positive whole number.

    Raises:
        ModelError: The setting is no such number; the error names the layer.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ModelError(
            f"{type(layer).__name__} {layer.name!r}: {what} must be a positive whole number, "
            f"found {value!r}"
        )
    return int(value)
