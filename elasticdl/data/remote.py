"""Reads files behind URLs (`https://`, `s3://`, `gs://`, ...) by ranges of bytes, through fsspec.

A range that breaks off, or stops coming, is asked for again, in smaller parts.
"""

from __future__ import annotations

import functools
import io
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from elasticdl.distribution import install
from elasticdl.errors import ConfigError, DataError
from elasticdl.locations import reach

if TYPE_CHECKING:
    import fsspec


RANGE_BYTES = 8 << 20
LEAST_BYTES = 64 << 10
TRIES = 6
TIMEOUT_SECONDS = 30.0
_FIRST_WAIT_SECONDS = 0.25
_ASKED_AGAIN = 3
NOT_REMOTE = ("file", "local")
"""Schemes of URLs that stand for paths of this machine."""
_FORBIDDEN = (401, 403)
_GONE = (404, 410)
_TIMES = ("LastModified", "Last-Modified", "mtime", "updated", "modificationTime")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file behind a URL.

    version: Changes with the file's content, if the server tells about changes.
    """

    url: str
    num_bytes: int
    version: str


def is_url(place: str) -> bool:
    """Return whether a place is behind a URL, and not in the file system."""
    scheme, colon, _ = place.partition("://")
    return colon != "" and scheme.isidentifier() and scheme not in NOT_REMOTE


def without_query(place: str) -> str:
    """Return a URL up to its `?`, which may be followed by a signature; a path stays the same."""
    return place.partition("?")[0] if is_url(place) else place


def list_files(url: str) -> list[str]:
    """List the files of a URL: of a folder or glob, if the server has such, or the URL itself.

    Raises:
        DataError: There is no such file, or the server refuses.
    """
    fs, path = _reach(url)
    scheme = url.partition("://")[0]
    if scheme in ("http", "https"):
        return [url]
    with _Telling(url):
        is_glob = any(mark in path for mark in "*?[")
        entries = list(fs.glob(path, detail=True).values()) if is_glob else []
        if not entries and fs.isdir(path):
            entries = fs.ls(path, detail=True)
        elif not entries and _is_there(fs, path):
            return [url]
    # A glob matches folders too. S3 has marks of folders, which are empty files of such a name.
    found = [each["name"] for each in entries if each["type"] == "file"]
    found = [name for name in found if not name.endswith("/")]
    if not found:
        hint = f": only folders; give {url.rstrip('/')}/** for the files in them"
        raise DataError(f"{url}: {f'no files{hint}' if entries else 'no such file or folder'}")
    # Names in object stores begin with the bucket; other names come after the host.
    root = (
        url.rstrip("/").removesuffix(path.rstrip("/")) if path.startswith("/") else f"{scheme}://"
    )
    return [root + str(name).removeprefix(f"{scheme}://") for name in sorted(found)]


def _is_there(fs: fsspec.AbstractFileSystem, path: str) -> bool:
    """Return whether a file exists; a driver's `exists` also says no if access is refused."""
    try:
        fs.info(path)
    except FileNotFoundError:
        return False
    return True


# Each range of a file would ask for the size again.
@functools.lru_cache(maxsize=10_000)
def describe(url: str) -> RemoteFile:
    """Ask the server for the size of a file.

    Raises:
        DataError: There is no such file, the server refuses, or does not tell the size.
    """
    fs, path = _reach(url)
    failures = 0
    while True:
        try:
            with _Telling(url):
                info = fs.info(path)
            break
        except _Interrupted:
            failures += 1
            if failures == TRIES:
                raise
            _wait(failures)
    if info.get("size") is None:
        raise DataError(f"{url}: the server does not say how large it is; download it first")
    marks = (info.get(name, "") for name in ("ETag", "etag", *_TIMES))
    return RemoteFile(url, int(info["size"]), " ".join(str(mark) for mark in marks))


def require_same(file: RemoteFile) -> None:
    """Refuse a file that has changed since it was described: its ranges may be of both versions.

    Raises:
        DataError: It has changed, or is gone.
    """
    now = describe.__wrapped__(file.url)
    if now == file:
        return
    # One name may stand for several servers, each with marks of its own for the same file.
    others = (describe.__wrapped__(file.url) for _ in range(_ASKED_AGAIN))
    if now.num_bytes == file.num_bytes and any(other != now for other in others):
        return
    describe.cache_clear()
    what = f"from {file.num_bytes:,} to {now.num_bytes:,} bytes"
    if now.num_bytes == file.num_bytes:
        what = f"from version {file.version.strip()} to {now.version.strip()}"
    raise DataError(
        f"{file.url}: has changed while it was read, {what}; do not write to data of a running job"
    )


def read_range(url: str, start: int, end: int) -> bytes:
    """Read bytes `[start, end)`; after a failure, ask again from there.

    Raises:
        DataError: Too many attempts failed in a row, or the server refuses.
    """
    fs, path = _reach(url)
    parts: list[bytes] = []
    size, failures, at = RANGE_BYTES, 0, start
    while at < end:
        stop = min(end, at + size)
        try:
            with _Telling(url, at):
                part = _fetched(fs, path, url, at, stop)
                if len(part) > stop - at:
                    part = _cut(url, part, at, stop)
                if len(part) != stop - at:
                    raise OSError(f"{stop - at:,} bytes were asked for, {len(part):,} came")
        except _Interrupted:
            failures += 1
            if failures == TRIES:
                raise
            _wait(failures)
            # A smaller range is more likely to come through a connection that breaks often.
            size = max(LEAST_BYTES, size // 4)
            continue
        failures = 0
        parts.append(part)
        at = stop
    return b"".join(parts)


def _fetched(fs: fsspec.AbstractFileSystem, path: str, url: str, start: int, end: int) -> bytes:
    """Return a range as the server sends it; of a small file the server may send all."""
    options = _exactly(url)
    is_large = describe(url).num_bytes > RANGE_BYTES
    if not (is_large and url.startswith(("http://", "https://"))):
        return bytes(fs.cat_file(path, start=start, end=end, **options))
    # A file of this driver ends an answer that has more than the range; `cat_file` would read all
    # of it into memory.
    file = fs.open(path, size=describe(url).num_bytes, **options)
    try:
        return bytes(file._fetch_range(start, end))
    except ValueError as error:
        raise _sends_all(url, f"{end - start:,} bytes were asked for, all came") from error


def _cut(url: str, content: bytes, start: int, end: int) -> bytes:
    """Cut a range out of an answer that has more than the range.

    Raises:
        DataError: The answer is not the whole file, or the file is too large to be sent for each
            range.
    """
    # A small file may be sent whole each time; for a large one that would be far too slow.
    size = describe(url).num_bytes
    # Some servers ignore the range and send the whole file.
    if len(content) != size or size > RANGE_BYTES:
        came = f"{end - start:,} bytes were asked for, {len(content):,} of {size:,} came"
        raise _sends_all(url, came)
    return content[start:end]


def _sends_all(url: str, what: str) -> DataError:
    return DataError(
        f"{url}: {what}: the server does not send ranges of a file (python -m http.server is one "
        "that does not); download the file first"
    )


def _exactly(url: str) -> dict[str, object]:
    """Return options that keep a driver from reading ahead, and a server from packing ranges."""
    if url.startswith(("http://", "https://")):  # a packed answer is of the whole file
        return {"headers": {"Accept-Encoding": "identity"}}
    return {"block_size": 1} if url.startswith("webhdfs://") else {}


def ranges(url: str) -> Iterator[bytes]:
    """Yield a file's bytes from the first to the last."""
    size = describe(url).num_bytes
    for start in range(0, size, RANGE_BYTES):
        yield read_range(url, start, min(size, start + RANGE_BYTES))


class RangeFile(io.RawIOBase):
    """A file behind a URL; only the bytes that are read are fetched.

    Args:
        url: The file.
        parts: Parts of the file that were fetched already, by their offsets.
    """

    def __init__(self, url: str, parts: Mapping[int, bytes] | None = None) -> None:
        self._url = url
        self._parts = parts or {}
        self._size = describe(url).num_bytes
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, or less at the end of the file."""
        view = memoryview(buffer).cast("B")
        end = min(self._size, self._at + len(view))
        part = self._read(self._at, end) if end > self._at else b""
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _read(self, start: int, end: int) -> bytes:
        for offset, part in self._parts.items():
            if offset <= start and end <= offset + len(part):
                return part[start - offset : end - offset]
        return read_range(self._url, start, end)


def open_binary(path: str) -> BinaryIO:
    """Open a local or remote file to read it from start to end."""
    if is_url(path):
        return io.BufferedReader(RangeFile(path), buffer_size=RANGE_BYTES)
    return open(path, "rb")


def size_of(path: str) -> int:
    """Return the size of a local or remote file."""
    return describe(path).num_bytes if is_url(path) else os.path.getsize(path)


def read_bytes(path: str, start: int, end: int) -> bytes:
    """Return bytes `[start, end)` of a local or remote file."""
    if is_url(path):
        return read_range(path, start, end)
    with open(path, "rb") as file:
        return os.pread(file.fileno(), end - start, start)


class _Interrupted(DataError):
    """A range did not come whole; another attempt may succeed."""


class _Telling:
    """Turns errors of a driver within the block into ours."""

    def __init__(self, url: str, offset: int | None = None) -> None:
        self._where = url if offset is None else f"{url}: at byte {offset:,}"
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, DataError):
            return
        cause = error.__cause__
        if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
            error = cause  # the driver for http says so of whatever goes wrong
        status = getattr(error, "status", None)
        if isinstance(error, FileNotFoundError) or status in _GONE:
            raise DataError(f"{self._url}: no such file") from error
        if isinstance(error, PermissionError) or status in _FORBIDDEN or _lacks_login(error):
            raise DataError(
                f"{self._url}: the server refuses without the right credentials ({_said(error)}); "
                "give them as its driver expects them, for example AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from error
        raise _Interrupted(f"{self._where}: cannot be read: {_said(error)}") from error


def _lacks_login(error: Exception) -> bool:
    return "credentials" in type(error).__name__.lower()


def _said(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _wait(failures: int) -> None:
    """Wait before another attempt, longer each time."""
    time.sleep(_FIRST_WAIT_SECONDS * 2 ** (failures - 1))


def _reach(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a URL, and the file's name in it.

    Raises:
        ConfigError: The driver is not installed, or there is none for the scheme.
    """
    try:
        return reach(url, TIMEOUT_SECONDS)
    except ImportError as error:
        scheme = url.partition("://")[0]
        raise ConfigError(
            f"{url}: reading {scheme}:// needs a package that is not installed ({error}); "
            f"{install('remote')}, and the driver of fsspec for the scheme (s3fs, gcsfs)"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{url}: {error}") from error
    except Exception as error:  # some drivers connect here, and raise what they like
        raise DataError(f"{url}: cannot be reached: {_said(error)}") from error
