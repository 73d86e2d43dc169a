"""Exports of whole tables: the replicas write Parquet files, and the worker writes a manifest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from elasticdl._core import seal_manifest
from elasticdl.checkpoints.writing import make_durably, set_modes, sync, sync_all, write_durably
from elasticdl.errors import CheckpointError
from elasticdl.locations import Url, reaching, remove_tree, upload

MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"
_FORMAT = 1


def write_tables(
    directory: Path,
    write: Callable[[str], list[str]],
    threshold: float | None,
    since_version: int | None,
    attempt: int = 1,
) -> int:
    """Export tables into a folder that appears whole, and return the number of rows.

    Args:
        directory: The folder; new or empty.
        write: `PsClient.export`: asks every replica; each answers what it has written.
        threshold: Leave out rows without a larger weight; None: write all.
        since_version: Leave out rows that were not updated after this version; None: write all.
        attempt: From the second on, the files of an earlier attempt in the folder are replaced.

    Raises:
        CheckpointError: A file cannot be written; says which and why.
    """
    partial = partial_folder(directory, attempt)
    request = {"directory": str(partial), "threshold": threshold, "since_version": since_version}
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        make_durably(partial.parent)
        partial.mkdir()
        manifest = _manifest(request, [json.loads(answer) for answer in write(json.dumps(request))])
        write_durably(partial / MANIFEST, seal_manifest(json.dumps(manifest, indent=1)))
        # Hadoop and Spark read a folder as complete if it has this file.
        write_durably(partial / SUCCESS, "")
        put_in_place(partial, directory, attempt)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or partial}: the tables cannot be exported: {error.strerror}"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sum(file["rows"] for table in manifest["tables"] for file in table["files"])


def partial_folder(directory: Path, attempt: int) -> Path:
    """Return the folder where an attempt writes, before it gets its name.

    It lies beside its place. The root of a volume has another disk beside it, and nothing can take
    its name, so there the folder lies inside.
    """
    place = directory.resolve()
    if os.path.ismount(place):
        return place / f".partial-{attempt}"
    return place.with_name(f"{place.name}.partial-{attempt}")


def put_in_place(partial: Path, directory: Path, attempt: int) -> None:
    """Give a complete folder its name, and remove the incomplete folders of earlier attempts.

    The folder is on the disk when this returns.

    Args:
        partial: The folder, beside its place.
        directory: Its place: nothing, or an empty folder.
        attempt: From the second on, the files of an earlier attempt in the place are replaced: that
            attempt may have been complete, and not reported.

    Raises:
        CheckpointError: Another file has appeared in its place meanwhile; it stays as it is.
    """
    place = directory.resolve()
    left = [partial_folder(directory, earlier) for earlier in range(1, attempt)]
    own = {partial, *left}
    found = set(place.iterdir()) - own if place.is_dir() else set()
    replaced = {entry.name for entry in partial.iterdir()} if attempt > 1 else set()
    others = sorted(entry.name for entry in found if entry.name not in replaced)
    if others:
        raise CheckpointError(
            f"{directory}: expected a folder that is new or empty, as it was when the job began, "
            f"found {', '.join(others[:5])} in it; nothing is written"
        )
    set_modes(partial)
    # The content must be on the disk before the name is: after a power loss a named folder is
    # complete.
    sync_all(partial)
    if partial.parent == place:
        _fill(place, found, partial)
    else:
        if place.is_dir():
            shutil.rmtree(place)
        partial.rename(place)
        sync(place.parent)
    for earlier in left:  # of processes that were killed
        shutil.rmtree(earlier, ignore_errors=True)


def _fill(root: Path, found: Iterable[Path], partial: Path) -> None:
    """Replace what is in the root of a volume; the mark of a complete folder comes last."""
    (root / SUCCESS).unlink(missing_ok=True)
    for entry in found:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    for entry in sorted(partial.iterdir(), key=lambda one: (one.name == SUCCESS, one.is_file())):
        entry.rename(root / entry.name)
    sync(root)
    partial.rmdir()


def send_model(scratch: Path, output: Url, attempt: int) -> None:
    """Send an exported model to a place where nothing can be renamed; `_SUCCESS` is sent last.

    Args:
        scratch: The model, complete.
        output: Its place: nothing, or an empty folder.
        attempt: From the second on, the files of an earlier attempt in the place are replaced.

    Raises:
        CheckpointError: A file cannot be sent.
    """
    with reaching(output):
        if attempt > 1 and output.exists():
            # The mark goes first: a reader must not take a half-deleted model as complete.
            (output / SUCCESS).unlink(missing_ok=True)
            remove_tree(output)
        for _ in upload(scratch, (file for file in scratch.rglob("*") if file.is_file()), output):
            pass
        (output / SUCCESS).write_text("")


def _manifest(request: dict[str, Any], replicas: list[dict[str, Any]]) -> dict[str, Any]:
    first, *_ = replicas
    tables = [
        {
            "name": table["name"],
            "dim": table["dim"],
            "has_names": table["has_names"],
            "name_collisions": sum(
                replica["tables"][number]["name_collisions"] for replica in replicas
            ),
            "files": [replica["tables"][number]["file"] for replica in replicas],
        }
        for number, table in enumerate(first["tables"])
    ]
    return {
        "format": _FORMAT,
        # The next delta must bring everything after the lowest version of all replicas.
        "version": min(replica["version"] for replica in replicas),
        "threshold": request["threshold"],
        "since_version": request["since_version"],
        "tables": tables,
    }
