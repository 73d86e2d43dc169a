"""Chooses the framework of a model by what its model function returns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.backends.base import Trainer
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.model_spec import ModelSpec

if TYPE_CHECKING:
    from elasticdl.backends.keras.predictor import SavedModelPredictor


def load_trainer(
    spec: ModelSpec,
    metadata: Metadata,
    seed: int,
    embedding_threshold_bytes: int,
    num_threads: int,
    run_eagerly: bool,
) -> Trainer:
    """Return the trainer for a model file, importing its framework only now.

    Raises:
        ModelError: The model function returns something that no framework here knows.
    """
    from elasticdl.backends.numpy import ArrayModel, NumpyTrainer

    if not sys.modules.keys().isdisjoint({"keras", "tensorflow"}):
        from elasticdl.backends.keras.threads import compute_with
        from elasticdl.backends.keras.trainer import KerasTrainer

        compute_with(num_threads)

        # A Keras model must be built by its trainer, which watches its embeddings come to be;
        # a file that imports Keras and returns an ArrayModel is answered by the trainer's error.
        return KerasTrainer(spec, metadata, seed, embedding_threshold_bytes, run_eagerly)
    model = spec.model()
    if isinstance(model, ArrayModel):
        return NumpyTrainer(spec, model, metadata, seed)
    raise ModelError(
        "the model function: expected a keras.Model or an elasticdl.ArrayModel, "
        f"found {type(model).__module__}.{type(model).__qualname__}"
    )


def has_tables() -> bool:
    """Whether a model file that was imported uses `elasticdl.layers.Embedding`."""
    return "elasticdl.layers.embedding" in sys.modules


def load_saved_model(
    spec: ModelSpec, metadata: Metadata, directory: Path, num_threads: int
) -> SavedModelPredictor:
    """Return an exported model, importing TensorFlow only now.

    Raises:
        ModelError: The folder holds no SavedModel.
    """
    from elasticdl.backends.keras.predictor import SavedModelPredictor
    from elasticdl.backends.keras.threads import compute_with

    compute_with(num_threads)
    return SavedModelPredictor(spec, metadata, directory)
