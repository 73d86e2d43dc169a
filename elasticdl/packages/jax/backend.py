"""Tells the program how models of Keras on JAX are recognised and trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.backends.backend import TrainerSettings, not_compiled
from elasticdl.packages.keras.backend import KerasBackend

if TYPE_CHECKING:
    from elasticdl.config import JobConfig
    from elasticdl.model_spec import ModelSpec
    from elasticdl.packages.jax.trainer import JaxTrainer


class JaxBackend(KerasBackend):
    """Keras on JAX. Its exports are those of Keras; scripts in it are not run so far."""

    export_files = ()
    program = ""
    table_layers = ()

    def loads(self, config: JobConfig) -> str:
        """Return JAX, if the job computes by it."""
        return "JAX" if config.model.keras_backend == "jax" else ""

    def is_imported(self) -> bool:
        """Return whether Keras is imported and computes by JAX."""
        if not super().is_imported():
            return False
        import keras  # TensorFlow may have been imported alone

        return bool(keras.backend.backend() == "jax")

    def is_model(self, model: object) -> bool:
        """Return whether it is a `keras.Model` that JAX computes."""
        return super().is_model(model) and self.is_imported()

    def trainer(self, spec: ModelSpec, model: object, settings: TrainerSettings) -> JaxTrainer:
        """See `Backend`."""
        if settings.torch_compile:
            raise not_compiled("Keras, whose steps JAX compiles in any case")
        from elasticdl.packages.jax.device import compute_by_jax
        from elasticdl.packages.keras.choice import check_framework

        check_framework("jax")
        compute_by_jax(settings.num_threads, settings.device)
        from elasticdl.packages.jax.trainer import JaxTrainer

        return JaxTrainer(*self.of_file(spec, settings))


BACKEND = JaxBackend()
