"""The hand-over of a ps replica: it writes everything that it holds, for its successor.

It lies beside the job's recovery checkpoints, in a folder of its own. It is complete when its
manifest is there. A checkpoint of all replicas has another form and another name. The dense
parameters in a checkpoint of a hybrid job have this form too, and may lie behind a URL.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from elasticdl._core import seal_manifest
from elasticdl.checkpoints.versions import MANIFEST
from elasticdl.checkpoints.writing import check_sent, make_durably, sync, write_durably
from elasticdl.errors import CheckpointError
from elasticdl.locations import Location, is_remote, reaching

_NAME = "hand-over"
_FORMAT = 3
_SESSION_DIGITS = 16


def hand_over_folder(directory: Path, index: int, session: str) -> Path:
    """Return the folder of one process; a session may be any string, so its hash is used."""
    # Another session must not find this folder: it has only one replica's part of a version.
    digits = hashlib.sha256(session.encode()).hexdigest()[:_SESSION_DIGITS]
    return directory / f"{_NAME}-{index}-{digits}"


def write_hand_over(folder: Location, write: Callable[[str], str]) -> int:
    """Write everything that a replica holds, and return its version.

    Args:
        folder: As returned by `hand_over_folder`.
        write: `Store.checkpoint`: writes its files into a folder and returns its manifest entry.
            For a URL the files are there when it returns.

    Raises:
        CheckpointError: A file cannot be written; says which and why.
    """
    if is_remote(folder):
        with reaching(folder):
            entry = json.loads(write(str(folder)))
            check_sent(folder, [entry])
            (folder / MANIFEST).write_text(_manifest(entry))
        return int(entry["version"])
    try:
        make_durably(folder.parent)
        folder.mkdir()
        entry = json.loads(write(str(folder)))
        write_durably(folder / MANIFEST, _manifest(entry))
        # The successor may start on another machine, right after a power loss.
        sync(folder)
        sync(folder.parent)
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: {error.strerror}") from error
    return int(entry["version"])


def _manifest(entry: dict[str, Any]) -> str:
    content = {"format": _FORMAT, "is_part": True, "replicas": [entry]}
    return seal_manifest(json.dumps(content, indent=1))


def hand_overs(directory: Path) -> set[Path]:
    """Return the folders of hand-overs, complete or not."""
    return set(directory.glob(f"{_NAME}-*"))


def delete_hand_overs(folders: Iterable[Path]) -> None:
    """Delete hand-overs.

    Raises:
        CheckpointError: One cannot be deleted.
    """
    for folder in sorted(folders):
        try:
            # The manifest goes first: the rest of a folder without a manifest is never restored.
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder)
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or folder}: what a ps replica has handed over cannot be "
                f"deleted: {error.strerror}"
            ) from error
