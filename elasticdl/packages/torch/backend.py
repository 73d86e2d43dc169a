"""Tells the program how models in PyTorch are recognised, trained, loaded and served."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.backends.backend import Backend, TrainerSettings
from elasticdl.packages.frameworks import lookup

if TYPE_CHECKING:
    from elasticdl.backends.backend import End
    from elasticdl.backends.base import TellFeedWay
    from elasticdl.data.base import Metadata
    from elasticdl.model_spec import ModelSpec
    from elasticdl.packages.torch.predictor import ExportedPredictor
    from elasticdl.packages.torch.served import TorchServed
    from elasticdl.packages.torch.trainer import TorchTrainer


class TorchBackend(Backend):
    """PyTorch; on the CPU where the job names no device."""

    name = "PyTorch"
    model_class = "torch.nn.Module"
    imports = ("torch",)
    export_files = ("model.safetensors",)
    program = "score.pt2"
    table_layers = ("elasticdl.packages.torch.layers",)

    def prepare(self, seed: int, num_threads: int) -> None:
        """Set the threads and the seed: a model draws its first values when it is made."""
        from elasticdl.packages.torch.device import prepare

        prepare(seed, num_threads)

    def building(self) -> AbstractContextManager[None]:
        """Return a context in which a layer with rows says that it has none yet."""
        return lookup.building()

    def trainer(self, spec: ModelSpec, model: object, settings: TrainerSettings) -> TorchTrainer:
        """See `Backend`."""
        from elasticdl.packages.torch.device import open_device
        from elasticdl.packages.torch.trainer import TorchTrainer

        return TorchTrainer(
            spec,
            model,
            settings.metadata,
            settings.seed,
            settings.run_eagerly,
            settings.torch_compile,
            open_device(settings.device or "cpu"),
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
    ) -> ExportedPredictor:
        """See `Backend`."""
        from elasticdl.packages.torch.device import open_device
        from elasticdl.packages.torch.predictor import ExportedPredictor

        return ExportedPredictor(spec, model, metadata, directory, open_device(device or "cpu"))

    def served(self, folder: Path) -> TorchServed:
        """See `Backend`."""
        from elasticdl.packages.torch.served import TorchServed

        return TorchServed(folder)

    def begin_profile(self, folder: Path) -> End | None:
        """Begin PyTorch's profiler, which writes a Chrome trace."""
        if "elasticdl.packages.torch.trainer" not in sys.modules:
            return None
        from elasticdl.packages.torch.profile import begin

        return begin(folder)


BACKEND = TorchBackend()
