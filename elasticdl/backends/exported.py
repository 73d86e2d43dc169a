"""Tells the kind of an exported model by the files of its folder, without importing a framework."""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path

from elasticdl.errors import ModelError

_SHOWN_ENTRIES = 5
_MOST_BYTES = 1 << 30  # of an export that is loaded beside what is trained

log = logging.getLogger(__name__)


class ExportKind(StrEnum):
    """The framework of an exported model."""

    KERAS = "Keras"
    TORCH = "PyTorch"
    NUMPY = "NumPy"


_FILES = {
    "saved_model.pb": ExportKind.KERAS,
    "saved_model.pbtxt": ExportKind.KERAS,
    "model.safetensors": ExportKind.TORCH,
    "model.npz": ExportKind.NUMPY,
}


def kind_of_export(directory: Path) -> ExportKind:
    """Return the framework of an exported model.

    Raises:
        ModelError: It is none, or one whose rows lie beside it.
    """
    if has_rows_beside(directory):
        raise ModelError(
            f"--saved_model={directory}: its rows lie beside it (--output_tables=parquet), for "
            "others to look up; give the checkpoint (--checkpoint_dir_for_init) instead"
        )
    for name, kind in _FILES.items():
        if (directory / name).is_file():
            return kind
    raise ModelError(
        f"--saved_model={directory}: expected a folder that --output of a training job has "
        f"written, with saved_model.pb (Keras), model.safetensors (PyTorch) or model.npz (NumPy), "
        f"{_found(directory)}"
    )


def is_export(directory: Path) -> bool:
    """Whether a folder has an exported model, or is the folder of its rows."""
    is_model = has_rows_beside(directory) or any((directory / name).is_file() for name in _FILES)
    return is_model or _is_exported_tables(directory)


def may_be_loaded(directory: Path) -> bool:
    """Whether an export that was written is to be loaded and asked; tell of one that is too large.

    The process that writes it may have no memory for it: the rows are written part by part.
    """
    num_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    if num_bytes > _MOST_BYTES:
        log.warning(
            "the export has %.1f GiB, and was not loaded: exports of more than %d GiB are not "
            "asked a minibatch by the job",
            num_bytes / (1 << 30),
            _MOST_BYTES >> 30,
        )
    return num_bytes <= _MOST_BYTES


def has_rows_beside(directory: Path) -> bool:
    """Whether a folder has an exported model whose rows lie beside it."""
    return _is_exported_tables(directory / "tables")


def _is_exported_tables(directory: Path) -> bool:
    return (directory / "_SUCCESS").is_file() and (directory / "manifest.json").is_file()


def _found(directory: Path) -> str:
    if not directory.exists():
        return "found none"
    if not directory.is_dir():
        return "found a file"
    entries = sorted(entry.name for entry in directory.iterdir())
    if not entries:
        return "found an empty folder"
    inside = next((name for name in entries if (directory / name / "saved_model.pb").is_file()), "")
    if inside:
        return f"found one in a folder of it; did you mean {directory / inside}?"
    if (directory / "manifest.json").is_file() or any(n.startswith("version-") for n in entries):
        return "found a checkpoint, which is given as --checkpoint_dir_for_init"
    shown = ", ".join(entries[:_SHOWN_ENTRIES])
    return f"found {shown}{', ...' if len(entries) > _SHOWN_ENTRIES else ''}"
