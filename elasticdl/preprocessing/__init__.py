"""Layers that make numbers and ids of raw features, which the package `keras` has.

TensorFlow is imported with the first one. All of them take dense, sparse and ragged tensors, and
are saved inside an exported model. `Discretization` and `Hashing` are Keras' own.
`elasticdl.preprocessing.statistics` returns the results of `elasticdl data analyze`, and needs no
TensorFlow.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConcatenateWithOffset",
    "Discretization",
    "HashedCross",
    "Hashing",
    "IndexLookup",
    "LogRound",
    "Normalizer",
    "RoundIdentity",
    "SparseEmbedding",
    "ToDense",
    "ToNumber",
    "ToRagged",
    "ToSparse",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from elasticdl import registry

        return getattr(registry.module(__name__, "keras"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
