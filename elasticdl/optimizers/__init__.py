"""Optimizers that Keras does not have, and in `elasticdl.optimizers.torch` clipping for PyTorch's.

TensorFlow is imported when the first optimizer is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticdl.optimizers.group_ftrl import GroupFtrl

__all__ = ["GroupFtrl"]


def __getattr__(name: str) -> object:
    if name == "GroupFtrl":
        from elasticdl.optimizers.group_ftrl import GroupFtrl

        return GroupFtrl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
