"""Layers that users put in their models. TensorFlow is imported when the first one is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticdl.layers.life_cycle import CountAdmission, Expiry, ProbabilityAdmission

if TYPE_CHECKING:
    from elasticdl.layers.embedding import Embedding

__all__ = ["CountAdmission", "Embedding", "Expiry", "ProbabilityAdmission"]


def __getattr__(name: str) -> Any:
    if name == "Embedding":
        from elasticdl.layers.embedding import Embedding

        return Embedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
