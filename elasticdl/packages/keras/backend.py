"""Tells the program how models in Keras are recognised, trained, loaded and served."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from elasticdl.backends.backend import Backend, TrainerSettings, not_compiled
from elasticdl.packages.frameworks import lookup

if TYPE_CHECKING:
    from elasticdl.backends.backend import End
    from elasticdl.backends.base import TellFeedWay, Trainer
    from elasticdl.config import JobConfig
    from elasticdl.data.base import Metadata
    from elasticdl.model_spec import ModelSpec
    from elasticdl.packages.keras.predictor import SavedModelPredictor
    from elasticdl.packages.keras.served import KerasServed

    OfFile = tuple[ModelSpec, Metadata, int, int, bool, TellFeedWay]


class KerasBackend(Backend):
    """Keras on TensorFlow."""

    name = "Keras"
    model_class = "keras.Model"
    imports = ("keras", "tensorflow")
    export_files: ClassVar[tuple[str, ...]] = ("saved_model.pb", "saved_model.pbtxt")
    program = "saved_model/saved_model.pb"
    table_layers: ClassVar[tuple[str, ...]] = ("elasticdl.packages.keras.layers.embedding",)
    builds_model = True  # its trainer watches the embeddings as they are made

    def loads(self, config: JobConfig) -> str:
        """Return TensorFlow, unless the job computes by JAX."""
        return "" if config.model.keras_backend == "jax" else "TensorFlow"

    def building(self) -> AbstractContextManager[None]:
        """Return a context in which a layer with rows says that it has none yet."""
        return lookup.building()

    def trainer(self, spec: ModelSpec, model: object, settings: TrainerSettings) -> Trainer:
        """See `Backend`; raises the error for a model function that returns no Keras model, too."""
        if settings.torch_compile:
            raise not_compiled("Keras, whose steps TensorFlow compiles in any case")
        from elasticdl.packages.keras.choice import check_framework
        from elasticdl.packages.keras.threads import compute_with
        from elasticdl.packages.keras.trainer import KerasTrainer

        check_framework("tensorflow")
        compute_with(settings.num_threads, settings.device)
        return KerasTrainer(*self.of_file(spec, settings))

    @staticmethod
    def of_file(spec: ModelSpec, settings: TrainerSettings) -> OfFile:
        """Return the arguments of `KerasTrainer`."""
        return (
            spec,
            settings.metadata,
            settings.seed,
            settings.embedding_threshold_bytes,
            settings.run_eagerly,
            settings.tell_feed,
        )

    def predictor(
        self,
        spec: ModelSpec,
        model: object,
        metadata: Metadata,
        directory: Path,
        num_threads: int | None,
        device: str | None,
        tell_feed: TellFeedWay,
    ) -> SavedModelPredictor:
        """See `Backend`."""
        from elasticdl.packages.keras.predictor import SavedModelPredictor
        from elasticdl.packages.keras.threads import compute_with

        if num_threads is not None:
            compute_with(num_threads, device)
        return SavedModelPredictor(spec, metadata, directory, tell_feed)

    def served(self, folder: Path) -> KerasServed:
        """See `Backend`."""
        from elasticdl.packages.keras.served import KerasServed

        return KerasServed(folder)

    def begin_profile(self, folder: Path) -> End | None:
        """Begin TensorFlow's profiler; it writes `plugins/profile/`, for TensorBoard's plugin."""
        if "elasticdl.packages.keras.trainer" not in sys.modules:
            return None
        from elasticdl.packages.keras.profile import begin

        return begin(folder)


BACKEND = KerasBackend()
