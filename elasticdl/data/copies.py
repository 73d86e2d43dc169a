"""Gives a reader files in which it can seek, by one local copy of compressed or remote files."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import logging
import os
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from elasticdl.data import remote
from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError
from elasticdl.runtime.secret_files import is_own, make_private, user_name

log = logging.getLogger(__name__)

CACHE_VARIABLE = "ELASTICDL_DATA_CACHE"
COMPRESSED = (".gz", ".zst")
_MAGICS = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
COMPRESSED_MAGICS = tuple(_MAGICS)
_COPY_BYTES = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HASH_LETTERS = 16


def readable(path: str, by_content: bool = False) -> str:
    """Return the file itself, or its uncompressed local copy.

    All processes of a machine share the copy. It is made anew when the file has changed.

    Args:
        path: The path of the file.
        by_content: Whether to look at the first bytes: the name may not say that the file is
            compressed.

    Raises:
        DataError: The file is cut short or damaged, or there is no room for the copy.
    """
    # The copy of a remote file may be compressed itself, so it is unpacked in a second step.
    packed = _fetched(path) if remote.is_url(path) else path
    codec = _codec_of(packed, path, by_content)
    if codec is None:
        return packed
    copy = _copy_of(packed)
    with _alone(copy) as is_missing:
        if is_missing:
            _unpack(packed, codec, copy, path)
    return str(copy)


@contextmanager
def said_of(path: str) -> Iterator[None]:
    """Name the file, too, where an error names its copy."""
    try:
        yield
    except DataError as error:
        if not str(error).startswith(f"{cache_folder()}/"):
            raise
        raise DataError(f"{path}: its copy {error}", error.record, error.is_certain) from error


def unpacked_name(path: str) -> str:
    """Return the name without the ending of a compressed file."""
    for ending in COMPRESSED:
        if path.lower().endswith(ending):
            return path[: -len(ending)]
    return path


def cache_folder() -> Path:
    """Return the folder of copies: `ELASTICDL_DATA_CACHE`, or below the user's cache folder.

    It is never a folder where others may write: whoever makes a file there first could choose the
    data.
    """
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME", "")
    above = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return above / "elasticdl" / "data"


def _codec_of(path: str, called: str, by_content: bool) -> str | None:
    """Return the compression of a file; `called` is its name for the user."""
    says_so = path.lower().endswith(COMPRESSED)
    if not says_so and not by_content:
        return None
    codec, is_empty = _compression_of(path)
    if codec is None and says_so:
        what = "is empty" if is_empty else "is not compressed by gzip or zstd, as its name says"
        raise DataError(f"{called}: {what}; {'make it anew' if is_empty else 'rename it'}")
    return codec


def _compression_of(path: str) -> tuple[str | None, bool]:
    """Return the compression that a file's first bytes show, and whether the file is empty."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    codecs = (codec for magic, codec in _MAGICS.items() if start.startswith(magic))
    return next(codecs, None), not start


def _copy_of(path: str) -> Path:
    """Return the name of a file's copy; it depends on the file's size and time."""
    status = os.stat(path)
    # A hash of the content would cost as much as the copy.
    identity = f"{os.path.realpath(path)}\0{status.st_size}\0{status.st_mtime_ns}"
    return _named(identity, unpacked_name(Path(path).name))


def _named(identity: str, name: str) -> Path:
    letters = hashlib.sha256(identity.encode()).hexdigest()[:_HASH_LETTERS]
    return cache_folder() / f"{letters}-{name}"


def _fetched(url: str) -> str:
    """Return the copy of a file behind a URL; make it anew when the server says that it changed."""
    file = remote.describe(url)
    name = re.sub(r"[^\w.-]", "_", remote.without_query(url).rpartition("/")[2])
    copy = _named(f"{url}\0{file.num_bytes}\0{file.version}", name)
    with _alone(copy) as is_missing:
        if is_missing:
            _fetch(url, file, copy)
    return str(copy)


def _fetch(url: str, file: remote.RemoteFile, copy: Path) -> None:
    try:
        with _new(copy) as target:
            for part in remote.ranges(url):
                target.write(part)
            remote.require_same(file)
    except OSError as error:
        raise _not_written(url, copy, error) from error


def _not_written(called: str, copy: Path, error: OSError) -> DataError:
    return DataError(
        f"{called}: its copy cannot be written to {copy.parent}: {error.strerror}; "
        f"{CACHE_VARIABLE} names another folder for copies"
    )


def _unpack(path: str, codec: str, copy: Path, called: str) -> None:
    try:
        with _new(copy) as target, open(path, "rb") as source:
            stream: IO[bytes] | gzip.GzipFile = (
                gzip.GzipFile(fileobj=source) if codec == "gzip" else _zstd_stream(source)
            )
            shutil.copyfileobj(stream, target, _COPY_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise _not_written(called, copy, error) from error
        raise DataError(f"{called}: cannot be unpacked: {error}") from error


@contextmanager
def _alone(copy: Path) -> Iterator[bool]:
    """Give whether a copy is missing, and keep other processes from making it too meanwhile.

    All workers of a machine need it at the same time, and it may be large.
    """
    if _is_there(copy):
        yield False
        return
    with _writing(copy.parent):
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(copy.parent)
        if not os.environ.get(CACHE_VARIABLE):
            make_private(copy.parent)
    lock = copy.with_name(f".{copy.name[:_HASH_LETTERS]}.lock")
    while True:
        with _writing(copy.parent):
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            is_locked = False
            with suppress(OSError):  # some file systems have no locks
                _lock(descriptor, copy)
                is_locked = True
            if not _is_named(descriptor, lock):
                continue  # whoever had it before has removed it
            try:
                if is_locked:  # so these are of processes that were killed
                    for partial in copy.parent.glob(f"{_partial_name(copy)}*"):
                        partial.unlink(missing_ok=True)
                yield not _is_there(copy)
            finally:
                lock.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, copy: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("%s: another process makes this copy; it is waited for", copy)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_named(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Tell that the folder of copies cannot be written to."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written: {error.strerror}; {CACHE_VARIABLE} names another "
            "folder for copies"
        ) from error


@contextmanager
def _new(copy: Path) -> Iterator[IO[bytes]]:
    """Give a file to write to; it becomes the copy if no error is raised."""
    with _writing(copy.parent):
        descriptor, partial = tempfile.mkstemp(".tmp", _partial_name(copy), copy.parent)
    try:
        with os.fdopen(descriptor, "wb") as target:
            yield target
        os.replace(partial, copy)
    finally:
        Path(partial).unlink(missing_ok=True)


def _partial_name(copy: Path) -> str:
    """Return how the names of partial copies begin; a lock may hold on this machine alone."""
    return f".{copy.name[:_HASH_LETTERS]}-{socket.gethostname()}-"


def _zstd_stream(source: IO[bytes]) -> IO[bytes]:
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"files compressed by zstd need pyarrow, which is not installed: {install('parquet')}"
        ) from error
    stream: IO[bytes] = pyarrow.CompressedInputStream(pyarrow.PythonFile(source, mode="r"), "zstd")
    return stream


def _is_there(copy: Path) -> bool:
    """Return whether a copy is there that this user has made and no one else can change.

    Raises:
        DataError: Another user may have put it there.
    """
    if not os.path.lexists(copy):
        return False
    _require_own(copy.parent)
    if not is_own(copy):
        raise DataError(
            f"{copy}: expected a copy that you have made, found a file that others can change or "
            "a link: remove it, and see who put it there"
        )
    return True


def _require_own(folder: Path) -> None:
    """Refuse a folder in which others could put files under our names."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise DataError(
            f"{folder}: belongs to {user_name(found.st_uid)}; {CACHE_VARIABLE} names another "
            "folder for copies"
        )
    if found.st_mode & 0o022:
        raise DataError(
            f"{folder}: others may write to it, so that the copies in it may be theirs; expected "
            f"mode 0700: remove the folder, or name another one by {CACHE_VARIABLE}"
        )
