"""Checkpoints on disk: a folder appears whole, under its name, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from elasticdl.checkpoints.versions import MANIFEST, bases, job_of, version_folder, whole_versions
from elasticdl.errors import CheckpointError

_FORMAT = 1
_FORMAT_WITH_BASE = 2
_BASE = "base.json"
_OUTLIVED = "outlived"  # in a checkpoint that is kept for those that need it alone
_PARTIAL = ".partial"
_REPLACED = ".replaced"


def write_checkpoint(
    directory: Path,
    version: int,
    model: str,
    write: Callable[[Path], list[str]],
    full_every: int = 1,
    job: str = "",
    clock: Callable[[], float] = time.time,
) -> Path:
    """Write a checkpoint and return its folder, `DIRECTORY/version-NNNNNNNN`.

    One of the same version and job is replaced, one of another job never.

    The replicas write into a folder of another name, which gets its manifest and then its own name.
    Whatever fails, that folder is removed, and the checkpoints before stay as they are.

    Args:
        directory: `--checkpoint_dir`; made if missing.
        version: Model version.
        model: Name of the model, for people who find the checkpoint.
        write: Has the replicas write their files into a folder; returns their manifest entries
            as JSON.
        full_every: Of so many checkpoints one has all rows, the others what has changed since. A
            replica that does not know what has changed writes all.
        job: The job's identity.
        clock: Seconds since 1970.

    Raises:
        CheckpointError: A file could not be written; says which and why.
    """
    target = version_folder(directory, version, job)
    partial = target.with_name(target.name + _PARTIAL)
    try:
        _remove_leftovers(directory)
        partial.mkdir(parents=True)
        base = _base(directory, target, full_every, job)
        if base is not None:
            (partial / _BASE).write_text(json.dumps({"base": base.name}))
        entries = [json.loads(entry) for entry in write(partial)]
        (partial / _BASE).unlink(missing_ok=True)
        has_base = any("base" in entry for entry in entries)
        manifest = {
            "format": _FORMAT_WITH_BASE if has_base else _FORMAT,
            "version": version,
            "model": model,
            "job": job,
            "written": round(float(clock()), 3),
            "replicas": entries,
        }
        write_durably(partial / MANIFEST, json.dumps(manifest, indent=1))
        sync_folder(partial)
        _put_in_place(partial, target)
        sync_folder(directory)
    except OSError as error:
        where = error.filename or partial
        raise CheckpointError(
            f"{where}: {error.strerror}; the checkpoints before it are kept"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def delete_checkpoints(directory: Path, old: Iterable[int], job: str = "") -> None:
    """Delete checkpoints of a job; one that is gone already is no error.

    One that others lack rows of is deleted with the last of these.

    Raises:
        CheckpointError: One cannot be deleted.
    """
    named = {version_folder(directory, version, job) for version in old}
    folders = {folder for folder in named if job_of(folder) == job}
    folders |= {mark.parent for mark in directory.glob(f"version-*/{_OUTLIVED}")}
    kept = {whole.folder for whole in whole_versions(directory)} - folders
    needed = {base for folder in kept for base in bases(folder)}
    for folder in sorted(folders):
        try:
            if folder.name in needed:
                (folder / _OUTLIVED).touch()
                continue
            # The manifest goes first: what is left of a folder without it is no checkpoint.
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or folder}: an old checkpoint cannot be deleted: {error.strerror}"
            ) from error


def _base(directory: Path, target: Path, full_every: int, job: str) -> Path | None:
    """Return the job's newest checkpoint with all rows, unless enough are based on it already."""
    if full_every == 1:
        return None
    own = [whole for whole in whole_versions(directory) if whole.job == job]
    others = [whole.folder for whole in sorted(own, key=lambda whole: whole.version)]
    needs = {folder: bases(folder) for folder in others if folder != target}
    full = [folder for folder, lacking in needs.items() if not lacking]
    if not full:
        return None
    num_based = sum(full[-1].name in lacking for lacking in needs.values())
    return full[-1] if num_based < full_every - 1 else None


def _remove_leftovers(directory: Path) -> None:
    """Remove what a master that was killed has left half-written."""
    for pattern in (f"version-*{_PARTIAL}", f"version-*{_REPLACED}"):
        for folder in directory.glob(pattern):
            shutil.rmtree(folder)


def _put_in_place(partial: Path, target: Path) -> None:
    """Give a whole checkpoint its name; one of the same version steps aside first."""
    replaced = target.with_name(target.name + _REPLACED)
    if target.exists():
        target.rename(replaced)
    partial.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)


def write_durably(path: Path, text: str) -> None:
    """Write a small file; it is on the disk when this returns."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
