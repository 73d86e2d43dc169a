"""Loads versions of an export, each after its chain has been verified."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl._core import ServedTables
from elasticdl.backends.base import Float32
from elasticdl.errors import ExportError
from elasticdl.job import ServedProgram
from elasticdl.locations import Location, download, is_remote, reaching
from elasticdl.packages.serving.chain import (
    MANIFEST,
    Manifest,
    Pointer,
    chain,
    check_within,
    digest,
    folder_of,
)
from elasticdl.packages.serving.publishing import read_current


@dataclass(frozen=True, slots=True)
class Version:
    """The content of a version, without its program.

    program: The folder with this process's own copy of the checked program.
    """

    pointer: Pointer
    manifest: Manifest
    tables: ServedTables
    dense: Float32
    state: Float32
    program: Path


class Versions:
    """The versions of one export. For one thread at a time."""

    def __init__(self, directory: Location, scratch: Path, rows_dir: Path | None = None) -> None:
        """Load nothing yet.

        Args:
            directory: The folder or URL of the export.
            scratch: Programs, and files behind a URL, are copied into this folder.
            rows_dir: The folder for files of rows, which are mapped into memory; None: rows are in
                memory.
        """
        self._directory = directory
        self._scratch = scratch
        self._rows_dir = rows_dir
        self._programs: dict[ServedProgram, Path] = {}

    def next(
        self, loaded: Version | None, begins: Callable[[Pointer], None] = lambda wanted: None
    ) -> Version | None:
        """Return the version to serve; None if it is loaded already.

        Args:
            loaded: The version that the caller has.
            begins: Called with the version to serve before it is loaded, which may take minutes.

        Raises:
            ExportError: There is no version, or it cannot be trusted; names version and file.
            CheckpointError: The export cannot be reached.
        """
        with reaching(self._directory):
            try:
                current = read_current(self._directory)
            except OSError as error:
                raise ExportError(f"{self._directory}: cannot be read: {error}") from error
            if current is None:
                raise ExportError(
                    f"{self._directory}: no version has been exported yet (there is no CURRENT)"
                )
            # The pointer has a hash of the manifest, so an equal pointer means equal rows.
            if loaded is not None and current.version == loaded.pointer:
                return None
            begins(current.version)
            try:
                return self._load(current.version, loaded)
            except OSError as error:
                raise ExportError(f"version {current.version.number}: {error}") from error

    def _load(self, wanted: Pointer, loaded: Version | None) -> Version:
        # The whole chain is verified before any row is applied.
        versions = chain(self._manifest, wanted, None if loaded is None else loaded.pointer)
        first, newest = versions[0], versions[-1]
        # The program is checked before the rows are read, which may take minutes.
        program = self._program(newest)
        served = newest if loaded is None else loaded.manifest
        for unused in self._programs.keys() - {newest.program, served.program}:
            shutil.rmtree(self._programs.pop(unused), ignore_errors=True)
        named = [(table["name"], table["dim"]) for table in first.tables]
        tables = ServedTables(named, self._rows_dir)
        if not first.is_base:
            assert loaded is not None, "a chain without a version that is loaded begins with a base"
            tables = loaded.tables
        for manifest in versions:
            try:
                with _Files(self._directory, manifest, self._scratch) as folder:
                    tables = tables.apply(folder, json.dumps(manifest.replicas))
                    if manifest is newest:
                        dense, state = _vectors(folder, manifest)
            except (OSError, ExportError) as error:
                why = str(error)
                if self._manifest(manifest.number) is None:
                    why = (
                        "it was removed while it was loaded: have the job keep versions for "
                        "longer, by --keep_exports or --export_full_every"
                    )
                raise ExportError(f"version {manifest.number}: {why}") from error
        return Version(wanted, newest, tables, dense, state, program)

    def _manifest(self, number: int) -> bytes | None:
        try:
            return (self._directory / folder_of(number) / MANIFEST).read_bytes()
        except FileNotFoundError:
            return None

    def _program(self, manifest: Manifest) -> Path:
        """Return a folder with a copy of a version's program, whose files were checked.

        It is loaded later, perhaps again after another one, and others may write to the export.
        """
        name = manifest.program.name
        if (known := self._programs.get(manifest.program)) is not None:
            return known
        place = self._directory / name
        try:
            content = (place / MANIFEST).read_bytes()
            if (found := digest(content)) != manifest.program.sha256:
                raise ExportError(
                    f"version {manifest.number}: its program {name} was exchanged: expected "
                    f"SHA-256 {manifest.program.sha256}, found {found}"
                )
            files = json.loads(content)["files"]
            paths = [str(file["path"]) for file in files]
            for path in paths:
                check_within(path)
        except FileNotFoundError as error:
            raise ExportError(
                f"version {manifest.number}: its program {name} is missing"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(f"{place / MANIFEST}: expected a list of files") from error
        folder = _fetched(place, paths, self._scratch / name)
        for file in files:
            # The program is code that this process runs, so every file of it must be the one that
            # was exported.
            if digest((folder / file["path"]).read_bytes()) != file["sha256"]:
                raise ExportError(
                    f"version {manifest.number}: {name}/{file['path']}: expected SHA-256 "
                    f"{file['sha256']}, found another"
                )
        self._programs[manifest.program] = folder
        return folder


class _Files:
    """Gives the files of a version in the file system, within a block."""

    def __init__(self, directory: Location, manifest: Manifest, scratch: Path) -> None:
        self._place = directory / folder_of(manifest.number)
        self._paths = [str(file["path"]) for file in manifest.files()]
        self._scratch = scratch
        self._made: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        if not is_remote(self._place):
            return self._place
        self._made = tempfile.TemporaryDirectory(dir=self._scratch)
        return _fetched(self._place, self._paths, Path(self._made.name))

    def __exit__(self, *error: object) -> None:
        if self._made is not None:
            self._made.cleanup()


def _fetched(place: Location, paths: list[str], folder: Path) -> Path:
    """Return a folder of this process with copies of some files of a place."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
    if is_remote(place):
        for _ in download(place, paths, folder):
            pass
    else:
        for path in paths:
            shutil.copyfile(place / path, folder / path)
    return folder


def _vectors(folder: Path, manifest: Manifest) -> tuple[Float32, Float32]:
    """Return the dense parameters and the state from the parts of the replicas."""
    dense, state = [], []
    for replica in sorted(manifest.replicas, key=lambda replica: int(replica["replica"])):
        file = replica["vectors"]
        content = (folder / file["path"]).read_bytes()
        if digest(content) != file["sha256"]:
            raise ExportError(f"{folder / file['path']}: expected SHA-256 {file['sha256']}")
        tensors = _safetensors(content)
        dense.append(tensors["dense"])
        state.append(tensors["state"])
    return np.concatenate(dense), np.concatenate(state)


def _safetensors(content: bytes) -> dict[str, Any]:
    """Read a small file of vectors; the caller has checked its checksum."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    return {
        name: np.frombuffer(data[slice(*tensor["data_offsets"])], np.float32)
        for name, tensor in header.items()
        if name != "__metadata__"
    }
