"""Writes a PyTorch model as files that PyTorch reads without elasticdl."""

from __future__ import annotations

from pathlib import Path

from elasticdl.backends.base import Float32, TableSource
from elasticdl.backends.exported import may_be_loaded
from elasticdl.packages.torch.export import ask, check_export, export_model
from elasticdl.packages.torch.export_beside import export_beside, make_programs
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.model import PlacedModel


class TorchExporter:
    """The `Exporter` of a PyTorch model.

    Args:
        placed: The model.
        sample: A minibatch of it.
        staged: Whether ids depend on rows or parameters.
    """

    def __init__(self, placed: PlacedModel, sample: TorchMinibatch, staged: bool) -> None:
        self._placed = placed
        self._sample = sample
        self._staged = staged

    def check(self, beside: bool) -> None:
        """Look whether the model can be exported; see `ChecksExport`."""
        check_export(self._placed.model)
        if beside:
            with self._placed.on_cpu():
                make_programs(self._placed, self._sample, self._staged)

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write the model; see `Trainer.export`."""
        self._placed.load(dense, state)
        with self._placed.on_cpu():
            if tables is None:
                export_beside(self._placed, self._sample, self._staged, directory)
            else:
                export_model(self._placed, self._sample, directory, tables)
                if may_be_loaded(directory):
                    ask(self._placed, self._sample, directory)
