"""Chooses the backend of a model by what its model function returns."""

from __future__ import annotations

import sys
from pathlib import Path

from elasticdl.backends.base import Backend
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.model_spec import ModelSpec


def load_backend(
    spec: ModelSpec,
    metadata: Metadata,
    seed: int,
    embedding_threshold_bytes: int,
    saved_model: Path | None = None,
) -> Backend:
    """Return the backend for a model file, importing its framework only now.

    Raises:
        ModelError: The model function returns something that no backend knows.
    """
    from elasticdl.backends.numpy import ArrayModel, NumpyBackend

    if not sys.modules.keys().isdisjoint({"keras", "tensorflow"}) or saved_model is not None:
        from elasticdl.backends.keras.backend import KerasBackend, SavedModelBackend

        if saved_model is not None:
            return SavedModelBackend(spec, metadata, saved_model)
        # A Keras model must be built by its backend, which watches its embeddings come to be;
        # a file that imports Keras and returns an ArrayModel is answered by the backend's error.
        return KerasBackend(spec, metadata, seed, embedding_threshold_bytes)
    model = spec.model()
    if isinstance(model, ArrayModel):
        return NumpyBackend(spec, model, metadata, seed)
    raise ModelError(
        "the model function: expected a keras.Model or an elasticdl.ArrayModel, "
        f"found {type(model).__module__}.{type(model).__qualname__}"
    )
