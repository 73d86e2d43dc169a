"""Runs a user's own loop in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.packages.own_loops.frameworks import ScriptFramework

if TYPE_CHECKING:
    from elasticdl.packages.own_loops.handover import Handover
    from elasticdl.packages.torch.loading import TaskBatches
    from elasticdl.packages.torch.script import ScriptTrainer


class TorchLoops(ScriptFramework):
    """Loops in PyTorch."""

    def prepare(self, seed: int, num_threads: int, device: str) -> None:
        """See `ScriptFramework`."""
        from elasticdl.packages.torch.device import open_device, prepare

        open_device(device)  # refuses one that is not there
        prepare(seed, num_threads)

    def trainer(
        self, handover: Handover, model: object, optimizer: object, seed: int, device: str
    ) -> ScriptTrainer:
        """See `ScriptFramework`."""
        from elasticdl.packages.torch.device import open_device
        from elasticdl.packages.torch.script import ScriptTrainer

        return ScriptTrainer(handover, model, optimizer, seed, open_device(device))

    def loader_batches(self) -> TaskBatches:
        """Return the `batch_sampler` of a `DataLoader`."""
        from elasticdl.packages.torch.loading import TaskBatches

        return TaskBatches()


LOOPS = TorchLoops()
