"""Layers that make numbers and ids of raw features.

TensorFlow is imported with the first one. All of them take dense, sparse and ragged tensors, and
are saved inside an exported model. `Discretization` and `Hashing` are Keras' own.
`elasticdl.preprocessing.statistics` returns the results of `elasticdl data analyze`, and needs no
TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras.layers import Discretization, Hashing

    from elasticdl.preprocessing.categories import HashedCross, IndexLookup
    from elasticdl.preprocessing.numbers import LogRound, Normalizer, RoundIdentity, ToNumber
    from elasticdl.preprocessing.sparse_embedding import SparseEmbedding
    from elasticdl.preprocessing.structures import (
        ConcatenateWithOffset,
        ToDense,
        ToRagged,
        ToSparse,
    )

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

_HOMES = {
    "ConcatenateWithOffset": "elasticdl.preprocessing.structures",
    "Discretization": "keras.layers",
    "HashedCross": "elasticdl.preprocessing.categories",
    "Hashing": "keras.layers",
    "IndexLookup": "elasticdl.preprocessing.categories",
    "LogRound": "elasticdl.preprocessing.numbers",
    "Normalizer": "elasticdl.preprocessing.numbers",
    "RoundIdentity": "elasticdl.preprocessing.numbers",
    "SparseEmbedding": "elasticdl.preprocessing.sparse_embedding",
    "ToDense": "elasticdl.preprocessing.structures",
    "ToNumber": "elasticdl.preprocessing.numbers",
    "ToRagged": "elasticdl.preprocessing.structures",
    "ToSparse": "elasticdl.preprocessing.structures",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
