"""Translates Keras initializers into distributions that the store knows."""

from __future__ import annotations

import math

import keras
import numpy as np

from elasticdl.errors import ModelError

TRUNCATED_STDDEV = 0.87962566103423978  # of a unit normal cut at two standard deviations


def describe_initializer(
    initializer: keras.initializers.Initializer, layer: str, dim: int, input_dim: int | None
) -> tuple[str, dict[str, float]]:
    """Return (kind, params) of the distribution that fills a row of `dim` elements.

    Kinds and parameters are those of `Initializer` in `elasticdl/backends/base.py`. An
    initializer's own seed is not used: rows come from (seed, table, key).

    Raises:
        ModelError: The elements of the initializer are not drawn independently of each other
            from one of the known distributions.
    """
    if isinstance(initializer, type):
        initializer = initializer()
    kinds = keras.initializers
    if _draws_by_itself(initializer):
        raise _unknown(initializer, layer)
    if isinstance(initializer, kinds.Zeros):
        return "constant", {"value": 0.0}
    if isinstance(initializer, kinds.Ones):
        return "constant", {"value": 1.0}
    if isinstance(initializer, kinds.Constant) and _is_number(initializer.value):
        return "constant", {"value": float(initializer.value)}
    if isinstance(initializer, kinds.RandomUniform):
        return "uniform", {"low": float(initializer.minval), "high": float(initializer.maxval)}
    if isinstance(initializer, kinds.TruncatedNormal):
        return "truncated_normal", _normal(initializer.mean, initializer.stddev)
    if isinstance(initializer, kinds.RandomNormal):
        return "normal", _normal(initializer.mean, initializer.stddev)
    if isinstance(initializer, kinds.VarianceScaling):
        return _variance_scaling(initializer, layer, dim, input_dim)
    raise _unknown(initializer, layer)


def _draws_by_itself(initializer: keras.initializers.Initializer) -> bool:
    """Return whether a user's class, which may derive from one of Keras, makes the values."""
    call = type(initializer).__call__
    return not str(getattr(call, "__module__", "")).startswith("keras.")


def _unknown(initializer: keras.initializers.Initializer, layer: str) -> ModelError:
    return ModelError(
        f"Embedding {layer!r}: embeddings_initializer is {type(initializer).__name__}, but rows "
        "are created one by one on the ps replicas; use a constant, RandomUniform, RandomNormal, "
        "TruncatedNormal or a VarianceScaling initializer"
    )


def has_array(initializer: keras.initializers.Initializer) -> bool:
    """Return whether an initializer is `Constant` of an array, with values for each row."""
    is_constant = isinstance(initializer, keras.initializers.Constant)
    return is_constant and not _is_number(initializer.value) and np.ndim(initializer.value) > 0


def _variance_scaling(
    initializer: keras.initializers.Initializer, layer: str, dim: int, input_dim: int | None
) -> tuple[str, dict[str, float]]:
    # The fan-in is the number of rows, so only "fan_out" works without it.
    if input_dim is None and initializer.mode != "fan_out":
        raise ModelError(
            f"Embedding {layer!r}: {type(initializer).__name__} depends on the number of rows; "
            "say input_dim, or use an initializer with fixed bounds"
        )
    fan = {
        "fan_in": float(input_dim or 0),
        "fan_out": float(dim),
        "fan_avg": ((input_dim or 0) + dim) / 2.0,
    }[initializer.mode]
    scale = initializer.scale / max(1.0, fan)
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return "uniform", {"low": -limit, "high": limit}
    if initializer.distribution == "truncated_normal":
        # As in Keras: the cut values, and not the normal ones, have the wanted deviation.
        return "truncated_normal", _normal(0.0, math.sqrt(scale) / TRUNCATED_STDDEV)
    return "normal", _normal(0.0, math.sqrt(scale))


def _normal(mean: float, stddev: float) -> dict[str, float]:
    return {"mean": float(mean), "stddev": float(stddev)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
