"""Tells the framework of an exported model by the files of its folder, without importing it."""

from __future__ import annotations

import logging
from pathlib import Path

from elasticdl.backends.backend import Backend
from elasticdl.backends.known import known, listed
from elasticdl.errors import ModelError

_SHOWN_ENTRIES = 5
_MOST_BYTES = 1 << 30  # of an export that is loaded beside what is trained

log = logging.getLogger(__name__)


def backend_of_export(directory: Path) -> Backend:
    """Return the backend of an exported model.

    Raises:
        ModelError: It is none, or one whose rows lie beside it.
    """
    if has_rows_beside(directory):
        raise ModelError(
            f"--saved_model={directory}: expected an export with its rows inside, found one with "
            "--output_tables=parquet; give the checkpoint (--checkpoint_dir_for_init) instead"
        )
    backends = known().values()
    for backend in backends:
        if _has_one(directory, backend):
            return backend
    files = [f"{each.export_files[0]} ({each.name})" for each in backends if each.export_files]
    raise ModelError(
        f"--saved_model={directory}: expected a folder that --output of a training job has "
        f"written, with {listed(files)}, {_found(directory)}"
    )


def is_export(directory: Path) -> bool:
    """Whether a folder has an exported model, or is the folder of its rows."""
    is_model = has_rows_beside(directory) or _has_model(directory)
    return is_model or _is_exported_tables(directory)


def may_be_loaded(directory: Path) -> bool:
    """Whether an export that was written is to be loaded and asked; tell of one that is too large.

    The process that writes it may have no memory for it: the rows are written part by part.
    """
    num_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    if num_bytes > _MOST_BYTES:
        log.warning(
            "the export has %.1f GiB, and was not loaded: the job does not test exports of more "
            "than %d GiB with a minibatch",
            num_bytes / (1 << 30),
            _MOST_BYTES >> 30,
        )
    return num_bytes <= _MOST_BYTES


def has_rows_beside(directory: Path) -> bool:
    """Whether a folder has an exported model whose rows lie beside it."""
    return _is_exported_tables(directory / "tables")


def _has_model(directory: Path) -> bool:
    return any(_has_one(directory, backend) for backend in known().values())


def _has_one(directory: Path, backend: Backend) -> bool:
    return any((directory / name).is_file() for name in backend.export_files)


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
    inside = next((name for name in entries if _has_model(directory / name)), "")
    if inside:
        return f"found one in a folder of it; did you mean {directory / inside}?"
    if (directory / "CURRENT").is_file():
        return "found versions of --export_dir, with which elasticdl serve answers"
    if (directory / "manifest.json").is_file() or any(n.startswith("version-") for n in entries):
        return "found a checkpoint, which is given as --checkpoint_dir_for_init"
    shown = ", ".join(entries[:_SHOWN_ENTRIES])
    return f"found {shown}{', ...' if len(entries) > _SHOWN_ENTRIES else ''}"
