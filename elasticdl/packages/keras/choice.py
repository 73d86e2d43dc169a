"""The framework that computes for Keras, as `KERAS_BACKEND` or Keras' file of settings says it."""

from __future__ import annotations

import importlib.util
import os
import sys

import keras

from elasticdl.distribution import how_to_get
from elasticdl.errors import ModelError
from elasticdl.settings.model import KERAS_BACKENDS, KERAS_VARIABLE


def check_framework(expected: str) -> None:
    """Check by which framework Keras computes.

    Args:
        expected: "tensorflow" or "jax", whose backend calls this.

    Raises:
        ModelError: It computes by another one, or TensorFlow, with which `feed` runs, is missing.
    """
    name = keras.backend.backend()
    if name not in KERAS_BACKENDS:
        raise ModelError(
            f"KERAS_BACKEND={name}: expected tensorflow or jax, with which a job trains models of "
            "Keras. For a model in PyTorch, return a torch.nn.Module (docs/torch.md)"
        )
    asked = os.environ.get(KERAS_VARIABLE, name)
    if asked != name:
        raise ModelError(
            f"--keras_backend={asked}: Keras was imported before the job said so, and computes by "
            f"{name}: set KERAS_BACKEND={asked} before Python starts"
        )
    if importlib.util.find_spec("tensorflow") is None:
        raise ModelError(
            f"KERAS_BACKEND={name}: expected TensorFlow beside it, with which feed reads records; "
            f"{how_to_get('tensorflow', sys.version_info[:2])}"
        )
    if name != expected:
        raise ModelError(
            f"KERAS_BACKEND={name}: expected the package {name!r} of elasticdl, found it removed; "
            "reinstall elasticdl"
        )
