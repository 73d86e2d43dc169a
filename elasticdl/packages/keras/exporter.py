"""Writes a Keras model that TensorFlow computes as a SavedModel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from elasticdl.backends.base import Float32, TableSource
from elasticdl.backends.exported import may_be_loaded
from elasticdl.errors import CheckpointError
from elasticdl.packages.keras.export import ask, check_export, export_model
from elasticdl.packages.keras.export_beside import ask_beside, check_export_beside, export_beside
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.held import HeldVariables
from elasticdl.packages.keras.model.lookups import Collector, Site
from elasticdl.packages.keras.model.placed import PlacedModel


class TensorFlowExporter:
    """The `Exporter` of a model that TensorFlow computes.

    Args:
        placed: The model.
        sample: A minibatch of it.
        held: Its variables.
    """

    def __init__(self, placed: PlacedModel, sample: KerasMinibatch, held: HeldVariables) -> None:
        self._placed = placed
        self._sample = sample
        self._held = held

    def check(self, beside: bool) -> None:
        """Look whether the model can be exported; see `ChecksExport`."""
        with exporting(self._held):
            if beside:
                check_export_beside(self._placed, self._sample, self._sites())
            else:
                check_export(self._placed, self._sample)

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write a SavedModel that serves without elasticdl; see `Trainer.export`."""
        given = directory, dense, state
        with writing(directory), exporting(self._held):
            if tables is None:
                export_beside(self._placed, self._sample, self._sites(), *given)
            else:
                export_model(self._placed, self._sample, *given, tables)
            ask_written(directory, self._sample, beside=tables is None)

    def _sites(self) -> list[Site]:
        return Collector(self._placed, self._sample, training=False).sites


@contextmanager
def exporting(held: HeldVariables) -> Iterator[None]:
    """Return a context in which an export is made or asked; it is a traced model."""
    runs_eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    try:
        with held.open():
            yield
    finally:
        tf.config.run_functions_eagerly(runs_eagerly)


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Raise a plain error if TensorFlow cannot write a model into a folder.

    Raises:
        CheckpointError: A file cannot be written, such as on a disk that is full.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:  # what TensorFlow calls a full disk
        why = re.sub(r"\{\{.*?\}\} |\[Op:.*?\]", "", error.message).strip()
        raise CheckpointError(f"{directory}: the model cannot be written: {why}") from error


def ask_written(directory: Path, sample: KerasMinibatch, beside: bool) -> None:
    """Load an export that was written, and ask it a minibatch, if it is not too large."""
    if may_be_loaded(directory):
        (ask_beside if beside else ask)(directory, sample)
