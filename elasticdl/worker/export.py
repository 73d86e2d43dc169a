"""The last task of a job: it writes the model and the tables for those who serve them."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

from elasticdl.backends.base import TableSource, Trainer
from elasticdl.checkpoints.exports import partial_folder, put_in_place, send_model, write_tables
from elasticdl.checkpoints.writing import make_durably
from elasticdl.config import CheckpointSection
from elasticdl.data.base import Metadata
from elasticdl.errors import CheckpointError, ElasticdlError
from elasticdl.job import Lease
from elasticdl.locations import Location, is_remote
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.trained_columns import write_trained_columns

log = logging.getLogger(__name__)

TABLES = "tables"
"""Folder of the rows in an exported model whose rows lie beside it."""


def export(
    exchange: Exchange,
    trainer: Trainer,
    settings: CheckpointSection,
    lease: Lease,
    by_clock: bool = True,
    trained_on: Metadata | None = None,
) -> bool:
    """Write the model and the tables, as far as `settings` asks for them.

    Args:
        exchange: The exchange with the holders of the parameters.
        trainer: The model.
        settings: The files to write, and their places.
        lease: The lease of the export.
        by_clock: Whether rows with a limited life expire by the clock; expired rows are not
            written. In a stream the master removes them, by the time of events.
        trained_on: The known facts about the columns of the training data, written beside the
            model.

    Returns:
        Whether the export is complete. It is not if a replica was lost meanwhile: its successor may
        not have replayed all updates when it was read.
    """
    try:
        if by_clock and exchange.stores is not None:
            exchange.stores.expire()
        if settings.export_tables is not None:
            _export_tables(exchange, settings.export_tables, settings, lease.number)
        if settings.output is not None:
            columns = trained_on or Metadata()
            _export_model(exchange, trainer, settings, settings.output, lease, columns)
    # An error is only reported if no replica was lost: else the lost replica is its likely cause.
    except ElasticdlError as error:
        if exchange.generation == lease.generation:
            raise
        log.info("the export begins again: %s", error)
    return exchange.generation == lease.generation


def _export_tables(
    exchange: Exchange, directory: Path, settings: CheckpointSection, attempt: int
) -> None:
    """Have all replicas write the tables as Parquet at once; a new attempt starts from nothing.

    Raises:
        CheckpointError: A file cannot be written.
    """
    num_rows = write_tables(
        directory,
        exchange.client.export,
        settings.export_threshold,
        settings.export_since_version,
        attempt,
    )
    log.info("%d rows are exported to %s", num_rows, directory)


def _export_model(
    exchange: Exchange,
    trainer: Trainer,
    settings: CheckpointSection,
    output: Location,
    lease: Lease,
    columns: Metadata,
) -> None:
    """Write the model beside its place and move it there whole; or write it here and send it."""
    if is_remote(output):
        with tempfile.TemporaryDirectory(prefix="elasticdl-export-") as scratch:
            write_trained_columns(Path(scratch), columns)
            if _write_model(exchange, trainer, Path(scratch), lease, exchange.client):
                send_model(Path(scratch), output, lease.number)
        return
    partial = partial_folder(output, lease.number)
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        make_durably(partial.parent)
        partial.mkdir()
        if settings.output_tables == "parquet":
            every_row = settings.model_copy(
                update={"export_threshold": None, "export_since_version": None}
            )
            _export_tables(exchange, partial / TABLES, every_row, lease.number)
        tables = exchange.client if settings.output_tables == "inside" else None
        write_trained_columns(partial, columns)
        if _write_model(exchange, trainer, partial, lease, tables):
            put_in_place(partial, output, lease.number)
    except OSError as error:
        raise CheckpointError(
            f"--output={output}: the model cannot be written: {error.strerror or error} "
            f"({error.filename or partial})"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(
    exchange: Exchange, trainer: Trainer, folder: Path, lease: Lease, tables: TableSource | None
) -> bool:
    """Write the model into a folder; return whether all of it came from the same replicas."""
    parameters = exchange.pull([])
    trainer.export(folder, parameters.dense, parameters.state, tables)
    return exchange.generation == lease.generation
