"""The layers of `elasticdl.preprocessing`. TensorFlow is imported with the first one."""

from __future__ import annotations

import importlib

_HERE = "elasticdl.packages.keras.preprocessing"
_HOMES = {
    "ConcatenateWithOffset": f"{_HERE}.structures",
    "Discretization": "keras.layers",
    "HashedCross": f"{_HERE}.categories",
    "Hashing": "keras.layers",
    "IndexLookup": f"{_HERE}.categories",
    "LogRound": f"{_HERE}.numbers",
    "Normalizer": f"{_HERE}.numbers",
    "RoundIdentity": f"{_HERE}.numbers",
    "SparseEmbedding": f"{_HERE}.sparse_embedding",
    "ToDense": f"{_HERE}.structures",
    "ToNumber": f"{_HERE}.numbers",
    "ToRagged": f"{_HERE}.structures",
    "ToSparse": f"{_HERE}.structures",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
