"""One running job at a time writes to a checkpoint folder.

The lock is the kernel's (`flock` on `DIR/.in-use`). It ends with its holder, however that ends: a
job that was killed can go on at once, and one that merely stands still keeps its folder. A file
with a heartbeat would make the first wait, and would let the second lose its folder. NFS has such
locks between machines since version 4 (before, by its lock daemon) and frees those of a client that
is gone. Of a file system that has none, the user is told.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from elasticdl.errors import ConfigError

LOCK_FILE = ".in-use"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def claimed(directory: Path, holder: str) -> Iterator[str]:
    """Keep other jobs from writing to a folder within the block; makes the folder.

    Args:
        directory: `--checkpoint_dir`.
        holder: What another job that wants the folder is told of this one.

    Yields:
        A word of warning if the file system has no locks; "" otherwise.

    Raises:
        ConfigError: A running job has the folder, or it cannot be written to.
    """
    path = directory / LOCK_FILE
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file, warning = _lock(path)
        _say_who(file, holder)
    except OSError as error:
        raise ConfigError(
            f"--checkpoint_dir={directory}: cannot be written to: {error.strerror} ({path})"
        ) from error
    with file:
        try:
            yield warning
        finally:
            path.unlink(missing_ok=True)
            if is_new:
                with contextlib.suppress(OSError):  # there are checkpoints in it
                    directory.rmdir()


def _say_who(file: TextIO, holder: str) -> None:
    """Write who holds the folder; the lock goes if that fails."""
    try:
        file.truncate(0)
        file.write(json.dumps({"holder": holder, "host": socket.gethostname(), "pid": os.getpid()}))
        file.flush()
    except OSError:
        with contextlib.suppress(OSError):  # it would write once more
            file.close()
        raise


def _lock(path: Path) -> tuple[TextIO, str]:
    """Lock a file, making it; return it and a warning if there are no locks."""
    while True:
        # Open for writing: over NFS an exclusive lock needs that. Not inherited by children.
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ConfigError(
                f"--checkpoint_dir={path.parent}: a running job has this folder ({_read(path)}); "
                "wait for its end, or name another folder"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                file.close()
                raise
            return file, (
                f"--checkpoint_dir={path.parent}: this file system has no locks; see to it that "
                "no other job uses the folder while this one runs"
            )
        # Whoever had it may have removed it between our opening and locking it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file, ""
        file.close()


def _read(path: Path) -> str:
    try:
        found = json.loads(path.read_text())
        return f"{found['holder']}, process {found['pid']} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it does not say which"
