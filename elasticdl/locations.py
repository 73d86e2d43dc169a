"""Locations of a user's files: in the file system, or behind a URL (`s3://`, `gs://`, ...).

URLs go through fsspec, whose drivers are separate packages. Paths go to the file system directly.
Code that only lists, reads and removes files is the same for both. Code that moves many bytes, or
that must rename a file in one instant, asks `is_remote`.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PlainSerializer, PlainValidator, ValidationInfo

from elasticdl.distribution import install
from elasticdl.errors import CheckpointError, ConfigError, ElasticdlError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_SCHEME = "://"
_CONNECTIONS = 8
SILENCE_SECONDS = 60.0
"""Longest time for a server of WebHDFS to connect, and longest silence of it."""
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
"""Scheme of a URL -> the extra of this package that installs its driver."""


_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci"})
"""Schemes of stores that have no folders."""


@dataclass(frozen=True, slots=True)
class Url:
    """A place behind a URL. It has the methods of `pathlib.Path` that code calls on both.

    A method raises exceptions of the driver; `reaching` turns them into exceptions of elasticdl.
    """

    text: str  # not a path, which would lose a slash of `s3://`

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Url:
        return self.joinpath(name)

    def joinpath(self, *names: str) -> Url:
        """Return a place below this one."""
        return Url("/".join([self.text, *names]))

    @property
    def scheme(self) -> str:
        """The part before `://`."""
        return self.text.partition(_SCHEME)[0]

    @property
    def name(self) -> str:
        """The last part."""
        return self.text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Url:
        """The URL without its last part."""
        return Url(self.text.rpartition("/")[0])

    @property
    def fs(self) -> Any:
        """The file system of fsspec for this URL."""
        return reach(self.text)[0]

    @property
    def path(self) -> str:
        """Its name in that file system."""
        return str(reach(self.text)[1])

    def exists(self) -> bool:
        """Whether there is a file or folder at this URL."""
        return bool(self.fs.exists(self.path))

    def is_dir(self) -> bool:
        """Whether there are files below this URL."""
        return bool(self.fs.isdir(self.path))

    def is_file(self) -> bool:
        """Whether there is a file at this URL."""
        return bool(self.fs.isfile(self.path))

    def iterdir(self) -> Iterator[Url]:
        """Yield the files and folders in this folder."""
        for found in self.fs.ls(self.path, detail=False):
            name = str(found).rstrip("/").rpartition("/")[2]
            if name and str(found).rstrip("/") != self.path.rstrip("/"):
                yield self / name

    def glob(self, pattern: str) -> Iterator[Url]:
        """Yield the places below this one that match."""
        start = self.path.rstrip("/") + "/"
        for found in self.fs.glob(start + pattern):
            yield self.joinpath(*str(found).removeprefix(start).strip("/").split("/"))

    def read_bytes(self) -> bytes:
        """Return a file's content."""
        return bytes(self.fs.cat_file(self.path))

    def read_text(self) -> str:
        """Return a file's content."""
        return self.read_bytes().decode()

    def write_bytes(self, content: bytes) -> None:
        """Write a file."""
        self.fs.pipe_file(self.path, content)

    def write_text(self, content: str) -> None:
        """Write a file."""
        self.write_bytes(content.encode())

    def touch(self) -> None:
        """Make an empty file."""
        self.write_bytes(b"")

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a folder. Object stores have none and would make a bucket, so nothing is done."""
        if self.scheme in _OBJECT_STORES:
            return
        if parents:
            self.fs.makedirs(self.path, exist_ok=exist_ok)
        elif not (exist_ok and self.exists()):
            self.fs.mkdir(self.path)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        with contextlib.suppress(*([FileNotFoundError] if missing_ok else [])):
            self.fs.rm_file(self.path)


@functools.lru_cache(maxsize=10_000)
def reach(url: str, timeout_seconds: float | None = None) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the name in it; nothing is sent.

    Args:
        url: A URL of any scheme that fsspec knows.
        timeout_seconds: Longest time for a server of HTTP or S3 to connect, and longest silence;
            None: the default of the driver.

    Raises:
        ImportError: The driver is not installed.
        ValueError: There is no driver for that scheme.
    """
    import fsspec

    limits = {} if timeout_seconds is None else _limits(url.partition(_SCHEME)[0], timeout_seconds)
    # Other processes write there too, so a listing of a moment ago may be wrong.
    fs, path = fsspec.url_to_fs(url, use_listings_cache=False, **limits)
    if url.startswith("webhdfs://"):
        _end_silence(fs.session)
    return fs, path


def _end_silence(session: Any) -> None:
    """Make requests fail if the server is silent. The driver of WebHDFS would wait for ever."""
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        def send(self, *args: Any, **settings: Any) -> Any:
            settings["timeout"] = settings.get("timeout") or SILENCE_SECONDS
            return super().send(*args, **settings)

    for scheme in ("http://", "https://"):
        session.mount(scheme, Limited())


def _limits(scheme: str, seconds: float) -> dict[str, Any]:
    """Return a time-out as arguments for the driver of a scheme."""
    if scheme in ("http", "https"):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
        return {"client_kwargs": {"timeout": timeout}}
    if scheme == "s3":
        return {"config_kwargs": {"connect_timeout": seconds, "read_timeout": seconds}}
    return {}


if TYPE_CHECKING:
    Location = Path | Url
else:

    def _validated(value: Any, info: ValidationInfo) -> Any:
        """Return the location that a setting names."""
        try:
            return parse(value)
        except ConfigError as error:
            raise ValueError(f"--{info.field_name}: {error}") from error

    Location = Annotated[Path, PlainValidator(_validated), PlainSerializer(str)]


def parse(place: str | Location) -> Location:
    """Return the location that a path or URL names.

    Raises:
        ConfigError: No driver knows the scheme of the URL.
    """
    if not isinstance(place, str) or _SCHEME not in place:
        return Path(place) if isinstance(place, str) else place
    scheme, _, rest = place.partition(_SCHEME)
    if scheme == "file":
        return Path(rest)
    import fsspec

    if scheme not in fsspec.available_protocols() or not rest.strip("/"):
        raise ConfigError(
            "expected a path, or a URL such as s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, found "
            f"{place!r}"
        )
    return Url(place.rstrip("/"))


def is_remote(location: Location) -> TypeIs[Url]:
    """Whether a location is behind a URL."""
    return isinstance(location, Url)


@contextlib.contextmanager
def reaching(location: Location) -> Iterator[None]:
    """Turn errors of a URL's driver within the block into errors that name the location.

    Errors of a path stay as they are.

    Raises:
        ConfigError: The driver is missing. The message says how to install it.
        CheckpointError: The server cannot be reached, or refuses.
    """
    if not is_remote(location):
        yield
        return
    try:
        yield
    except ElasticdlError:
        raise
    except ImportError as error:
        raise ConfigError(f"{location}: {_missing(location, error)}") from error
    except Exception as error:  # each driver has exceptions of its own
        why = " ".join(str(error).split()) or "no reason given"
        raise CheckpointError(f"{location}: {type(error).__name__}: {why}") from error


def _missing(location: Url, error: ImportError) -> str:
    extra = _EXTRAS.get(location.scheme)
    why = f"its driver is not installed where this process runs: {error}"
    return f"{why}; {install(extra)}" if extra else why


def modified(location: Location) -> float:
    """Return the time when a file was written, in seconds since 1970; 0: not known."""
    if not is_remote(location):
        return location.stat().st_mtime
    try:
        return float(location.fs.modified(location.path).timestamp())
    except NotImplementedError:
        return 0.0


def remove_tree(location: Location) -> None:
    """Remove a folder with its contents.

    Raises:
        FileNotFoundError: There is none.
        OSError: A part of it cannot be removed.
    """
    if is_remote(location):
        location.fs.rm(location.path, recursive=True)
    else:
        shutil.rmtree(location)


def sizes(folder: Url) -> dict[str, int]:
    """Return name and bytes of each file in a folder, without files of inner folders."""
    entries = folder.fs.ls(folder.path, detail=True)
    return {
        entry["name"].rpartition("/")[2]: int(entry["size"])
        for entry in entries
        if entry["type"] == "file"
    }


def upload(folder: Path, files: Iterable[Path], target: Url) -> Iterator[Path]:
    """Send files of a folder to the same places below a URL, several at a time; yield each.

    Raises:
        CheckpointError: A file cannot be sent.
    """

    def send(file: Path) -> Path:
        place = target.joinpath(*file.relative_to(folder).parts)
        with reaching(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.fs.put_file(str(file), place.path)
        return file

    with ThreadPoolExecutor(_CONNECTIONS, "upload") as pool:
        yield from pool.map(send, files)


def download(source: Url, names: Iterable[str], folder: Path) -> Iterator[str]:
    """Fetch files of a URL into a folder of this machine, several at a time; yield each name.

    Raises:
        CheckpointError: A file cannot be fetched; the message names it.
    """

    def fetch(name: str) -> str:
        place = source / name
        with reaching(place):
            place.fs.get_file(place.path, str(folder / name))
        return name

    with ThreadPoolExecutor(_CONNECTIONS, "download") as pool:
        yield from pool.map(fetch, names)
