"""The layers of `elasticdl.layers` for Keras. TensorFlow is imported when the first one is used."""

from __future__ import annotations

import importlib

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
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
