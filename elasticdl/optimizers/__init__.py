"""Optimizers that Keras lacks, own update rules, and clipping for PyTorch (in `.torch`).

The package `keras` has the optimizers in Keras; TensorFlow is imported when the first one is used.
"""

from __future__ import annotations

from typing import Any

__all__ = ["GroupFtrl", "UpdateRule"]


def __getattr__(name: str) -> Any:
    if name == "GroupFtrl":
        from elasticdl import registry

        return getattr(registry.module(__name__, "keras"), name)
    if name == "UpdateRule":
        from elasticdl.optimizers.update_rule import UpdateRule

        return UpdateRule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
