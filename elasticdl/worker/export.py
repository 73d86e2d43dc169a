"""The task that comes last: write what the job leaves to those who serve."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from elasticdl.backends.base import Trainer
from elasticdl.checkpoints.exports import put_in_place
from elasticdl.config import CheckpointSection
from elasticdl.errors import ElasticdlError
from elasticdl.job import Lease
from elasticdl.worker.exchange import Exchange

log = logging.getLogger(__name__)


def export(exchange: Exchange, trainer: Trainer, settings: CheckpointSection, lease: Lease) -> bool:
    """Write the model and the tables, as far as `settings` asks for them.

    Returns:
        Whether it is there. It is not if a replica was lost meanwhile: what was read of its
        successor may lack what is still to be replayed.
    """
    try:
        exchange.expire()
        if settings.export_tables is not None:
            exchange.export_tables(settings.export_tables, settings, lease.number)
        if settings.output is not None:
            _export_model(exchange, trainer, settings.output, lease)
    except ElasticdlError as error:
        if exchange.generation == lease.generation:
            raise
        log.info("the export is begun anew: %s", error)
    return exchange.generation == lease.generation


def _export_model(exchange: Exchange, trainer: Trainer, output: Path, lease: Lease) -> None:
    """Write the model beside its place, then move it there whole."""
    partial = output.with_name(f"{output.name}.partial-{lease.number}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    parameters = exchange.pull([])
    trainer.export(partial, parameters.dense, parameters.state, exchange)
    if exchange.generation != lease.generation:
        shutil.rmtree(partial)
        return
    put_in_place(partial, output, lease.number)
