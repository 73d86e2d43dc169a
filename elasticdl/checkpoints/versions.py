"""Finds checkpoints: `DIR/version-NNNNNNNN/manifest.json`, whole once the manifest is there.

A manifest names the job that wrote it, and the time. Jobs that use a folder one after the other
keep their checkpoints apart: if another job has the same version, the folder's name ends with the
job's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elasticdl._core import is_sealed_manifest
from elasticdl.errors import CheckpointError
from elasticdl.locations import Location, is_remote, modified, reaching

MANIFEST = "manifest.json"
FORMAT_WITH_CHECKSUM = 3
"""From this format on, a manifest has a checksum of itself."""

BASE = "base.json"
"""A file in a folder that is being written.

It names the checkpoint beside it that may have the rows which this one lacks.
"""
_log = logging.getLogger(__name__)
_VERSION_NAME = re.compile(r"version-(\d{8,})(?:-[0-9a-f]{8})?")
_JOB_DIGITS = 8


@dataclass(frozen=True, slots=True)
class WholeVersion:
    """A whole checkpoint: its folder, model version, writing job and time."""

    folder: Location
    version: int
    job: str  # "" if that is not known
    written: float  # seconds since 1970, by the clock of who wrote it


def version_folder(directory: Location, version: int, job: str = "") -> Location:
    """Return the folder of this job's checkpoint of a model version, whether it exists or not.

    Args:
        directory: `--checkpoint_dir`.
        version: Model version.
        job: The job's identity.
    """
    plain = directory / f"version-{version:08d}"
    own = directory / f"{plain.name}-{job[:_JOB_DIGITS]}"
    if not job or not (_is_taken(own) or _is_taken(plain)):
        return plain
    return own if _is_taken(own) or job_of(plain) != job else plain


def _is_taken(folder: Location) -> bool:
    """Return whether a folder exists; for a URL, where nothing is renamed, whether it is whole."""
    with reaching(folder):
        return (folder / MANIFEST if is_remote(folder) else folder).exists()


def job_of(folder: Location) -> str:
    """Return the job that wrote a checkpoint; "" if it is not known."""
    return str(_manifest(folder).get("job", ""))


@dataclass(frozen=True, slots=True)
class Begun:
    """The part of a checkpoint that a job continues with, beside the parameters.

    learning_rate: The rate that a callback had set; None: the optimizer's own.
    """

    folder: Location
    version: int
    learning_rate: float | None


def begun_with(path: Location) -> Begun:
    """Return what `--checkpoint_dir_for_init` means to the master of a new job.

    Raises:
        CheckpointError: There is no whole checkpoint.
    """
    folder = resolve(path)
    with reaching(folder):
        manifest = _manifest(folder)
    rate, version = manifest.get("learning_rate"), manifest.get("version")
    return Begun(
        folder,
        version if isinstance(version, int) else 0,
        float(rate) if isinstance(rate, float | int) else None,
    )


def whole_versions(directory: Location) -> list[WholeVersion]:
    """List the whole checkpoints in a folder, of all jobs."""
    with reaching(directory):
        return list(_whole_versions(directory))


def _whole_versions(directory: Location) -> Iterator[WholeVersion]:
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        match = _VERSION_NAME.fullmatch(entry.name)
        if match and (entry / MANIFEST).is_file():
            manifest = _manifest(entry)
            written = manifest.get("written")
            # Manifests of earlier versions have no time.
            if not isinstance(written, float):
                try:
                    written = modified(entry / MANIFEST)
                except FileNotFoundError:
                    continue  # its job has deleted it meanwhile, as one too many
            job = str(manifest.get("job", ""))
            yield WholeVersion(entry, int(match[1]), job, written)


def versions(directory: Location) -> list[int]:
    """List the model versions of the whole checkpoints in a folder, oldest first."""
    return sorted({found.version for found in whole_versions(directory)})


def bases(folder: Location) -> set[str]:
    """Return the folders beside a whole checkpoint that have the rows which it lacks.

    Raises:
        CheckpointError: The manifest cannot be read.
    """
    try:
        with reaching(folder):
            replicas = parse_manifest((folder / MANIFEST).read_bytes())["replicas"]
        return {entry["base"]["folder"] for entry in replicas if "base" in entry}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: expected a manifest: {error}") from error


def resolve(path: Location) -> Location:
    """Return the version folder that `--checkpoint_dir_for_init` means: itself, or its newest.

    The newest is the highest version of the job that wrote last: version numbers of different jobs
    cannot be compared.

    Raises:
        CheckpointError: There is no whole checkpoint.
    """
    with reaching(path):
        if (path / MANIFEST).is_file():
            return _told(path)
    found = whole_versions(path)
    if not found:
        raise CheckpointError(
            f"{path}: expected a checkpoint (a folder with {MANIFEST}) or a folder of "
            "version-NNNNNNNN checkpoints, found neither"
        )
    last = max(found, key=lambda whole: (whole.written, whole.version))
    newest = max(
        (whole for whole in found if whole.job == last.job),
        key=lambda whole: (whole.version, whole.written),
    )
    return _told(newest.folder)


def parse_manifest(content: bytes) -> Any:
    """Return the content of a manifest.

    Raises:
        ValueError: The manifest was changed or is damaged: it is not JSON, or its checksum differs.
    """
    found = json.loads(content)
    says_so = isinstance(found, dict) and found.get("format", 0) >= FORMAT_WITH_CHECKSUM
    if not is_sealed_manifest(content) and says_so:
        raise ValueError("it has no checksum of itself; it was changed or is damaged")
    return found


def _told(folder: Location) -> Location:
    """Log a warning if a manifest cannot be checked; return the folder."""
    with reaching(folder), contextlib.suppress(OSError, ValueError):  # who restores it tells those
        if not is_sealed_manifest((folder / MANIFEST).read_bytes()):
            _log.warning(
                "%s: has no checksum of itself, as an earlier version has written it; what it says "
                "is believed",
                folder / MANIFEST,
            )
    return folder


def _manifest(folder: Location) -> dict[str, object]:
    """Return a manifest; empty if it cannot be read: an error shows when it is restored."""
    try:
        manifest = parse_manifest((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
