"""Chunks: files of consecutive records, each with the state of its source after them.

Records and state become durable together: the file gets its name when all of it is on the disk. So
the process that reads the source next goes on behind the last record that a worker may have seen.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.data.base import Records
from elasticdl.data.strings import Array, Column
from elasticdl.errors import DataError

_MAGIC = b"elasticdl chunk 1\n"
_SUFFIX = ".chunk"
_END = "end"
_VALUES = ""  # the name of what is no column


@dataclass(frozen=True, slots=True)
class Chunk:
    """A file with the records `[start, end)` of a source."""

    path: Path
    start: int
    end: int


def chunks_in(folder: Path) -> list[Chunk]:
    """List the chunks of a folder by their records; none if there is no folder."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(_SUFFIX)]
    except FileNotFoundError:
        return []
    ranges = (name.removesuffix(_SUFFIX).split("-") for name in names)
    found = zip(names, ranges, strict=True)
    chunks = [Chunk(folder / name, int(start), int(end)) for name, (start, end) in found]
    # A folder lists its files in any order.
    return sorted(chunks, key=lambda chunk: chunk.start)


def end_of(folder: Path) -> int | None:
    """Return how many records a source has had; None: it is not at its end."""
    try:
        return int((folder / _END).read_text())
    except FileNotFoundError:
        return None


def write_end(folder: Path, num_records: int) -> None:
    """Note that a source has come to its end after this many records."""
    _write(folder / _END, [str(num_records).encode()])


def write_chunk(folder: Path, start: int, records: Records, state: str) -> Chunk:
    """Write records, numbered from `start`, and the state of the source after them.

    Args:
        folder: Gets the file.
        start: The number of the first record.
        records: The records.
        state: The state, as JSON.

    Raises:
        DataError: A column has values that are neither numbers nor text.
        OSError: The file cannot be written.
    """
    end = start + len(records)
    columns: Mapping[str, Column | list[bytes]] = records.columns or {_VALUES: records.values}
    kinds, blobs = [], []
    for name, column in columns.items():
        kind, parts = _encoded(name, column)
        kinds.append([name, kind, [len(part) for part in parts]])
        blobs += parts
    check = 0
    for blob in blobs:
        check = zlib.crc32(blob, check)
    header = json.dumps({"state": json.loads(state), "columns": kinds, "crc": check}).encode()
    chunk = Chunk(folder / f"{start:020}-{end:020}{_SUFFIX}", start, end)
    _write(chunk.path, [_MAGIC, header, b"\n", *blobs])
    return chunk


def state_after(chunk: Chunk) -> Any:
    """Return the state of the source after the records of a chunk."""
    return json.loads(_read(chunk)[0])["state"]


def records_of(chunk: Chunk) -> Records:
    """Return the records of a chunk.

    Raises:
        DataError: The file is damaged or gone.
    """
    header, payload = _read(chunk)
    found = json.loads(header)
    # The name promises a whole file, but a disk can still damage it.
    if zlib.crc32(payload) != found["crc"]:
        raise DataError(f"{chunk.path}: is torn: its bytes are not those that were written")
    columns: dict[str, Column] = {}
    at = 0
    for name, kind, sizes in found["columns"]:
        parts = []
        for size in sizes:
            parts.append(payload[at : at + size])
            at += size
        if name == _VALUES and kind == "bytes":
            return Records(chunk.start, values=list(_strings(parts)))
        columns[name] = _decoded(kind, parts)
    return Records(chunk.start, columns=columns)


def _encoded(name: str, column: Column | list[bytes]) -> tuple[str, list[bytes]]:
    """Return the kind of a column, and its bytes."""
    is_array = isinstance(column, np.ndarray) and column.dtype != object
    if isinstance(column, np.ndarray) and is_array:
        file = io.BytesIO()
        np.save(file, column, allow_pickle=False)
        return "array", [file.getvalue()]
    values = list(column)
    if all(isinstance(value, bytes) for value in values):
        return "bytes", _joined(values)
    if all(isinstance(value, str) for value in values):
        return "text", _joined([value.encode() for value in values])
    other = next(value for value in values if not isinstance(value, str))
    raise DataError(
        f"column {name!r} has {other!r} among its values: expected numbers, or str, or bytes "
        "alone; what is missing needs a value of its own",
        is_certain=True,
    )


def _decoded(kind: str, parts: Sequence[bytes]) -> Column:
    if kind == "array":
        array: Array = np.load(io.BytesIO(parts[0]), allow_pickle=False)
        return array
    values = [value.decode() if kind == "text" else value for value in _strings(parts)]
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _joined(values: Sequence[bytes]) -> list[bytes]:
    return [np.array([len(value) for value in values], "<i8").tobytes(), b"".join(values)]


def _strings(parts: Sequence[bytes]) -> Iterator[bytes]:
    lengths, data = parts
    at = 0
    for length in np.frombuffer(lengths, "<i8").tolist():
        yield data[at : at + length]
        at += length


def _read(chunk: Chunk) -> tuple[bytes, bytes]:
    try:
        data = chunk.path.read_bytes()
    except OSError as error:
        raise DataError(f"{chunk.path}: cannot be read: {error.strerror}") from error
    if not data.startswith(_MAGIC):
        raise DataError(f"{chunk.path}: is no file of captured records")
    header, _, payload = data[len(_MAGIC) :].partition(b"\n")
    return header, payload


def _write(path: Path, parts: Sequence[bytes]) -> None:
    """Write a file so that it is durable and complete when it has its name."""
    partial = path.with_name(f"{path.name}.part")
    with open(partial, "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    os.rename(partial, path)
    # The name is durable only when the folder is written too.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
