"""The rows of a table in the order of their keys, with only a part in memory at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from elasticdl.backends.base import Float32, Int64

PART_BYTES = 64 << 20
"""Rows of about this many bytes are in memory at a time."""
MAX_FILES = 256

_Chunk = tuple[Int64, Float32]


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The rows of a table, to be gone through once.

    num_rows: How many there are.
    parts: Keys and rows; keys ascend within a part and from part to part.
    """

    num_rows: int
    parts: Iterator[_Chunk]


def sort_rows(chunks: Iterable[_Chunk], dim: int, scratch: Path) -> SortedRows:
    """Sort the rows of a table by their keys.

    A table that is larger than `PART_BYTES` is first dealt out to files, one for each range of
    keys, and each file is sorted on its own. The ranges are those that cut the first rows into
    equal parts: rows come in the order of their hash, so the first ones are a fair sample.

    Args:
        chunks: Keys, each once, shape (n,), and rows, shape (n, dim), in any order.
        dim: Elements of a row.
        scratch: An empty folder on a disk with room for the table; its files are deleted one by
            one as the parts are read.
    """
    coming = iter(chunks)
    first: list[_Chunk] = [(np.zeros(0, np.int64), np.zeros((0, dim), np.float32))]
    num_bytes = 0
    for keys, rows in coming:
        first.append((keys, rows))
        num_bytes += keys.nbytes + rows.nbytes
        if num_bytes > PART_BYTES:
            break
    else:
        keys, rows = _joined(first)
        return SortedRows(len(keys), iter([_sorted(keys, rows)]))
    return _by_files(first, coming, dim, scratch)


def _by_files(first: list[_Chunk], coming: Iterator[_Chunk], dim: int, scratch: Path) -> SortedRows:
    # A file is a run of records of one size, so NumPy reads it without a parser.
    record = np.dtype([("key", np.int64), ("row", np.float32, (dim,))])
    sample = np.sort(_joined(first)[0])
    # Equal limits would make files without keys, so each limit comes once.
    limits = np.unique(sample[np.arange(1, MAX_FILES) * len(sample) // MAX_FILES])
    paths = [scratch / f"{number:03d}" for number in range(len(limits) + 1)]
    num_rows = 0
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for keys, rows in itertools.chain(first, coming):
            _deal(keys, rows, limits, files, record)
            num_rows += len(keys)
    return SortedRows(num_rows, _parts(paths, record))


def _deal(
    keys: Int64, rows: Float32, limits: Int64, files: Sequence[IO[bytes]], record: np.dtype[np.void]
) -> None:
    places = np.searchsorted(limits, keys, side="right")
    order = np.argsort(places, kind="stable")
    dealt: NDArray[np.void] = np.empty(len(keys), record)
    dealt["key"], dealt["row"] = keys[order], rows[order]
    ends = np.cumsum(np.bincount(places, minlength=len(files)))
    for file, start, end in zip(files, [0, *ends[:-1]], ends, strict=True):
        file.write(dealt[start:end].tobytes())


def _parts(paths: list[Path], record: np.dtype[np.void]) -> Iterator[_Chunk]:
    for path in paths:
        found = np.fromfile(path, record)
        # The rows are in memory now. The disk then holds the remaining files alone.
        path.unlink()
        if len(found):
            yield _sorted(found["key"], found["row"])


def _joined(chunks: list[_Chunk]) -> _Chunk:
    return (
        np.concatenate([keys for keys, _ in chunks]),
        np.concatenate([rows for _, rows in chunks]),
    )


def _sorted(keys: Int64, rows: Float32) -> _Chunk:
    order = np.argsort(keys)
    return keys[order], rows[order]
