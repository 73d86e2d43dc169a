"""Reads the rows with which embedding tables begin, from files: `--pretrained_rows`.

Every ps replica reads the files itself and keeps its own rows. A file has keys, each of them once,
and the row of each key:

- `.npz` and `.safetensors`: arrays `keys` (n,) of integers and `rows` (n, dim) of floats;
- `.parquet`: columns `key` and `weights`, as `--export_tables` writes them.

If a folder is given, all files of these kinds in it are read. Files behind a URL are fetched one
after the other. A checkpoint, of a model in any framework, gives its table of the same name.
"""

from __future__ import annotations

import json
import logging
import math
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import Progress, PsClient, Store
from elasticdl.checkpoints.remote import restore
from elasticdl.checkpoints.versions import MANIFEST, parse_manifest, resolve, whole_versions
from elasticdl.data.parquet import import_pyarrow
from elasticdl.errors import ConfigError, DataError
from elasticdl.locations import Location, download, is_remote, parse, reaching

log = logging.getLogger(__name__)

CHUNK_ROWS = 1 << 16
SAFETENSORS_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "U64": "<u8", "I32": "<i4", "U32": "<u4",
}  # fmt: skip
Chunk = tuple[NDArray[Any], NDArray[Any]]
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Errors of libraries in a file that is damaged, or of another form."""


def sources_of(flag: str) -> dict[str, list[Location]]:
    """Return the files of each table in `--pretrained_rows`, "TABLE=PATH;TABLE=PATH".

    Raises:
        ConfigError: The words do not parse, or there is no such file; says what was expected.
        CheckpointError: A URL cannot be reached.
    """
    sources: dict[str, list[Location]] = {}
    for words in filter(None, (words.strip() for words in flag.split(";"))):
        table, equals, path = words.partition("=")
        if not (table and equals and path) or table in sources:
            raise ConfigError(
                f'--pretrained_rows: expected "TABLE=PATH;TABLE=PATH", each table once, found '
                f"{words!r} in {flag!r}"
            )
        sources[table] = _files(path)
    return sources


def begin_with_pretrained(
    store: Store,
    flag: str,
    progress: Progress | None = None,
    replica: int = 0,
    num_replicas: int = 1,
) -> None:
    """Let the tables of a new store begin with the rows of their files.

    Args:
        store: The store.
        flag: As for `sources_of`.
        progress: Counts what is read.
        replica: The number of the store's replica.
        num_replicas: The number of replicas.

    Raises:
        ConfigError: As for `sources_of`. DataError: A file has another form; names it, and the row.
        CheckpointError: A checkpoint cannot be read.
    """
    for table, files in sources_of(flag).items():
        for file in files:
            num_rows = 0
            with _chunks_of(file, table, replica, num_replicas, progress) as chunks:
                for keys, rows in chunks:
                    store.begin_with(table, str(file), keys, rows)
                    num_rows += len(keys)
                    if progress is not None:
                        progress.note()
            log.info("read %d pretrained rows of table %r from %s", num_rows, table, file)


def read_rows(file: Path) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield a file's keys (n,) and rows (n, dim) in chunks.

    Raises:
        DataError: The file has another form; names it, and the row.
        ConfigError: pyarrow is missing.
    """
    first = 0
    try:
        for keys, rows in READERS[file.suffix](file):
            yield _checked(file, first, keys, rows)
            first += len(keys)
    except _UNREADABLE as error:
        raise DataError(
            f"{file}: its pretrained rows cannot be read: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _chunks_of(
    source: Location, table: str, replica: int, num_replicas: int, progress: Progress | None
) -> Iterator[Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]]:
    """Give the rows of a file, or of a checkpoint's table, within the block."""
    if source.suffix in READERS:
        with _here(source) as path:
            yield read_rows(path)
        return
    with tempfile.TemporaryDirectory(prefix="elasticdl-rows-") as scratch:
        stored = restore(source, replica, num_replicas, False, progress, Path(scratch))
    with reaching(source):
        manifest = parse_manifest((source / MANIFEST).read_bytes())
        tables = manifest["replicas"][0]["model"]["tables"]
    names = [described["name"] for described in tables]
    if table not in names:
        raise ConfigError(
            f"--pretrained_rows: expected a table {table!r} in the checkpoint {source}, found "
            f"{', '.join(names) or 'none'}"
        )
    yield PsClient.in_process(stored).scan(names.index(table))


@contextmanager
def _here(file: Location) -> Iterator[Path]:
    """Give a file on this machine within the block.

    Raises:
        DataError: The file has another form.
    """
    if not is_remote(file):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="elasticdl-rows-") as scratch:
        for _ in download(file.parent, [file.name], Path(scratch)):
            pass
        try:
            yield Path(scratch) / file.name
        except DataError as error:
            raise DataError(f"{file}, which was fetched: {error}") from error


def _files(words: str) -> list[Location]:
    try:
        path = parse(words)
    except ConfigError as error:
        raise ConfigError(f"--pretrained_rows: {error}") from error
    found: list[Location] = []
    with reaching(path):
        if path.is_dir() and ((path / MANIFEST).is_file() or whole_versions(path)):
            found = [resolve(path)]
        elif path.is_dir():
            found = sorted((f for f in path.iterdir() if f.suffix in READERS), key=str)
        elif path.is_file() and path.suffix in READERS:
            found = [path]
    if not found:
        raise ConfigError(
            f"--pretrained_rows: expected a file {', '.join(READERS)}, a folder of them, "
            f"or a checkpoint, found none at {path}"
        )
    return found


def _checked(
    file: Path, first: int, keys: NDArray[Any], rows: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Convert a chunk that begins at row `first` of its file."""
    # All values are checked after this: a large float64 becomes infinite here.
    rows = np.ascontiguousarray(rows, np.float32)
    for wrong, what in (
        (keys < 0, "a key below 0"),
        (keys.astype(np.uint64) >= 2**63, "a key above 2**63 - 1"),
        (~np.isfinite(rows).all(axis=1), "a number that is not finite"),
    ):
        if wrong.any():
            raise DataError(f"{file}: row {first + int(wrong.argmax())} has {what}")
    return np.ascontiguousarray(keys, np.int64), rows


def _chunks(file: Path, keys: NDArray[Any], rows: NDArray[Any]) -> Iterator[Chunk]:
    fits = keys.ndim == 1 and rows.ndim == 2 and len(keys) == len(rows)
    if not fits or keys.dtype.kind not in "iu" or rows.dtype.kind != "f":
        raise DataError(
            f"{file}: expected keys (n,) of integers and rows (n, dim) of floats, found keys "
            f"{keys.shape} of {keys.dtype} and rows {rows.shape} of {rows.dtype}"
        )
    for at in range(0, len(keys), CHUNK_ROWS):
        yield keys[at : at + CHUNK_ROWS], rows[at : at + CHUNK_ROWS]


def _read_npz(file: Path) -> Iterator[Chunk]:
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file}: expected a .npz file, found another or a torn one")
    # A pickle could run code of whoever wrote the file.
    with np.load(file, allow_pickle=False) as arrays:
        yield from _chunks(file, *_both(file, dict.fromkeys(arrays.files), arrays.__getitem__))


def _read_safetensors(file: Path) -> Iterator[Chunk]:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))
        # The length comes from the file. A damaged one must not make this process read gigabytes.
        if length > file.stat().st_size:
            raise DataError(f"{file}: expected a safetensors file, found another or a torn one")
        header = json.loads(stream.read(length))

    def tensor(name: str) -> NDArray[Any]:
        described = header[name]
        dtype = SAFETENSORS_DTYPES.get(described["dtype"])
        if dtype is None:
            raise DataError(
                f"{file}: tensor {name!r} has dtype {described['dtype']}, expected one of "
                f"{', '.join(SAFETENSORS_DTYPES)}"
            )
        start, end = described["data_offsets"]
        shape = tuple(described["shape"])
        room = file.stat().st_size - 8 - length
        # These numbers come from the file, too: they must not lead outside of its data.
        if (
            not 0 <= start <= end <= room
            or end - start != math.prod(shape) * np.dtype(dtype).itemsize
        ):
            raise DataError(
                f"{file}: tensor {name!r} of shape {shape} has the offsets {start} and {end} in "
                f"{room} bytes of data; expected a safetensors file, found another or a torn one"
            )
        start += 8 + length
        return np.memmap(file, dtype, "r", start, shape) if 0 not in shape else np.empty(shape)

    yield from _chunks(file, *_both(file, header, tensor))


def _both(
    file: Path, names: dict[str, Any], read: Callable[[str], NDArray[Any]]
) -> tuple[NDArray[Any], NDArray[Any]]:
    if not {"keys", "rows"} <= set(names):
        raise DataError(f"{file}: expected arrays keys and rows, found {', '.join(names)}")
    return read("keys"), read("rows")


def _read_parquet(file: Path) -> Iterator[Chunk]:
    _, module = import_pyarrow("Parquet files of --pretrained_rows")
    with module.ParquetFile(file) as parquet:
        names = parquet.schema_arrow.names
        if not {"key", "weights"} <= set(names):
            raise DataError(f"{file}: expected columns key and weights, found {', '.join(names)}")
        _check_types(file, *(parquet.schema_arrow.field(name).type for name in ("key", "weights")))
        first, dim = 0, None
        for batch in parquet.iter_batches(CHUNK_ROWS, columns=["key", "weights"]):
            weights = batch.column("weights")
            lengths = weights.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
            dim = int(lengths[0]) if dim is None else dim
            if (other := lengths != dim).any():
                row = int(other.argmax())
                raise DataError(
                    f"{file}: row {first + row} has {max(lengths[row], 0)} weights, those before "
                    f"have {dim}"
                )
            keys = batch.column("key")
            if keys.null_count:
                missing = int(keys.is_null().to_numpy(zero_copy_only=False).argmax())
                raise DataError(f"{file}: row {first + missing} has no key")
            rows = weights.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
            yield keys.to_numpy(zero_copy_only=False), rows
            first += len(lengths)


def _check_types(file: Path, key: Any, weights: Any) -> None:
    from pyarrow import types

    is_list = types.is_list(weights) or types.is_large_list(weights)
    is_list = is_list or types.is_fixed_size_list(weights)
    is_number = is_list and (
        types.is_floating(weights.value_type) or types.is_integer(weights.value_type)
    )
    if not (types.is_integer(key) and is_number):
        raise DataError(
            f"{file}: expected a column key of integers and a column weights of lists of floats, "
            f"found key of {key} and weights of {weights}"
        )


READERS: dict[str, Callable[[Path], Iterator[Chunk]]] = {
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
}


class PretrainedRows:
    """The `FirstRows` of this package."""

    def check(self, flag: str) -> None:
        """Look whether there are such files; see `FirstRows`."""
        sources_of(flag)

    def begin(
        self,
        store: Store,
        flag: str,
        progress: Progress | None = None,
        replica: int = 0,
        num_replicas: int = 1,
    ) -> None:
        """Let the tables of a new store begin with the rows; see `FirstRows`."""
        begin_with_pretrained(store, flag, progress, replica, num_replicas)


FIRST_ROWS = PretrainedRows()
