"""Layers for the models of users. TensorFlow is imported when the first layer is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.layers.life_cycle import (
    CountAdmission,
    Expiry,
    ProbabilityAdmission,
    StatisticAdmission,
)
from elasticdl.layers.row_statistics import RowStatistics

if TYPE_CHECKING:
    from elasticdl.layers.attention import Dice, TargetAttention
    from elasticdl.layers.embedding import Embedding
    from elasticdl.layers.interactions import (
        CompressedInteraction,
        CrossNetwork,
        FactorizationMachine,
    )
    from elasticdl.layers.remote import Remote
    from elasticdl.layers.sampling import SamplingCorrection

__all__ = [
    "CompressedInteraction",
    "CountAdmission",
    "CrossNetwork",
    "Dice",
    "Embedding",
    "Expiry",
    "FactorizationMachine",
    "ProbabilityAdmission",
    "Remote",
    "RowStatistics",
    "SamplingCorrection",
    "StatisticAdmission",
    "TargetAttention",
]

_HOMES = {
    "CompressedInteraction": "interactions",
    "CrossNetwork": "interactions",
    "Dice": "attention",
    "Embedding": "embedding",
    "FactorizationMachine": "interactions",
    "Remote": "remote",
    "SamplingCorrection": "sampling",
    "TargetAttention": "attention",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        # TensorFlow takes seconds to import, and a model in PyTorch does not need it.
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
