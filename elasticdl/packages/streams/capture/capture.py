"""Writes the records of a source into chunks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from elasticdl.data.base import Records
from elasticdl.packages.streams.capture.chunks import (
    Chunk,
    chunks_in,
    end_of,
    state_after,
    write_chunk,
    write_end,
)
from elasticdl.packages.streams.capture.source import (
    CapturedSource,
    are_alike,
    check_columns,
    join,
    records_in,
)
from elasticdl.packages.streams.capture.source import state_as_json as as_json

_CHUNK_RECORDS = 65_536
_CHUNK_BYTES = 4 << 20
_LONGEST_SECONDS = 0.2
"""A record waits no longer than this for more records of its chunk."""


class Capture:
    """Reads a source to its end, from the position where an earlier capture stopped.

    Args:
        folder: Has the chunks.
        source: The source to read; a new object.
        most_bytes_ahead: The bytes of chunks that may be captured and not trained; then the capture
            waits. None: it never waits.
        failed: Called if a chunk cannot be written while the source is waited for.
    """

    def __init__(
        self,
        folder: Path,
        source: CapturedSource,
        most_bytes_ahead: int | None = None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._folder = folder
        self._source, self._name = source, type(source).__name__
        self._most_bytes_ahead = most_bytes_ahead
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: list[Records] = []  # not in a chunk so far,
        self._since = 0.0  # the first of them since this time,
        self._state = ""  # and where the source is behind them
        self._num_waiting = self._num_bytes = 0
        self._next = 0  # the number of the first of them
        self._trained = 0  # all records before it are
        self._ahead: list[tuple[int, int]] = []  # of later chunks: where one ends, and its bytes
        self._is_over = False

    def run(self) -> None:
        """Read the source to its end, and note the end in the folder."""
        if end_of(self._folder) is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        # Chunks of an earlier process are whole, so the source goes on behind the last one.
        chunks = chunks_in(self._folder)
        for chunk in chunks:
            self._wrote(chunk)
        if chunks:
            self._next = chunks[-1].end
            self._source.restore(state_after(chunks[-1]))
        writer = threading.Thread(target=self._write_what_waits, name="chunks", daemon=True)
        writer.start()
        try:
            for item in self._source.read():
                self._take(records_in(item, self._name))
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            # The writer is joined first: the last chunk is written here, and only once.
            writer.join()
        with self._changed:
            self._write()
            write_end(self._folder, self._next)

    def trained(self, position: int) -> None:
        """Note that all records before a position are trained; any thread may call it."""
        with self._changed:
            self._trained = max(position, self._trained)
            # Chunks behind this position no longer count against the limit.
            self._ahead = [each for each in self._ahead if each[0] > self._trained]
            self._changed.notify_all()

    def _take(self, records: Records) -> None:
        # The state is read right after the records: it belongs to the position behind them.
        state = as_json(self._source.state(), self._name)
        if not len(records):
            return
        with self._changed:
            if self._waiting:
                check_columns(self._waiting[0].columns, records, self._name)
            # A chunk has one type for each column, so records of another type begin a new chunk.
            if self._waiting and not are_alike(self._waiting[0], records):
                self._write()
            if not self._waiting:
                self._since = time.monotonic()
                self._changed.notify_all()
            self._waiting.append(records)
            self._state = state
            self._num_waiting += len(records)
            self._num_bytes += _size(records)
            # A chunk is small enough to be read whole, and large enough that a file for it is
            # cheap.
            if self._num_waiting >= _CHUNK_RECORDS or self._num_bytes >= _CHUNK_BYTES:
                self._write()
            # The wait comes after the record is taken: a source that was asked for a record must
            # not lose it.
            self._changed.wait_for(self._may_go_on)

    def _may_go_on(self) -> bool:
        most = self._most_bytes_ahead
        return most is None or sum(size for _, size in self._ahead) <= most

    def _write_what_waits(self) -> None:
        """Write the waiting records if no more have come in time."""
        try:
            with self._changed:
                while not self._is_over:
                    age = time.monotonic() - self._since
                    if not self._waiting:
                        self._changed.wait()
                    elif age < _LONGEST_SECONDS:
                        self._changed.wait(_LONGEST_SECONDS - age)
                    else:
                        self._write()
        except Exception as error:
            self._failed(error)

    def _write(self) -> None:
        if not self._waiting:
            return
        chunk = write_chunk(self._folder, self._next, join(self._waiting), self._state)
        self._next = chunk.end
        self._waiting, self._num_waiting, self._num_bytes = [], 0, 0
        self._wrote(chunk)

    def _wrote(self, chunk: Chunk) -> None:
        if chunk.end > self._trained:
            self._ahead.append((chunk.end, os.path.getsize(chunk.path)))


def _size(records: Records) -> int:
    """Return the approximate bytes of records."""
    if not records.columns:
        return sum(map(len, records.values))
    return sum(getattr(column, "nbytes", 32 * len(records)) for column in records.columns.values())
