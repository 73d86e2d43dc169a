"""Checkpoints behind URLs: the store writes and reads local files, which are sent and fetched.

Each replica sends its own files. When it restores, it fetches only the files that it needs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elasticdl._core import Progress, Store
from elasticdl.checkpoints.versions import BASE, MANIFEST, parse_manifest
from elasticdl.errors import CheckpointError
from elasticdl.locations import Location, Url, download, is_remote, parse, reaching, upload

_DIGITS = 16
_NUM_HASH_SLOTS = 65_536  # as crates/edl-store/src/route.rs has it


class Sender:
    """Sends a replica's files; a `PsServer` and a store in this process use it for URLs.

    The folders of one parent lie beside each other here too, as long as the process lives. So the
    store finds its last checkpoint again, and can write the difference to it.

    folder: The folder for files on their way. It belongs to this process alone, and is made when it
        is needed. The files of a predecessor are removed.
    """

    def __init__(self, folder: Path) -> None:
        """Send nothing yet."""
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)

    def scratch(self, url: str) -> str:
        """Return a folder for the files of a URL, with the request for a base if there is one.

        Raises:
            CheckpointError: The URL cannot be reached.
        """
        source = _remote(url)
        parent = hashlib.sha256(str(source.parent).encode()).hexdigest()[:_DIGITS]
        folder = self.folder / parent / source.name
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that failed
        folder.mkdir(parents=True)
        with reaching(source):
            if (source / BASE).exists():
                wish = (source / BASE).read_bytes()
                (folder / BASE).write_bytes(wish)
                base = json.loads(wish)["base"]
                # The store reads only the manifest of the base, to find out whether it knows it.
                (folder.parent / base).mkdir(exist_ok=True)
                manifest = (source.parent / base / MANIFEST).read_bytes()
                (folder.parent / base / MANIFEST).write_bytes(manifest)
        return str(folder)

    def send(self, scratch: str, url: str) -> Iterator[object]:
        """Send the files that were written there and remove them here; yield after each file.

        Raises:
            CheckpointError: A file cannot be sent.
        """
        folder = Path(scratch)
        files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name != BASE)
        try:
            yield from upload(folder, files, _remote(url))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, directory: Location, write: Callable[[str], list[str]]) -> list[str]:
        """Let a store in this process write its files to a location; return its answer."""
        if not is_remote(directory):
            return write(str(directory))
        scratch = self.scratch(str(directory))
        try:
            entries = write(scratch)
            for _ in self.send(scratch, str(directory)):
                pass
        finally:  # `send` removes the files, but it is not reached if the store fails
            shutil.rmtree(scratch, ignore_errors=True)
        return entries

    def export(self, request: str, write: Callable[[str], list[str]]) -> list[str]:
        """Do the same for a store's part of an export; the request contains the place."""
        wanted = json.loads(request)
        place = parse(wanted["directory"])

        def write_to(folder: str) -> list[str]:
            return write(json.dumps({**wanted, "directory": folder}))

        return self.write(place, write_to)


def restore(
    place: str | Location,
    replica: int = 0,
    num_replicas: int = 1,
    keep_watermarks: bool = True,
    progress: Progress | None = None,
    scratch: Path | None = None,
    disk: tuple[str, int] | None = None,
) -> Store:
    """Return a replica's part of a local or remote checkpoint; see `Store.restore`.

    Fetched files lie in `scratch`, or in the system's folder for temporary files.

    Raises:
        CheckpointError: Files are missing, torn or inconsistent, or cannot be reached.
    """
    location = parse(place)
    if not is_remote(location):
        return Store.restore(str(location), replica, num_replicas, keep_watermarks, progress, disk)
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="elasticdl-restore-", dir=scratch) as fetched:
        folder = fetch(location, replica, num_replicas, Path(fetched), progress)
        return Store.restore(str(folder), replica, num_replicas, keep_watermarks, progress, disk)


def fetch(
    source: Location,
    replica: int,
    num_replicas: int,
    scratch: Path,
    progress: Progress | None = None,
    *,
    are_rows_needed: bool = True,
    are_vectors_needed: bool = True,
) -> Path:
    """Fetch the files that a replica needs of a checkpoint; return its folder there.

    Raises:
        CheckpointError: The checkpoint cannot be reached, or its manifest has another form.
    """
    assert is_remote(source)
    entries = _fetch_manifest(source, scratch)
    try:
        wanted = {
            source.name: files_needed(
                entries, replica, num_replicas, are_rows_needed, are_vectors_needed
            )
        }
        based = [entry for entry in entries if "base" in entry]
        for folder in {entry["base"]["folder"] for entry in based}:
            own = [e["replica"] for e in based if e["base"]["folder"] == folder]
            there = _fetch_manifest(source.parent / folder, scratch)
            there = [entry for entry in there if entry["replica"] in own]
            wanted[folder] = files_needed(there, replica, num_replicas, are_rows_needed, False)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{source / MANIFEST}: expected a manifest, found another form ({error!r})"
        ) from error
    for folder, names in wanted.items():
        for _ in download(source.parent / folder, names, scratch / folder):
            if progress is not None:
                progress.note()
    return scratch / source.name


def files_needed(
    entries: list[dict[str, Any]],
    replica: int,
    num_replicas: int,
    are_rows_needed: bool = True,
    are_vectors_needed: bool = True,
) -> list[str]:
    """Return the names of the files that a replica reads of a checkpoint.

    Rows and names are divided by hash slots. A replica needs its own vectors and watermarks; if the
    number of replicas differs, it needs those of all.
    """
    own = _hash_slots_of(replica, num_replicas)
    needed = []
    for entry in entries:
        is_same = entry["num_replicas"] == num_replicas
        if are_vectors_needed and (entry["replica"] == replica or not is_same):
            needed += [file["name"] for file in entry["files"] if file.get("slots") is None]
        if not are_rows_needed:
            continue
        split = [*entry["files"], *entry.get("names", [])]
        needed += [
            file["name"]
            for file in split
            if file.get("slots") is not None and _overlap(range(*file["slots"]), own)
        ]
        theirs = _hash_slots_of(entry["replica"], entry["num_replicas"])
        if entry.get("life") is not None and _overlap(theirs, own):
            needed.append(entry["life"]["name"])
    return needed


def _fetch_manifest(source: Location, scratch: Path) -> list[dict[str, Any]]:
    with reaching(source):
        content = (source / MANIFEST).read_bytes()
    (scratch / source.name).mkdir()
    (scratch / source.name / MANIFEST).write_bytes(content)
    try:
        entries = parse_manifest(content)["replicas"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{source / MANIFEST}: expected a manifest, found another form ({error!r})"
        ) from error
    return list(entries)


def _hash_slots_of(replica: int, num_replicas: int) -> range:
    # The same division as in the store, rounded up.
    first, end = (-(-r * _NUM_HASH_SLOTS // num_replicas) for r in (replica, replica + 1))
    return range(first, end)


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _remote(url: str) -> Url:
    location = parse(url)
    assert is_remote(location), url
    return location
