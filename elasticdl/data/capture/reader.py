"""Captured records as training data: what workers read, and what a master looks at."""

from __future__ import annotations

import shutil
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.data.base import Metadata, Records
from elasticdl.data.capture.chunks import Chunk, chunks_in, end_of, records_of
from elasticdl.errors import DataError
from elasticdl.job import Shard

if TYPE_CHECKING:
    from elasticdl.data.capture.process import CaptureProcess

NAME = "captured"
"""Of the one shard that captured records are; a record's number is its place in the source."""
_LOOK_SECONDS = 0.05
_WAIT_SECONDS = 1.0


class CapturedReader:
    """Reads chunks, as a `DataReader`.

    The first chunk stays as long as the job, for a model is built of the first records.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks: list[Chunk] = []
        self._starts: list[int] = []
        self._metadata: Metadata | None = None

    @property
    def metadata(self) -> Metadata:
        """The columns of the first chunk, and their types; waits for it."""
        if self._metadata is None:
            first = self._first()
            columns = {} if first is None else records_of(first).columns
            dtypes = {name: column.dtype for name, column in columns.items()}
            self._metadata = Metadata(tuple(columns), dtypes)
        return self._metadata

    def shards(self) -> list[Shard]:
        """List what is there, when anything is: the first records, and those not yet deleted."""
        if self._first() is None:
            return []
        chunks = chunks_in(self._folder)
        found = [Shard(NAME, chunks[0].start, chunks[0].end)]
        for chunk in chunks[1:]:
            last = found[-1]
            if chunk.start == last.end:
                found[-1] = Shard(NAME, last.start, chunk.end)
            else:
                found.append(Shard(NAME, chunk.start, chunk.end))
        return found

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of a range, chunk by chunk.

        Raises:
            DataError: They are not there.
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
        """Return the first chunk once it is there; None: the source has no records."""
        while True:
            end = end_of(self._folder)
            if chunks := chunks_in(self._folder):
                return chunks[0]
            if end is not None:
                return None
            time.sleep(_LOOK_SECONDS)

    def _find(self, position: int) -> Chunk | None:
        for is_new in (False, True):
            if is_new:
                self._chunks = chunks_in(self._folder)
                self._starts = [chunk.start for chunk in self._chunks]
            at = bisect_right(self._starts, position) - 1
            if at >= 0 and position < self._chunks[at].end:
                return self._chunks[at]
        return None


def _part(records: Records, start: int, end: int) -> Records:
    """Return the records of some numbers."""
    inside = slice(start - records.start, end - records.start)
    if not records.columns:
        return Records(start, values=records.values[inside])
    return Records(start, columns={n: column[inside] for n, column in records.columns.items()})


class CapturedStream:
    """What a master sees of records that are captured while the job trains, as a `Stream`."""

    is_endless = True

    def __init__(self, folder: Path, process: CaptureProcess) -> None:
        """Begin with what is in a folder.

        Args:
            folder: Has the chunks.
            process: Captures; it is started at the first look.
        """
        self._folder = folder
        self._process = process
        self._end = 0
        self.is_over = False
        """Whether the source had come to its end at the last look."""

    def shards(self) -> list[Shard]:
        """List what was captured up to now."""
        chunks = chunks_in(self._folder)
        return [Shard(NAME, 0, chunks[-1].end if chunks else 0)]

    def look(self) -> list[Shard]:
        """List the same, and see to it that the source is read.

        Raises:
            DataError: It cannot be read, or has come to its end and had no records.
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
        """Return when there is more than at the last look, after a second at the latest."""
        until = time.monotonic() + (0 if self.is_over else _WAIT_SECONDS)
        while time.monotonic() < until and self.shards()[0].end == self._end:
            if self._process.has_ended:
                return
            time.sleep(_LOOK_SECONDS)

    def trained(self, positions: Mapping[str, int], is_last: bool = False) -> None:
        """Have the source read on, if it waits for what was captured before."""
        if is_last:
            self._process.close()
        elif NAME in positions:
            self._process.trained(positions[NAME])

    def beginning(self) -> list[Shard]:
        """List where a job begins: at the first record."""
        return [Shard(NAME, 0, 0)]

    def forget(self, positions: Mapping[str, int]) -> None:
        """Delete records that nobody can ask for again: those before a position."""
        position = positions.get(NAME, 0)
        for chunk in chunks_in(self._folder)[1:]:
            if chunk.end > position:
                return
            chunk.path.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove captured records, with which nobody goes on."""
    shutil.rmtree(folder, ignore_errors=True)
