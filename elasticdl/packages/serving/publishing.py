"""Writes a continuing export: one version after the other, each as a whole or not at all.

A version's files and manifest are on the disk before `CURRENT` names it. In the file system a
version is written beside its place and then renamed. Behind a URL its manifest is written last.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.backends.exported import is_export
from elasticdl.checkpoints.writing import make_durably, set_modes, sync, sync_all, write_durably
from elasticdl.errors import CheckpointError, ConfigError, ExportError
from elasticdl.job import ServedProgram
from elasticdl.locations import Location, Url, is_remote, reaching, remove_tree
from elasticdl.packages.serving.chain import (
    CURRENT,
    MANIFEST,
    Current,
    Manifest,
    Pointer,
    chain,
    digest,
    folder_of,
    parse_current,
    parse_manifest,
)

_log = logging.getLogger(__name__)

_PARTIAL = ".partial"
_REMOVED = ".removed"


@dataclass(frozen=True, slots=True)
class Published:
    """The result of writing a version."""

    number: int
    is_base: bool
    num_rows: int
    num_gone: int
    num_bytes: int
    is_current: bool


@dataclass(frozen=True, slots=True)
class _Head:
    """The newest version of this job."""

    pointer: Pointer
    mark: str
    num_deltas: int  # since the last base
    program: ServedProgram


class Publisher:
    """Writes the versions of one job."""

    def __init__(
        self,
        directory: Location,
        job: str,
        full_every: int = 20,
        keep: int = 5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Write nothing yet.

        Args:
            directory: The place of the versions; made if missing.
            job: The job's identity: a delta follows a version of the same job.
            full_every: One of this many versions is a base.
            keep: The number of versions that are kept, beside those that these need.
            clock: Seconds since 1970.
        """
        self._directory = directory
        self._job = job
        self._full_every = full_every
        self._keep = keep
        self._clock = clock
        self._head: _Head | None = None
        self._last_number: int | None = None
        self._is_told = False  # that old versions cannot be removed

    def publish(
        self, model_version: int, program: ServedProgram | None, write: Callable[[str], list[str]]
    ) -> Published:
        """Write the next version; `CURRENT` names it unless another version is held.

        If this fails, the earlier versions stay as they are, and the next attempt writes the same
        changes.

        Args:
            model_version: The number of updates of the model.
            program: The program that the workers train; None if no worker has written it. After a
                change of the program, a base is written.
            write: Lets the replicas write their parts: `PsClient.export`.

        Raises:
            CheckpointError: A file cannot be written; says which and why.
        """
        try:
            with reaching(self._directory):
                return self._publish(model_version, program, write)
        except OSError as error:
            self._head = self._last_number = None  # what is there is looked at again
            raise CheckpointError(
                f"{error.filename or self._directory}: the version cannot be exported: "
                f"{error.strerror or error}"
            ) from error
        except BaseException:
            self._head = self._last_number = None
            raise

    def _publish(
        self, model_version: int, program: ServedProgram | None, write: Callable[[str], list[str]]
    ) -> Published:
        if is_remote(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        else:
            make_durably(self._directory)
        if self._last_number is None:
            self._look()
        assert self._last_number is not None
        # A version without its program could not be served.
        if program is None:
            raise CheckpointError(
                f"{self._directory}: no worker has written the model's program yet; the version "
                "is written after that"
            )
        if not (self._directory / program.name / MANIFEST).exists():
            raise CheckpointError(
                f"{self._directory / program.name}: a worker has written the model's program here, "
                "and it has been removed: put it back from a copy; only a new job writes it again"
            )
        head = self._head
        # Rows of another program may have other shapes; and a long chain takes long to load.
        if head is not None and (
            head.program != program or head.num_deltas + 1 >= self._full_every
        ):
            head = None
        number, mark = self._last_number + 1, uuid.uuid4().hex

        def request(folder: Location) -> list[dict[str, Any]]:
            cut = {"name": mark, "since": None if head is None else head.mark}
            answers = write(json.dumps({"directory": str(folder), "cut": cut}))
            return [json.loads(answer) for answer in answers]

        def describe(replicas: list[dict[str, Any]]) -> Manifest:
            is_base = all(replica["whole"] for replica in replicas)
            return Manifest(
                number,
                None if is_base or head is None else head.pointer,
                mark,
                self._job,
                model_version,
                round(float(self._clock()), 3),
                program,
                _tables(replicas),
                tuple(replicas),
            )

        folder = self._directory / folder_of(number)
        if is_remote(folder):
            manifest, content = _write_remote(folder, request, describe)
        else:
            manifest, content = _write_local(folder, request, describe)
        pointer = Pointer(number, digest(content))
        num_deltas = 0 if manifest.is_base or head is None else head.num_deltas + 1
        self._head, self._last_number = _Head(pointer, mark, num_deltas, program), number
        is_current = _point(self._directory, Current(pointer))
        self._prune()
        return _published(manifest, is_current)

    def _look(self) -> None:
        """Find the existing versions, and remove incomplete ones of a master that was killed."""
        read_current(self._directory)  # if it is damaged, no version is written in vain
        _check_place(self._directory)
        numbers: list[int] = []
        incomplete: list[Location] = []
        for number, folder in _folders(self._directory):
            if (folder / MANIFEST).exists():
                numbers.append(number)
            elif is_remote(folder):
                incomplete.append(folder)
        for pattern in (f"version-*{_PARTIAL}", f"version-*{_REMOVED}"):
            incomplete += _matching(self._directory, pattern)
        self._clear(remove_tree, incomplete)
        self._last_number = max(numbers, default=0)
        self._head = None
        if numbers:
            with contextlib.suppress(ExportError):
                self._head = self._head_of(self._last_number)

    def _head_of(self, number: int) -> _Head | None:
        """Return the head that a delta may follow, if its chain is complete and of this job."""
        content = _read_manifest(self._directory, number)
        if content is None:
            return None
        pointer = Pointer(number, digest(content))
        versions = chain(lambda number: _read_manifest(self._directory, number), pointer)
        newest = versions[-1]
        if newest.job != self._job:
            return None
        return _Head(pointer, newest.mark, len(versions) - 1, newest.program)

    def _prune(self) -> None:
        """Remove versions that are old, not served, and not needed by a version that stays."""
        if not self._keep:
            return
        there = sorted(number for number, _ in _folders(self._directory))
        manifests = {number: _parsed(self._directory, number) for number in there}
        needed: set[int] = set()
        current = read_current(self._directory)
        kept = there[-self._keep :] + ([] if current is None else [current.version.number])
        for number in sorted(set(kept), reverse=True):
            step: int | None = number
            while step is not None and step not in needed:
                needed.add(step)
                manifest = manifests.get(step)
                parent = None if manifest is None else manifest.parent
                step = None if parent is None else parent.number
        programs: dict[bool, set[str]] = {True: set(), False: set()}
        for number, manifest in manifests.items():
            if manifest is not None:
                programs[number in needed].add(manifest.program.name)
        gone = [folder_of(number) for number in there if number not in needed]
        gone += programs[False] - programs[True]
        self._clear(_remove, [self._directory / name for name in gone])

    def _clear(self, remove: Callable[[Location], None], places: Sequence[Location]) -> None:
        """Remove what nobody needs. If a part of it cannot be removed, it stays, and is told once.

        A new version is written by then, and must not be taken for one that failed.
        """
        try:
            with reaching(self._directory):
                for place in places:
                    remove(place)
        except (OSError, CheckpointError) as error:
            if not self._is_told:
                _log.warning("versions that nobody needs cannot be removed, and stay: %s", error)
            self._is_told = True


def read_current(directory: Location) -> Current | None:
    """Return which version is served; None if there is none yet.

    Raises:
        ExportError: `CURRENT` has another form.
    """
    place = directory / CURRENT
    try:
        return parse_current(place.read_bytes())
    except FileNotFoundError:
        return None
    except ExportError as error:
        raise ExportError(
            f"{place}: {error}; elasticdl exports {directory} --use=newest writes it anew"
        ) from error


def versions(directory: Location) -> list[Manifest]:
    """Return the existing versions, oldest first; unreadable ones are left out."""
    numbers = sorted(number for number, _ in _folders(directory))
    found = [_parsed(directory, number) for number in numbers]
    return [manifest for manifest in found if manifest is not None]


def point_to(directory: Location, number: int | None) -> Current:
    """Hold a version, so that it is served from now on; None: serve the newest, now and later.

    Raises:
        ExportError: There is no such version, or its chain is broken; then nothing has changed.
    """
    with reaching(directory):
        there = [manifest.number for manifest in versions(directory)]
        if not there:
            raise ExportError(f"{directory}: expected an export with versions, found none")
        wanted = there[-1] if number is None else number
        content = _read_manifest(directory, wanted)
        if content is None:
            known = ", ".join(map(str, there[-10:]))
            raise ExportError(f"{directory}: there is no version {wanted}, but {known}")
        pointer = Pointer(wanted, digest(content))
        # The chain is checked before `CURRENT` changes: a server would refuse a broken one.
        chain(lambda number: _read_manifest(directory, number), pointer)
        current = Current(pointer, is_held=number is not None)
        _point(directory, current, is_by_person=True)
        return current


def write_program(directory: Location, write: Callable[[Path], None]) -> ServedProgram:
    """Write the program of a model, as a whole or not at all; return its name for versions.

    The folder's name is a hash of the content. So an existing folder has the same content, or is
    written again.

    Args:
        directory: The folder of the export.
        write: Writes its files into a folder.

    Raises:
        CheckpointError: A file cannot be written. ConfigError: The folder has other results.
    """
    try:
        with reaching(directory):
            _check_place(directory)
            if is_remote(directory):
                return _send_program(directory, write)
            return _write_program(directory, write)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or directory}: the model's program cannot be written: "
            f"{error.strerror or error}"
        ) from error


def _check_place(directory: Location) -> None:
    """Refuse a folder with checkpoints, whose versions would be removed as old ones, or a model.

    Raises:
        ConfigError: It is one.
    """
    found = ""
    if not is_remote(directory) and is_export(directory):
        found = "a model of --output"
    for number in sorted(number for number, _ in _folders(directory))[-1:]:
        with contextlib.suppress(ValueError):
            manifest = json.loads(_read_manifest(directory, number) or "0")
            if isinstance(manifest, dict) and "kind" not in manifest:
                found = f"the checkpoint {folder_of(number)}"
    if found:
        raise ConfigError(
            f"--export_dir={directory}: expected a folder for versions of an export alone, found "
            f"{found} in it; name another folder"
        )


def _write_program(directory: Path, write: Callable[[Path], None]) -> ServedProgram:
    partial = directory / f"program{_PARTIAL}-{uuid.uuid4().hex[:8]}"
    try:
        make_durably(directory)
        partial.mkdir()
        write(partial)
        program = _write_list(partial)
        target = directory / program.name
        if _is_program(target, program):
            return program
        set_modes(partial)
        sync_all(partial)
        shutil.rmtree(target, ignore_errors=True)  # another one's list in its place
        try:
            partial.rename(target)
        except OSError:
            if not _is_program(target, program):  # else another worker was faster
                raise
        sync(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return program


def _send_program(directory: Url, write: Callable[[Path], None]) -> ServedProgram:
    import tempfile

    from elasticdl.locations import upload

    with tempfile.TemporaryDirectory(prefix="elasticdl-program-") as scratch:
        folder = Path(scratch)
        write(folder)
        program = _write_list(folder)
        target = directory / program.name
        if not _is_program(target, program):
            files = [file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST]
            for _ in upload(folder, files, target):
                pass
            (target / MANIFEST).write_bytes((folder / MANIFEST).read_bytes())
    return program


def _is_program(folder: Location, program: ServedProgram) -> bool:
    try:
        return digest((folder / MANIFEST).read_bytes()) == program.sha256
    except FileNotFoundError:
        return False


def _write_list(folder: Path) -> ServedProgram:
    """Write the manifest of a program: its files with their SHA-256."""
    files = [
        {
            "path": file.relative_to(folder).as_posix(),
            "bytes": file.stat().st_size,
            "sha256": digest(file.read_bytes()),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    content = json.dumps({"format": 1, "files": files}, indent=1) + "\n"
    (folder / MANIFEST).write_text(content)
    sha256 = digest(content.encode())
    return ServedProgram(f"program-{sha256[:12]}", sha256)


def _write_local(
    target: Path,
    request: Callable[[Location], list[dict[str, Any]]],
    describe: Callable[[list[dict[str, Any]]], Manifest],
) -> tuple[Manifest, bytes]:
    partial = target.with_name(target.name + _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        manifest = describe(request(partial))
        _check_there(partial, manifest)
        text = manifest.to_json()
        write_durably(partial / MANIFEST, text)
        for folder in partial.iterdir():  # the replicas have synced their files
            if folder.is_dir():
                sync(folder)
        sync(partial)
        partial.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest, text.encode()


def _write_remote(
    target: Url,
    request: Callable[[Location], list[dict[str, Any]]],
    describe: Callable[[list[dict[str, Any]]], Manifest],
) -> tuple[Manifest, bytes]:
    # Files of a failed attempt could be mixed with the new ones.
    if target.exists():  # of a try that failed
        remove_tree(target)
    manifest = describe(request(target))
    there = {
        str(name)[len(target.path.rstrip("/")) + 1 :]: int(entry["size"])
        for name, entry in target.fs.find(target.path, detail=True).items()
    }
    for file in manifest.files():
        if there.get(file["path"]) != file["bytes"]:
            raise CheckpointError(
                f"{target / file['path']}: expected {file['bytes']} bytes, found "
                f"{there.get(file['path'], 'no file')}"
            )
    content = manifest.to_json().encode()
    (target / MANIFEST).write_bytes(content)
    return manifest, content


def _check_there(folder: Path, manifest: Manifest) -> None:
    for file in manifest.files():
        path = folder / file["path"]
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            raise CheckpointError(
                f"{path}: expected {file['bytes']} bytes that a ps replica has written, found "
                f"{path.stat().st_size if path.is_file() else 'no file'}; do all processes see "
                "this folder?"
            )


def _point(directory: Location, current: Current, is_by_person: bool = False) -> bool:
    """Change the content of `CURRENT` in one step, unless a person holds another version.

    A person does so because a newer one is bad; the job must not undo that.
    """

    def is_free() -> bool:
        before = None if is_by_person else read_current(directory)
        return before is None or not before.is_held

    if is_remote(directory):
        if found := is_free():
            (directory / CURRENT).write_text(current.to_json())
        return found
    temporary = directory / f".{CURRENT}.{uuid.uuid4().hex[:8]}"
    try:
        write_durably(temporary, current.to_json())
        # Asked last, since a person may say so while the disk writes.
        if found := is_free():
            temporary.rename(directory / CURRENT)
            sync(directory)
        return found
    finally:
        temporary.unlink(missing_ok=True)


def _remove(folder: Location) -> None:
    with contextlib.suppress(FileNotFoundError):
        if is_remote(folder):
            # Without a manifest the folder is no version, even if the removal stops half-way.
            (folder / MANIFEST).unlink()
            remove_tree(folder)
        else:
            # Renamed first: a version that is half removed must not look like a version.
            removed = folder.with_name(folder.name + _REMOVED)
            folder.rename(removed)
            remove_tree(removed)


def _folders(directory: Location) -> Iterator[tuple[int, Location]]:
    for folder in _matching(directory, "version-*"):
        number = folder.name.removeprefix("version-")
        if number.isdigit():
            yield int(number), folder


def _matching(directory: Location, pattern: str) -> list[Location]:
    return [*directory.glob(pattern)]


def _read_manifest(directory: Location, number: int) -> bytes | None:
    try:
        return (directory / folder_of(number) / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None


def _parsed(directory: Location, number: int) -> Manifest | None:
    """Return the manifest of a version; None if it cannot be read."""
    content = _read_manifest(directory, number)
    with contextlib.suppress(ExportError):
        return None if content is None else parse_manifest(content)
    return None


def _tables(replicas: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    first, *_ = replicas
    return tuple(
        {"name": table["name"], "dim": table["dim"], "unseen": table["unseen"]}
        for table in first["tables"]
    )


def _published(manifest: Manifest, is_current: bool) -> Published:
    tables = [table for replica in manifest.replicas for table in replica["tables"]]
    return Published(
        manifest.number,
        manifest.is_base,
        sum(table["rows"]["rows"] for table in tables if table["rows"]),
        sum(table["gone"]["rows"] for table in tables if table["gone"]),
        sum(file["bytes"] for file in manifest.files()),
        is_current,
    )
