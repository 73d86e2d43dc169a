"""Layers for the models of users; the package `keras` has those of Keras.

TensorFlow is imported when the first layer is used: a model in PyTorch does not need it.
"""

from __future__ import annotations

from typing import Any

from elasticdl.layers.life_cycle import (
    CountAdmission,
    Expiry,
    ProbabilityAdmission,
    StatisticAdmission,
)
from elasticdl.layers.row_statistics import RowStatistics

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


def __getattr__(name: str) -> Any:
    if name in __all__:
        from elasticdl import registry

        return getattr(registry.module(__name__, "keras"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
