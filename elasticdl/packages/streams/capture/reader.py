"""Captured records as training data, for workers and for the master."""

from __future__ import annotations

import shutil
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.data.base import Metadata, Records
from elasticdl.errors import DataError
from elasticdl.job import Shard
from elasticdl.packages.streams.capture.chunks import Chunk, chunks_in, end_of, records_of

if TYPE_CHECKING:
    from elasticdl.packages.streams.capture.process import CaptureProcess

NAME = "captured"
"""The name of the single shard of captured records.

A record's number is its place in the source.
"""
_LOOK_SECONDS = 0.05
_WAIT_SECONDS = 1.0


class CapturedReader:
    """Reads chunks, as a `DataReader`.

    The first chunk stays as long as the job, since a model is built from the first records.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks: list[Chunk] = []
        self._starts: list[int] = []
        self._metadata: Metadata | None = None

    @property
    def metadata(self) -> Metadata:
        """The columns of the first chunk and their types; waits for that chunk."""
        if self._metadata is None:
            first = self._first()
            columns = {} if first is None else records_of(first).columns
            dtypes = {name: column.dtype for name, column in columns.items()}
            self._metadata = Metadata(tuple(columns), dtypes)
        return self._metadata

    def shards(self) -> list[Shard]:
        """List the captured records, once there are any: the first, and those still there."""
        if self._first() is None:
            return []
        chunks = chunks_in(self._folder)
        found = [Shard(NAME, chunks[0].start, chunks[0].end)]
        for chunk in chunks[1:]:
            last = found[-1]
            if chunk.start == last.end:
                # Deleted chunks leave a gap only after the first one, so there are at most two
                # shards.
                found[-1] = Shard(NAME, last.start, chunk.end)
            else:
                found.append(Shard(NAME, chunk.start, chunk.end))
        return found

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of a range, chunk by chunk.

        Raises:
            DataError: The records are not there.
        """
        at = shard.start
        while at < shard.end:
            chunk = self._find(at)
            if chunk is None:
                raise DataError(
                    f"{self._folder}: has no records [{at}, {shard.end}): expected the folder as "
                    "the job has left it"
                )
            end = min(chunk.end, shard.end)
            yield _part(records_of(chunk), at, end)
            at = end

    def _first(self) -> Chunk | None:
        """Wait for the first chunk and return it; None: the source has no records."""
        while True:
            # The end is read before the chunks: a source that has ended has written all of them.
            end = end_of(self._folder)
            if chunks := chunks_in(self._folder):
                return chunks[0]
            if end is not None:
                return None
            time.sleep(_LOOK_SECONDS)

    def _find(self, position: int) -> Chunk | None:
        # The list that was read last is tried first: listing a folder for each range takes long.
        for is_new in (False, True):
            if is_new:
                self._chunks = chunks_in(self._folder)
                self._starts = [chunk.start for chunk in self._chunks]
            at = bisect_right(self._starts, position) - 1
            if at >= 0 and position < self._chunks[at].end:
                return self._chunks[at]
        return None


def _part(records: Records, start: int, end: int) -> Records:
    """Return the records in a range of numbers."""
    inside = slice(start - records.start, end - records.start)
    if not records.columns:
        return Records(start, values=records.values[inside])
    return Records(start, columns={n: column[inside] for n, column in records.columns.items()})


class CapturedStream:
    """Records that are captured while the job trains, as the `Stream` of a master."""

    is_endless = True

    def __init__(self, folder: Path, process: CaptureProcess) -> None:
        """Begin with the chunks in a folder.

        Args:
            folder: Has the chunks.
            process: Captures the source; it is started at the first look.
        """
        self._folder = folder
        self._process = process
        self._end = 0
        self.is_over = False
        """Whether the source had come to its end at the last look."""

    def shards(self) -> list[Shard]:
        """List the records that were captured up to now."""
        chunks = chunks_in(self._folder)
        return [Shard(NAME, 0, chunks[-1].end if chunks else 0)]

    def look(self) -> list[Shard]:
        """List the same, and keep the capturing process running.

        Raises:
            DataError: The source cannot be read, or has ended without records.
        """
        end = end_of(self._folder)  # first: then what is listed has all of them
        if end is None:
            self._process.keep_running()
        found = self.shards()
        self._end = found[0].end
        self.is_over = end is not None
        if self.is_over and not self._end:
            raise DataError("the source has come to its end, and had no records", is_certain=True)
        return found

    def wait(self) -> None:
        """Return when there are more records than at the last look, or after a second."""
        until = time.monotonic() + (0 if self.is_over else _WAIT_SECONDS)
        while time.monotonic() < until and self.shards()[0].end == self._end:
            if self._process.has_ended:
                return
            time.sleep(_LOOK_SECONDS)

    def trained(self, positions: Mapping[str, int], is_last: bool = False) -> None:
        """Let the source be read on, if it waits for captured records to be trained."""
        if is_last:
            self._process.close()
        elif NAME in positions:
            self._process.trained(positions[NAME])

    def beginning(self) -> list[Shard]:
        """List where a job begins: at the first record."""
        return [Shard(NAME, 0, 0)]

    def forget(self, positions: Mapping[str, int]) -> None:
        """Delete the records before a position: no worker can ask for them again."""
        position = positions.get(NAME, 0)
        # The first chunk stays: models are built from its records. So does the last one: it says
        # how far the source was read, and where the source is.
        for chunk in chunks_in(self._folder)[1:-1]:
            if chunk.end > position:
                return
            chunk.path.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove captured records when no job will read them again."""
    shutil.rmtree(folder, ignore_errors=True)
