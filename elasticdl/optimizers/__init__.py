"""Optimizers that Keras lacks, own update rules, and clipping for PyTorch (in `.torch`).

TensorFlow is imported when the first optimizer in Keras is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticdl.optimizers.group_ftrl import GroupFtrl
    from elasticdl.optimizers.update_rule import UpdateRule

__all__ = ["GroupFtrl", "UpdateRule"]


def __getattr__(name: str) -> object:
    if name == "GroupFtrl":
        from elasticdl.optimizers.group_ftrl import GroupFtrl

        return GroupFtrl
    if name == "UpdateRule":
        from elasticdl.optimizers.update_rule import UpdateRule

        return UpdateRule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
