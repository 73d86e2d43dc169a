"""Finds checkpoints: `DIR/version-NNNNNNNN/manifest.json`, whole once the manifest is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from elasticdl.errors import CheckpointError

MANIFEST = "manifest.json"
_VERSION_NAME = re.compile(r"version-(\d{8,})")


def version_folder(directory: Path, version: int) -> Path:
    """Return where the checkpoint of a model version lies."""
    return directory / f"version-{version:08d}"


def versions(directory: Path) -> list[int]:
    """List the versions of the whole checkpoints in a folder, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(
        int(match[1])
        for entry in directory.iterdir()
        if (match := _VERSION_NAME.fullmatch(entry.name)) and (entry / MANIFEST).is_file()
    )


def bases(folder: Path) -> set[str]:
    """Return the folders beside a whole checkpoint that hold the rows which it lacks.

    Raises:
        CheckpointError: The manifest cannot be read.
    """
    try:
        replicas = json.loads((folder / MANIFEST).read_bytes())["replicas"]
        return {entry["base"]["folder"] for entry in replicas if "base" in entry}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: expected a manifest: {error}") from error


def resolve(path: Path) -> Path:
    """Return the version folder that `--checkpoint_dir_for_init` means: itself, or its newest.

    Raises:
        CheckpointError: There is no whole checkpoint.
    """
    if (path / MANIFEST).is_file():
        return path
    found = versions(path)
    if not found:
        raise CheckpointError(
            f"{path}: expected a checkpoint (a folder with {MANIFEST}) or a folder of "
            "version-NNNNNNNN checkpoints, found neither"
        )
    return version_folder(path, found[-1])
