"""The common part of readers of record files: one shard a file, read in chunks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from elasticdl.data.base import Metadata, Records
from elasticdl.data.copies import said_of
from elasticdl.data.in_order import of_files
from elasticdl.errors import DataError
from elasticdl.job import Shard

log = logging.getLogger(__name__)

CHUNK_RECORDS = 4096
CHUNK_BYTES = 8 << 20
_MAX_OPEN_FILES = 64


class RecordFile(Protocol):
    """One file of numbered records; the files of `elasticdl._core` read without holding the GIL."""

    @property
    def num_records(self) -> int:
        """The number of its records."""
        ...

    def read(self, start: int, end: int, max_bytes: int | None = None) -> list[bytes]:
        """Return records `[start, end)`; fewer, but at least one, when `max_bytes` are reached."""
        ...


class FileReader:
    """A `DataReader` of files that `open_file` opens when they are first needed.

    Args:
        paths: The files; each is a shard of this name, unless it has no records.
        open_file: Opens a file. It raises a `DataError` that names the file.
        metadata: Describes the data to `feed`.
        count: Returns the number of a file's records, if that needs less than opening the file;
            else None.
    """

    def __init__(
        self,
        paths: Sequence[str],
        open_file: Callable[[str], RecordFile],
        metadata: Metadata | None = None,
        count: Callable[[str], int | None] | None = None,
    ) -> None:
        self._paths = tuple(paths)
        self._known = frozenset(paths)
        self._open_file = open_file
        self._open = lru_cache(maxsize=_MAX_OPEN_FILES)(self._opened)
        self._metadata = metadata or Metadata()
        self._count = count or (lambda path: None)

    @property
    def metadata(self) -> Metadata:
        """Describes the data to `feed`."""
        return self._metadata

    def shards(self) -> list[Shard]:
        """List the files with their numbers of records."""
        # A count may be had without opening the file: of RecordIO behind a URL only the index is
        # fetched. Other files are opened one after another, because each may be copied for that.
        counts = zip(self._paths, of_files(self._count, self._paths), strict=True)
        shards = [
            Shard(path, 0, self._open(path).num_records if count is None else count)
            for path, count in counts
        ]
        return [shard for shard in shards if shard.num_records > 0]

    def _opened(self, path: str) -> RecordFile:
        with said_of(path):
            file = self._open_file(path)
        if getattr(file, "index_state", "") == "passed over":
            log.warning(
                "%s.idx belongs to another user: it is passed over, and all of %s is read to find "
                "its records; let its owner remove it",
                path,
                path,
            )
        return file

    def file(self, name: str) -> RecordFile:
        """Return the open file of a shard, for callers that read it themselves."""
        return self._open(name)

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of a shard, in order, a few thousand or 8 MiB at a time."""
        if shard.name not in self._known:
            raise DataError(
                f"{shard.name}: not one of the {len(self._paths)} files of this reader "
                f"({self._paths[0]}, ...); do all processes see the same files?"
            )
        file, next_record = self._open(shard.name), shard.start
        while next_record < shard.end:
            end = min(shard.end, next_record + CHUNK_RECORDS)
            with said_of(shard.name):
                values = file.read(next_record, end, CHUNK_BYTES)
            yield Records(next_record, values=values)
            next_record += len(values)


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
