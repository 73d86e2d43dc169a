"""Writes checkpoints: each appears as a whole, under its name, or not at all.

In the file system a folder is written beside its place and then renamed. Behind a URL nothing can
be renamed, so the manifest, which makes a checkpoint whole, is written last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from elasticdl._core import seal_manifest
from elasticdl.checkpoints.versions import (
    BASE,
    MANIFEST,
    bases,
    version_folder,
    whole_versions,
)
from elasticdl.errors import CheckpointError
from elasticdl.locations import Location, Url, is_remote, reaching, remove_tree, sizes

_FORMAT = 3
_UNFINISHED = "unfinished.json"  # behind a URL: says whose folder it is that has no manifest yet
_PARTIAL = ".partial"
_REPLACED = ".replaced"  # until the one that takes its place has its name
_DELETED = ".deleted"  # about to be


def write_checkpoint(
    directory: Location,
    version: int,
    model: str,
    write: Callable[[Location], list[str]],
    full_every: int = 1,
    job: str = "",
    clock: Callable[[], float] = time.time,
    learning_rate: float | None = None,
) -> Location:
    """Write a checkpoint and return its folder, `DIRECTORY/version-NNNNNNNN`.

    A checkpoint of the same version and job is replaced, one of another job never.

    After an error the new files are removed, and the earlier checkpoints stay as they are.

    Args:
        directory: `--checkpoint_dir`; made if missing.
        version: Model version.
        model: Name of the model, for people who find the checkpoint.
        write: Lets the replicas write their files into a folder; returns their manifest entries as
            JSON.
        full_every: One of this many checkpoints has all rows, the others have the changes since it.
            A replica that does not know its changes writes all rows.
        job: The job's identity.
        clock: Returns seconds since 1970.
        learning_rate: The rate that a callback has set; a job that begins with the checkpoint uses
            it.

    Raises:
        CheckpointError: A file could not be written; says which and why.
    """
    target = version_folder(directory, version, job)
    base = _base(directory, target, full_every, job)

    def manifest(entries: list[dict[str, Any]]) -> str:
        content = {
            "format": _FORMAT,
            "version": version,
            "model": model,
            "job": job,
            "written": round(float(clock()), 3),
            **({} if learning_rate is None else {"learning_rate": learning_rate}),
            "replicas": entries,
        }
        return seal_manifest(json.dumps(content, indent=1))

    if is_remote(target):
        _write_remote(target, base, job, write, manifest)
    else:
        _write_local(target, base, write, manifest)
    return target


def _write_local(
    target: Path,
    base: Location | None,
    write: Callable[[Location], list[str]],
    manifest: Callable[[list[dict[str, Any]]], str],
) -> None:
    partial = target.with_name(target.name + _PARTIAL)
    try:
        make_durably(target.parent)
        # A job of an earlier process may have been killed at any step.
        _remove_leftovers(target.parent)
        partial.mkdir()
        if base is not None:
            (partial / BASE).write_text(json.dumps({"base": base.name}))
        entries = [json.loads(entry) for entry in write(partial)]
        # The request for a base is no part of the checkpoint.
        (partial / BASE).unlink(missing_ok=True)
        write_durably(partial / MANIFEST, manifest(entries))
        sync(partial)
        _put_in_place(partial, target)
    except OSError as error:
        where = error.filename or partial
        raise CheckpointError(
            f"{where}: {error.strerror}; the checkpoints before it are kept"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_remote(
    target: Url,
    base: Location | None,
    job: str,
    write: Callable[[Location], list[str]],
    manifest: Callable[[list[dict[str, Any]]], str],
) -> None:
    with reaching(target):
        _remove_unfinished(target.parent, job)
        if target.exists():  # of the same version and job, or what a killed job has left
            (target / MANIFEST).unlink(missing_ok=True)
            remove_tree(target)
        target.mkdir(parents=True, exist_ok=True)
        (target / _UNFINISHED).write_text(json.dumps({"job": job}))
        try:
            if base is not None:
                (target / BASE).write_text(json.dumps({"base": base.name}))
            entries = [json.loads(entry) for entry in write(target)]
            # A server may lose a file without an error, so the sizes are checked before the
            # manifest makes the checkpoint whole.
            check_sent(target, entries)
            if base is not None:
                (target / BASE).unlink()
            (target / MANIFEST).write_text(manifest(entries))
        except BaseException:
            with contextlib.suppress(Exception):  # the first error says more
                remove_tree(target)
            raise
        (target / _UNFINISHED).unlink()


def check_sent(target: Url, entries: list[dict[str, Any]]) -> None:
    """Check that all files are there, each with all of its bytes.

    Raises:
        CheckpointError: A file is missing or too short.
    """
    there = sizes(target)
    for entry in entries:
        life = [entry["life"]] if entry.get("life") else []
        for file in [*entry.get("files", []), *entry.get("names", []), *life]:
            found = there.get(file["name"])
            if found != file["bytes"]:
                raise CheckpointError(
                    f"{target / file['name']}: expected {file['bytes']} bytes, found "
                    f"{'no file' if found is None else found}"
                )


def _remove_unfinished(directory: Url, job: str) -> None:
    """Remove incomplete checkpoints of a killed master of this job."""
    for mark in list(directory.glob(f"version-*/{_UNFINISHED}")):
        is_whole = (mark.parent / MANIFEST).exists()
        if is_whole:
            mark.unlink()
        elif json.loads(mark.read_text()).get("job") == job:
            remove_tree(mark.parent)


def delete_checkpoints(directory: Location, kept: Collection[int], job: str) -> None:
    """Delete the checkpoints of a job that are older than the newest of `kept`, except `kept`.

    The folder is listed for this: a killed master may have left a checkpoint that no journal names.
    A checkpoint also stays if one that is kept lacks rows that it has.

    Args:
        directory: The folder of the job's checkpoints; other jobs may have theirs there too.
        kept: Model versions, at least one.
        job: The job's identity.

    Raises:
        CheckpointError: A checkpoint cannot be deleted.
    """
    newest = max(kept)
    with reaching(directory):
        own = [whole for whole in whole_versions(directory) if whole.job == job]
        old = [whole for whole in own if whole.version < newest and whole.version not in kept]
        needed = {base for whole in own if whole not in old for base in bases(whole.folder)}
        for whole in sorted(old, key=lambda whole: whole.version):
            if whole.folder.name not in needed:
                _delete(whole.folder, job)


def _delete(folder: Location, job: str) -> None:
    """Delete a checkpoint; if this is cut short, the writer of the next one deletes the rest."""
    try:
        if is_remote(folder):
            # The mark comes before the manifest goes, so that a killed master's successor finds the
            # rest.
            (folder / _UNFINISHED).write_text(json.dumps({"job": job}))
            (folder / MANIFEST).unlink()
            remove_tree(folder)
        else:
            deleted = folder.with_name(folder.name + _DELETED)
            folder.rename(deleted)
            remove_tree(deleted)
    except FileNotFoundError:
        return  # somebody else has deleted it
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder}: an old checkpoint cannot be deleted: "
            f"{error.strerror or error}"
        ) from error


def _base(directory: Location, target: Location, full_every: int, job: str) -> Location | None:
    """Return the job's newest checkpoint with all rows, unless enough others are based on it."""
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
    """Remove what a killed master has left half-written or half-deleted."""
    put_back(directory)
    for suffix in (_PARTIAL, _REPLACED, _DELETED):
        for folder in directory.glob(f"version-*{suffix}"):
            shutil.rmtree(folder)


def _put_in_place(partial: Path, target: Path) -> None:
    """Give a whole checkpoint its name, durably; one of the same version steps aside first."""
    replaced = target.with_name(target.name + _REPLACED)
    if target.exists():
        target.rename(replaced)
    try:
        partial.rename(target)
    except OSError:
        put_back(target.parent)
        raise
    sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def put_back(directory: Location) -> None:
    """Give a checkpoint its name back if it stepped aside for another one that has not come.

    The writer of a checkpoint of the same version may be killed between the two renames. A master
    that continues a job calls this before any replica restores a checkpoint. Behind a URL nothing
    is renamed.

    Raises:
        OSError: The folder cannot be read or changed.
    """
    if is_remote(directory):
        return
    for replaced in directory.glob(f"version-*{_REPLACED}"):
        target = replaced.with_name(replaced.name.removesuffix(_REPLACED))
        if not target.exists():
            replaced.rename(target)
            sync(directory)


def write_durably(path: Path, text: str) -> None:
    """Write a small file; it is on the disk when this returns."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def make_durably(folder: Path) -> None:
    """Make a folder and its missing parents; their names are on the disk when this returns.

    A process that was killed may have made the last existing folder without syncing its name.
    """
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    last = missing[-1].parent if missing else folder
    sync(last.parent)
    for above in reversed(missing):
        above.mkdir(exist_ok=True)
        sync(above.parent)


def set_modes(folder: Path) -> None:
    """Give the content of a folder the modes of the umask, like the folder itself.

    Some libraries write files that only their owner may read, whatever the umask is.
    """
    of_folders = stat.S_IMODE(folder.stat().st_mode)
    for path in folder.rglob("*"):
        mode = of_folders if path.is_dir() else of_folders & 0o666
        if stat.S_IMODE(path.stat().st_mode) != mode:
            with contextlib.suppress(PermissionError):  # a replica of another user has written it
                path.chmod(mode)


def sync_all(folder: Path) -> None:
    """Write a folder and all its content to the disk, but not its own name."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
