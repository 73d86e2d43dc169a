"""Tells the program how models in Keras are recognised, trained, loaded and served."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.backends.backend import Backend, TrainerSettings, not_compiled

if TYPE_CHECKING:
    from elasticdl.backends.base import TellFeedWay, Trainer
    from elasticdl.backends.handover import Handover
    from elasticdl.backends.keras.predictor import SavedModelPredictor
    from elasticdl.backends.keras.script import ScriptTrainer
    from elasticdl.backends.keras.served import KerasServed
    from elasticdl.backends.own_profile import End
    from elasticdl.data.base import Metadata
    from elasticdl.model_spec import ModelSpec


class KerasBackend(Backend):
    """Keras on TensorFlow."""

    name = "Keras"
    model_class = "keras.Model"
    imports = ("keras", "tensorflow")
    export_files = ("saved_model.pb", "saved_model.pbtxt")
    program = "saved_model/saved_model.pb"
    table_layers = ("elasticdl.layers.embedding",)
    builds_model = True  # its trainer watches the embeddings as they are made
    runs_scripts = True

    def trainer(self, spec: ModelSpec, model: object, settings: TrainerSettings) -> Trainer:
        """See `Backend`; raises the error for a model function that returns no Keras model, too."""
        if settings.torch_compile:
            raise not_compiled("Keras, whose steps TensorFlow compiles in any case")
        from elasticdl.backends.keras.choice import is_on_jax
        from elasticdl.backends.keras.threads import compute_with

        of_file = (
            spec,
            settings.metadata,
            settings.seed,
            settings.embedding_threshold_bytes,
            settings.run_eagerly,
            settings.tell_feed,
        )
        if is_on_jax():
            from elasticdl.backends.keras.on_jax.device import compute_by_jax
            from elasticdl.backends.keras.on_jax.trainer import JaxTrainer

            compute_by_jax(settings.num_threads, settings.device)
            return JaxTrainer(*of_file)
        from elasticdl.backends.keras.trainer import KerasTrainer

        compute_with(settings.num_threads, settings.device)
        return KerasTrainer(*of_file)

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
        from elasticdl.backends.keras.predictor import SavedModelPredictor
        from elasticdl.backends.keras.threads import compute_with

        if num_threads is not None:
            compute_with(num_threads, device)
        return SavedModelPredictor(spec, metadata, directory, tell_feed)

    def served(self, folder: Path) -> KerasServed:
        """See `Backend`."""
        from elasticdl.backends.keras.served import KerasServed

        return KerasServed(folder)

    def prepare_script(self, seed: int, num_threads: int, device: str) -> None:
        """See `Backend`."""
        from elasticdl.backends.keras.threads import prepare

        prepare(seed, num_threads, device)

    def script_trainer(
        self, handover: Handover, model: object, optimizer: object, seed: int, device: str
    ) -> ScriptTrainer:
        """See `Backend`."""
        from elasticdl.backends.keras.script import ScriptTrainer

        return ScriptTrainer(handover, model, optimizer, seed)

    def begin_profile(self, folder: Path) -> End | None:
        """Begin TensorFlow's profiler; it writes `plugins/profile/`, for TensorBoard's plugin."""
        if "elasticdl.backends.keras.trainer" not in sys.modules:
            return None
        from elasticdl.backends.keras.profile import begin

        return begin(folder)
