"""Records in an order that is drawn over all of the data: `--shuffle=records`.

The records of all shards, one after the other, are cut into blocks. Each epoch has the blocks in
another order, and a task is a range of that order. So a task holds blocks from all over the data,
and its records are permuted. Xu et al., "Stochastic Gradient Descent without Full Data Shuffle",
VLDB 2022, shows when this trains like a permutation of all records.

Everything depends on the seed, the epoch and the range alone. So each worker reads the same records
for a task.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate

import numpy as np

from elasticdl.config import TrainingSection
from elasticdl.data.base import DataReader, HasHoles, Metadata, Records, all_of
from elasticdl.data.order import Order
from elasticdl.data.strings import concatenate
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard

NAME = "all training data in shuffled order"
BLOCKS_PER_TASK = 64


def with_shuffle(reader: DataReader, training: TrainingSection) -> DataReader:
    """Return a reader of training data in the order of a job's settings."""
    if training.shuffle != "records":
        return reader
    if isinstance(reader, HasHoles):
        raise ConfigError(
            "--shuffle=records needs data whose records can be counted, and a topic's positions "
            "have holes: expected --shuffle=tasks"
        )
    per_task = training.minibatch_size * training.num_minibatches_per_task
    block = training.shuffle_block_records or max(1, per_task // BLOCKS_PER_TASK)
    return ShuffledReader(reader, training.seed, block)


class ShuffledReader:
    """A `DataReader` of one shard that has all records of another reader, in a drawn order.

    Records keep their numbers in the data, which are counted over all shards.

    Args:
        reader: The reader of the data. It must read from any offset of a shard.
        seed: The seed of the job.
        block_records: The number of records that stay together on their way into a task.
        epoch: The epoch; each has an order of its own.
    """

    def __init__(self, reader: DataReader, seed: int, block_records: int, epoch: int = 0) -> None:
        self._reader = reader
        self._seed = seed
        self._size = block_records
        self._epoch = epoch

    def of_epoch(self, epoch: int) -> ShuffledReader:
        """Return the reader of an epoch."""
        other = ShuffledReader(self._reader, self._seed, self._size, epoch)
        other.__dict__["_shards"] = self._shards  # listed once
        other.__dict__["_ends"] = self._ends
        return other

    @property
    def metadata(self) -> Metadata:
        """Describes the data to `feed`."""
        return self._reader.metadata

    def shards(self) -> list[Shard]:
        """List the one shard of all records; none if there are no records."""
        num_records = self._ends[-1] if self._ends else 0
        return [Shard(NAME, 0, num_records)] if num_records else []

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records at places `[shard.start, shard.end)` of the order."""
        if shard.end > self._ends[-1]:
            raise DataError(
                f"{shard.name}: places [{shard.start}, {shard.end}) were asked for, but there are "
                f"{self._ends[-1]} records; has the data changed since it was counted?"
            )
        chunks = [chunk for piece in self._pieces(shard) for chunk in self._read_piece(*piece)]
        # The range is part of the seed, so that the permutation belongs to the task and not to the
        # worker.
        rng = np.random.default_rng([self._seed, self._epoch, shard.start, shard.end])
        yield _permuted(chunks, rng)

    @property
    def reader(self) -> DataReader:
        """The reader of the records."""
        return self._reader

    def place_of(self, number: int) -> tuple[str, int]:
        """Return the place of a record: its shard's name, and its number there."""
        at = bisect_right(self._ends, number)
        before = self._ends[at - 1] if at else 0
        shard = self._shards[at]
        return shard.name, shard.start + number - before

    @cached_property
    def _shards(self) -> list[Shard]:
        return self._reader.shards()

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(shard.num_records for shard in self._shards))

    def _pieces(self, shard: Shard) -> Iterator[tuple[int, int]]:
        """Yield the numbers `[first, end)` of the records of a range of places, ascending."""
        # Blocks are read in the order of the data, since that is fastest; the records are permuted
        # later.
        found = sorted(self._blocks(shard.start, shard.end))
        first, end = found[0]
        for next_first, next_end in found[1:]:
            if next_first != end:
                yield first, end
                first = next_first
            end = next_end
        yield first, end

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the numbers of the records of a range of places, block by block.

        Blocks are permuted; the last one, which may be smaller, has a drawn place of its own.
        """
        num_whole, rest = divmod(self._ends[-1], self._size)
        order = Order(num_whole, self._seed, self._epoch)
        # At a fixed place, the records of the smaller block would always be trained first or last.
        drawn = np.random.default_rng([self._seed, self._epoch]).integers(num_whole + 1)
        rest_at = int(drawn) * self._size
        while start < stop:
            if start < rest_at or start >= rest_at + rest:
                place, offset = divmod(start - (rest if start >= rest_at else 0), self._size)
                first, size = order.at(place) * self._size, self._size
            else:
                first, offset, size = num_whole * self._size, start - rest_at, rest
            count = min(size - offset, stop - start)
            yield first + offset, first + offset + count
            start += count

    def _read_piece(self, first: int, end: int) -> Iterator[Records]:
        """Yield records by their numbers, across shards."""
        while first < end:
            name, start = self.place_of(first)
            at = bisect_right(self._ends, first)
            count = min(end, self._ends[at]) - first
            piece = Shard(name, start, start + count)
            number = first
            for chunk in all_of(self._reader.read(piece), piece, type(self._reader).__name__):
                yield Records(number, chunk.values, chunk.columns)
                number += len(chunk)
            first += count


def _permuted(chunks: list[Records], rng: np.random.Generator) -> Records:
    """Return all records of some chunks in a drawn order."""
    numbers = np.concatenate([chunk.numbers for chunk in chunks])
    order = rng.permutation(len(numbers))
    if chunks[0].columns:
        columns = {
            name: concatenate([chunk.columns[name] for chunk in chunks])[order]
            for name in chunks[0].columns
        }
        return Records(columns=columns, order=numbers[order])
    values = [value for chunk in chunks for value in chunk.values]
    return Records(values=[values[i] for i in order.tolist()], order=numbers[order])
