"""Writes the program of a model for the servers of continuous exports."""

from __future__ import annotations

from pathlib import Path

from elasticdl.backends.base import Trainer
from elasticdl.config import JobConfig
from elasticdl.model_spec import model_key
from elasticdl.packages.serving.publishing import write_program
from elasticdl.packages.serving.settings import ExportsSection
from elasticdl.rpc.base import MasterClient


def model_built(config: JobConfig, worker_id: int, master: MasterClient, trainer: Trainer) -> None:
    """Write the model without its parameters, if the master lacks it; it is a `ModelBuilt`.

    The first worker does it, and any worker whose model differs.

    Raises:
        ModelError: The model cannot be served so.
    """
    directory = config.of(ExportsSection).export_dir
    if directory is None:
        return
    dense, state = trainer.initial_values()
    key = model_key(config.model, dense.tobytes(), state.tobytes())
    if not master.needs_program(worker_id, key):
        return

    def write(folder: Path) -> None:
        trainer.export(folder, dense, state, None)

    master.has_program(worker_id, key, write_program(directory, write))
