"""Holds records out of the training data for evaluation: `--validation_split`."""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elasticdl.data import remote
from elasticdl.data.base import DataReader, HasPlaces, Metadata, Records, all_of
from elasticdl.data.folder_columns import is_of_column
from elasticdl.data.strings import Column
from elasticdl.job import Shard
from elasticdl.settings.data import DataSection

_BLOCK = 65_536  # records whose number of chosen ones is counted together
_MAX_BLOCKS = 64


def split(reader: DataReader, data: DataSection) -> tuple[DataReader, DataReader]:
    """Return a reader of the records to train, and one of the records to evaluate."""
    share = data.validation_split
    return SplitReader(reader, share, False), SplitReader(reader, share, True)


def is_held_out(name: str, start: int, end: int, share: float) -> NDArray[np.bool_]:
    """Return which of the records `[start, end)` of a shard are held out.

    The choice depends only on the last part of the shard's name, with the folders `column=value`
    above it, and on the record's number. So it is the same in every process and run, in any folder,
    and in any order of records. The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable
    pseudorandom number generators", 2014) makes a number of both that is as good as random.
    """
    # The folder is left out: the same data may lie elsewhere on another machine. But the files of a
    # table in folders often have one name, and should not all give up the same records.
    folder, _, last = remote.without_query(name).rpartition("/")
    while is_of_column(column := folder.rpartition("/")[2]):
        folder, last = folder.rpartition("/")[0], f"{column}/{last}"
    key = zlib.crc32(last.encode()) + 1
    z = np.arange(start, end, dtype=np.uint64) + np.uint64((key << 32) & (2**64 - 1))
    z *= np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    held_out: NDArray[np.bool_] = z < np.uint64(int(share * 2**64))
    return held_out


class SplitReader:
    """A `DataReader` of a part of the records of another reader: the held out ones, or the others.

    Shards have only the records of this part, counted from 0. Records keep their numbers in the
    source.

    Args:
        reader: The reader of the data. It must read from any offset of a shard.
        share: The share of all records that is held out.
        gives_held_out: Whether to read the records that are held out, or the others.
    """

    def __init__(self, reader: DataReader, share: float, gives_held_out: bool) -> None:
        self.reader = reader
        self._share = share
        self._gives_held_out = gives_held_out
        self._before: dict[str, list[int]] = {}  # records of this part before each block
        self._lock = threading.Lock()
        self._block = lru_cache(_MAX_BLOCKS)(self._find_block)

    @property
    def metadata(self) -> Metadata:
        """Describes the data to `feed`."""
        return self.reader.metadata

    def shards(self) -> list[Shard]:
        """List the shards with their numbers of records in this part."""
        found = (
            Shard(s.name, self._rank(s.name, s.start), self._rank(s.name, s.end))
            for s in self.reader.shards()
        )
        return [shard for shard in found if shard.num_records]

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of a range of this part."""
        if not shard.num_records:
            return
        first = self.number_of(shard.name, shard.start)
        piece = Shard(shard.name, first, self.number_of(shard.name, shard.end - 1) + 1)
        for chunk in all_of(self.reader.read(piece), piece, type(self.reader).__name__):
            chosen = np.flatnonzero(self._is_chosen(shard.name, first, first + len(chunk)))
            if len(chosen):
                yield _taken(chunk, chosen, chosen + first)
            first += len(chunk)

    def number_of(self, name: str, place: int) -> int:
        """Return the number in the source of a record of this part."""
        block = bisect_right(self._counted(name, lambda before: before[-1] > place), place) - 1
        return block * _BLOCK + int(self._block(name, block)[place - self._before[name][block]])

    def place(self, name: str, record: int) -> str:
        """Return the place of a record in its file, for an error."""
        if isinstance(self.reader, HasPlaces):
            return self.reader.place(name, record)
        return f"record {record}"

    def _rank(self, name: str, number: int) -> int:
        """Return how many records of this part come before a record of the source."""
        block, rest = divmod(number, _BLOCK)
        before = self._counted(name, lambda before: len(before) > block)[block]
        return before + int(np.searchsorted(self._block(name, block), rest))

    def _counted(self, name: str, is_enough: Callable[[list[int]], bool]) -> list[int]:
        """Return how many records of this part come before each block, as far as needed."""
        with self._lock:
            before = self._before.setdefault(name, [0])
            while not is_enough(before):
                before.append(before[-1] + len(self._block(name, len(before) - 1)))
        return before

    def _find_block(self, name: str, block: int) -> NDArray[np.int64]:
        """Return which records of a block belong to this part."""
        return np.flatnonzero(self._is_chosen(name, block * _BLOCK, (block + 1) * _BLOCK))

    def _is_chosen(self, name: str, start: int, end: int) -> NDArray[np.bool_]:
        held_out = is_held_out(name, start, end, self._share)
        return held_out if self._gives_held_out else ~held_out


def _taken(chunk: Records, chosen: NDArray[np.int64], numbers: NDArray[np.int64]) -> Records:
    """Return some records of a chunk, with their numbers in the source."""
    return replace(
        chunk,
        values=[chunk.values[row] for row in chosen.tolist()] if chunk.values else [],
        columns={name: _rows(column, chosen) for name, column in chunk.columns.items()},
        order=numbers,
        times=None if chunk.times is None else chunk.times[chosen],
    )


def _rows(column: Column, chosen: NDArray[np.int64]) -> Column:
    taken: Column = (np.asarray(column) if isinstance(column, list) else column)[chosen]
    return taken
