"""The backends that there are: those of packages, and the core's own for models on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl import registry
from elasticdl.backends.backend import Backend, TrainerSettings, not_compiled
from elasticdl.errors import ModelError

if TYPE_CHECKING:
    from elasticdl.backends.base import TellFeedWay
    from elasticdl.backends.numpy import NumpyTrainer
    from elasticdl.backends.numpy_predictor import SavedArraysPredictor
    from elasticdl.data.base import Metadata
    from elasticdl.model_spec import ModelSpec


class ArrayBackend(Backend):
    """Models given as functions on arrays of NumPy."""

    name = "NumPy"
    model_class = "elasticdl.ArrayModel"
    export_files = ("model.npz",)

    def is_model(self, model: object) -> bool:
        """Return whether it is an `ArrayModel`."""
        from elasticdl.backends.numpy import ArrayModel

        return isinstance(model, ArrayModel)

    def trainer(self, spec: ModelSpec, model: object, settings: TrainerSettings) -> NumpyTrainer:
        """See `Backend`."""
        from elasticdl.backends.numpy import ArrayModel, NumpyTrainer

        assert isinstance(model, ArrayModel)
        if settings.torch_compile:
            raise not_compiled("NumPy arrays")
        if settings.device not in (None, "cpu"):
            raise ModelError(
                "--worker_devices: a model on NumPy arrays is computed on the CPU, found "
                f"{settings.device}"
            )
        return NumpyTrainer(spec, model, settings.metadata, settings.seed)

    def predictor(
        self,
        spec: ModelSpec,
        model: object,
        metadata: Metadata,
        directory: Path,
        num_threads: int | None,
        device: str | None,
        tell_feed: TellFeedWay,
    ) -> SavedArraysPredictor:
        """See `Backend`."""
        from elasticdl.backends.numpy import ArrayModel
        from elasticdl.backends.numpy_predictor import SavedArraysPredictor

        assert isinstance(model, ArrayModel)
        return SavedArraysPredictor(spec, model, metadata, directory)


def known() -> Mapping[str, Backend]:
    """Return all backends by name: those of packages first.

    Raises:
        ConfigError: A package cannot be imported.
    """
    return {**registry.brought("backends"), "numpy": ArrayBackend()}


def listed(words: list[str]) -> str:
    """Return words as they stand in a sentence: "a, b or c"."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def with_article(name: str) -> str:
    """Return a name with "a" or "an"."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
