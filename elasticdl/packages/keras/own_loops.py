"""Runs a user's own loop in Keras on TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.errors import ModelError
from elasticdl.packages.own_loops.frameworks import ScriptFramework

if TYPE_CHECKING:
    from elasticdl.packages.keras.script import ScriptTrainer
    from elasticdl.packages.own_loops.handover import Handover

_EARLY = "the script starts TensorFlow before it calls elasticdl.controller.init()"
_REMEDY = "call that right after the imports, before tensors are made"


class KerasLoops(ScriptFramework):
    """Loops in Keras."""

    def prepare(self, seed: int, num_threads: int, device: str) -> None:
        """See `ScriptFramework`; all workers begin with the same random numbers."""
        import keras  # a model file imports it, or not, by itself

        from elasticdl.packages.keras.threads import compute_with

        if keras.backend.backend() != "tensorflow":
            raise ModelError(
                "elasticdl.controller: expected Keras on TensorFlow, found KERAS_BACKEND="
                f"{keras.backend.backend()}"
            )
        compute_with(num_threads, device, _EARLY, _REMEDY)
        keras.utils.set_random_seed(seed % 2**32)

    def trainer(
        self, handover: Handover, model: object, optimizer: object, seed: int, device: str
    ) -> ScriptTrainer:
        """See `ScriptFramework`."""
        from elasticdl.packages.keras.script import ScriptTrainer

        return ScriptTrainer(handover, model, optimizer, seed)


LOOPS = KerasLoops()
