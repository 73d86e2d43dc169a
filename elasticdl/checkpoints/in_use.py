"""Keeps a folder of checkpoints, or of an export, for one running job at a time.

The lock is the kernel's (`flock` on `DIR/.in-use`). It ends with its holder, in any way. So the
successor of a killed job can start at once, and a job that only stands still keeps its folder. With
a heartbeat in a file, the first would have to wait, and the second would lose its folder.

NFS has such locks between machines since version 4 (before, by its lock daemon), and frees those of
a client that is gone. For a file system without locks, and for a URL, the user gets a warning.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from elasticdl.errors import CheckpointError, ConfigError
from elasticdl.locations import Location, Url, is_remote, reaching
from elasticdl.runtime.locks import lock_holders
from elasticdl.runtime.secret_files import private_opener

LOCK_FILE = ".in-use"
_UNKNOWN = "it does not say which"
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of `flock` on a file system that has no locks."""


@contextlib.contextmanager
def all_claimed(places: Mapping[str, Location | None], holder: str) -> Iterator[str]:
    """Claim several folders, named by their flags; yield all warnings."""
    with contextlib.ExitStack() as held:
        given = [(flag, place) for flag, place in places.items() if place is not None]
        warnings = [held.enter_context(claimed(place, holder, flag)) for flag, place in given]
        yield "; ".join(warning for warning in warnings if warning)


@contextlib.contextmanager
def claimed(directory: Location, holder: str, flag: str = "checkpoint_dir") -> Iterator[str]:
    """Keep other jobs from writing to a folder within the block; makes the folder.

    Args:
        directory: The folder.
        holder: The name of this job, which another job shows if it wants the folder.
        flag: The flag that names the folder.

    Yields:
        A warning if there are no locks; else "".

    Raises:
        ConfigError: A running job has the folder, or it cannot be written to.
    """
    if is_remote(directory):
        with _noted(directory, holder, flag) as warning:
            yield warning
        return
    path = directory / LOCK_FILE
    # A folder that this job made, and left empty, is removed at the end.
    is_new = not directory.exists()
    try:
        file, warning = _lock(path, flag)
        _say_who(file, holder)
    except OSError as error:
        raise ConfigError(
            f"--{flag}={directory}: cannot be written to: {error.strerror} ({path})"
        ) from error
    with file:
        try:
            yield warning
        finally:
            # The file is removed while the lock is held: nobody can lock it and then lose it. If it
            # cannot be removed, the lock ends all the same.
            with contextlib.suppress(OSError):
                path.unlink()
            if is_new:
                with contextlib.suppress(OSError):  # there are checkpoints in it
                    directory.rmdir()


@contextlib.contextmanager
def _noted(directory: Url, holder: str, flag: str) -> Iterator[str]:
    """Leave a note where there are no locks; yield a warning, with the note of another job.

    No job is refused: the note of a job that was killed looks like that of a running job.
    """
    note = directory / LOCK_FILE
    try:
        with reaching(note):
            before = _who(note.read_text()) if note.exists() else ""
            directory.mkdir(parents=True, exist_ok=True)
            note.write_text(_note(holder))
    except CheckpointError as error:
        raise ConfigError(f"--{flag}={directory}: cannot be written to: {error}") from error
    try:
        yield (
            f"--{flag}={directory}: there are no locks behind a URL; see to it that no "
            "other job uses the folder while this one runs"
            + (f". It was last used by {before}, which has not ended in order" if before else "")
        )
    finally:
        with contextlib.suppress(CheckpointError), reaching(note):
            note.unlink(missing_ok=True)


def _note(holder: str) -> str:
    return json.dumps({"holder": holder, "host": socket.gethostname(), "pid": os.getpid()})


def _say_who(file: TextIO, holder: str) -> None:
    """Write the name of the holder; the lock is released if that fails."""
    try:
        file.truncate(0)
        file.write(_note(holder))
        file.flush()
    except OSError:
        with contextlib.suppress(OSError):  # it would write once more
            file.close()
        raise


def _lock(path: Path, flag: str) -> tuple[TextIO, str]:
    """Lock a file, making it and its folder; return it, and a warning if there are no locks."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Open for writing: over NFS an exclusive lock needs that. Not inherited by children.
        try:
            file = open(path, "a+", opener=private_opener)  # noqa: SIM115 - the caller closes it
        except FileNotFoundError:
            continue  # whoever had it may have removed the folder too
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            holders = "".join(f"; {path.name} is locked by {one}" for one in lock_holders(path))
            raise ConfigError(
                f"--{flag}={path.parent}: a running job has this folder ({_read(path)}"
                f"{holders}); wait for its end, or name another folder"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                file.close()
                raise
            return file, (
                f"--{flag}={path.parent}: this file system has no locks; see to it that "
                "no other job uses the folder while this one runs"
            )
        # The last holder may have removed the file after it was opened here and before it was
        # locked. Then the lock is on a file without a name, and the next job would not see it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file, ""
        file.close()


def _read(path: Path) -> str:
    try:
        return _who(path.read_text())
    except OSError:
        return _UNKNOWN


def _who(note: str) -> str:
    try:
        found = json.loads(note)
        return f"{found['holder']}, process {found['pid']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return _UNKNOWN
