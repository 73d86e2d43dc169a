"""Versions of a continuing export: the order of versions, and how a manifest states it.

An export is a folder of versions. A **base** has all rows. A **delta** has the changes since the
version before it, its parent, which it names by the SHA-256 of the parent's manifest. So the hash
of the newest manifest stands for every byte below it. Nothing is written here: see `publishing.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elasticdl.errors import ExportError
from elasticdl.job import ServedProgram

CURRENT = "CURRENT"
"""The one file that says which version to serve."""
MANIFEST = "manifest.json"
FORMAT = 2


@dataclass(frozen=True, slots=True)
class Pointer:
    """A version, and the SHA-256 of its manifest."""

    number: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Current:
    """The content of `CURRENT`.

    is_held: Whether a person has chosen this version; the job that exports leaves it so.
    """

    version: Pointer
    is_held: bool = False

    def to_json(self) -> str:
        """Return it in the form of the file."""
        found = {"number": self.version.number, "sha256": self.version.sha256}
        return json.dumps({**found, "held": self.is_held}) + "\n"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a version's manifest.

    parent: The version to which this one is the difference; None for a base.
    mark: The name under which the replicas know this instant.
    program: The program of the model whose parameters these are.
    replicas: What each replica has written, in the store's own words.
    tables: For each table its name, its dim, and the weight that an id without a row has.
    """

    number: int
    parent: Pointer | None
    mark: str
    job: str
    model_version: int
    written: float
    program: ServedProgram
    tables: tuple[dict[str, Any], ...]
    replicas: tuple[dict[str, Any], ...]

    @property
    def is_base(self) -> bool:
        """Return whether it has all rows."""
        return self.parent is None

    def files(self) -> list[dict[str, Any]]:
        """Return its files, with path, bytes and SHA-256."""
        found = []
        for replica in self.replicas:
            found.append(replica["vectors"])
            for table in replica["tables"]:
                found += [file for file in (table["rows"], table["gone"]) if file is not None]
        return found

    def to_json(self) -> str:
        """Return it in the form of the file."""
        parent = self.parent
        content = {
            "format": FORMAT,
            "number": self.number,
            "kind": "base" if parent is None else "delta",
            "parent": parent and {"number": parent.number, "sha256": parent.sha256},
            "mark": self.mark,
            "job": self.job,
            "model_version": self.model_version,
            "written": self.written,
            "program": {"name": self.program.name, "sha256": self.program.sha256},
            "tables": list(self.tables),
            "replicas": list(self.replicas),
        }
        return json.dumps(content, indent=1) + "\n"


def folder_of(number: int) -> str:
    """Return the name of a version's folder."""
    return f"version-{number:08d}"


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def parse_current(content: bytes) -> Current:
    """Return the content of `CURRENT`.

    Raises:
        ExportError: The content has another form.
    """
    try:
        found = json.loads(content)
        return Current(_pointer(found), bool(found.get("held", False)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(
            f"expected the number and SHA-256 of a version, found {content[:80]!r}"
        ) from error


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ExportError: The content has another form.
    """
    try:
        found = json.loads(content)
        if found["format"] != FORMAT:
            raise ExportError(
                f"expected format {FORMAT}, found {found['format']!r}: it is of another version of "
                "elasticdl; a job of this one begins with a base"
            )
        parent = found["parent"]
        manifest = Manifest(
            int(found["number"]),
            None if parent is None else _pointer(parent),
            str(found["mark"]),
            str(found["job"]),
            int(found["model_version"]),
            float(found["written"]),
            ServedProgram(str(found["program"]["name"]), str(found["program"]["sha256"])),
            tuple(found["tables"]),
            tuple(found["replicas"]),
        )
        # A manifest may come from a place where others can write, and its paths are opened later.
        for path in [manifest.program.name, *(file["path"] for file in manifest.files())]:
            check_within(path)
        return manifest
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"expected a manifest, found another form ({error!r})") from error


def check_within(path: str) -> None:
    """Refuse a path that would lie outside its folder.

    Raises:
        ExportError: It would.
    """
    parts = path.split("/")
    if not path or "" in parts or ".." in parts or "\\" in path or "\0" in path:
        raise ExportError(f"expected a path below the folder, found {path!r}")


def chain(
    read: Callable[[int], bytes | None],
    wanted: Pointer,
    loaded: Pointer | None = None,
) -> list[Manifest]:
    """Return the versions that make up `wanted`, oldest first: a base and deltas, all checked.

    If `loaded` is one of these versions, only the versions after it are returned.

    Args:
        read: Returns the manifest of a version; None if there is none.
        wanted: The version.
        loaded: The version that the caller has.

    Raises:
        ExportError: A version is missing, damaged, or in the place of another one; names it.
    """
    found: list[Manifest] = []
    pointer: Pointer | None = wanted
    needed_by = ""
    # Each version names its parent, so the chain is followed from the newest to the base.
    while pointer is not None and pointer != loaded:
        manifest = _checked(read(pointer.number), pointer, needed_by)
        found.append(manifest)
        needed_by = f", which version {pointer.number} changes"
        pointer = manifest.parent
        # Numbers only fall along the chain, so a forged chain cannot run in a circle.
        if pointer is not None and pointer.number >= manifest.number:
            raise ExportError(
                f"version {manifest.number}: expected to follow an earlier version, found that it "
                f"follows version {pointer.number}"
            )
    return found[::-1]


def _checked(content: bytes | None, pointer: Pointer, needed_by: str) -> Manifest:
    name = f"version {pointer.number}"
    if content is None:
        raise ExportError(f"{name} is missing{needed_by}")
    try:
        manifest = parse_manifest(content)
    except ExportError as error:
        raise ExportError(f"{name}: {MANIFEST}: {error}") from error
    # The hash would differ too, but this error says what has happened.
    if manifest.number != pointer.number:
        raise ExportError(
            f"{name}: found version {manifest.number} in its place; versions are repeated or in "
            "another order"
        )
    if (sha256 := digest(content)) != pointer.sha256:
        raise ExportError(
            f"{name}: its manifest is damaged or another one{needed_by}: expected SHA-256 "
            f"{pointer.sha256}, found {sha256}"
        )
    return manifest


def _pointer(found: dict[str, Any]) -> Pointer:
    number, sha256 = found["number"], found["sha256"]
    if not isinstance(number, int) or not isinstance(sha256, str):
        raise TypeError(f"number {number!r}, SHA-256 {sha256!r}")
    return Pointer(number, sha256)
