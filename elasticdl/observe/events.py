"""The event log: one JSON object a line, read back as one history. `docs/events.md` has its schema.

Each process has two files: one for facts, and one for reports that come with each heartbeat. So the
second kind never displaces the first. A full file is followed by one with the next number, and only
the newest few are kept: a job of weeks does not fill a disk.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from elasticdl.errors import DataError
from elasticdl.job import Event
from elasticdl.observe.kind import SCHEMA, Kind
from elasticdl.observe.kinds import EventsLost, Opened
from elasticdl.settings.reader_params import without_login

FOLDER = "events"
BEATS = "beats"

_BLOCK_BYTES = 1 << 16
_LARGEST = 1e300

FILE_BYTES = 8 << 20
NUM_FILES = 4
"""A process keeps at most this many files of facts, of `FILE_BYTES` each, and as many of beats."""

log = logging.getLogger(__name__)


def line_of(time: float, role: str, index: int, kind: Kind, text: str = "") -> Event:
    """Return an event in the form in which it is read."""
    line = {"time": time, "role": role, "index": index, "event": kind.event, **kind.fields}
    if text:
        line["text"] = without_login(text)
    return line


def encode(line: Event) -> bytes:
    """Return an event as in a file, with the end of its line."""
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def finite(value: Any) -> Any:
    """Return a value with null for each number that JSON does not have."""
    if isinstance(value, float):
        return value if -_LARGEST < value < _LARGEST else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


class EventLog:
    """Adds the events of one process to `JOB_DIR/events/ROLE-INDEX.jsonl` and `.beats.jsonl`.

    `role` is an `elasticdl.job.Role`, or "supervisor" for the root of a local job. A line is
    written as a
    whole: a process that is killed leaves no torn line, unless the machine went down with it.

    A log that cannot be written (the disk is full) never stops its process. The process logs this
    once. When there is room again, an event "events lost" says how many events are missing.
    """

    def __init__(
        self,
        job_dir: Path,
        role: str,
        index: int,
        clock: Callable[[], float] = time.time,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """Open the log of one process; events are added behind the existing ones."""
        folder = job_dir / FOLDER
        with contextlib.suppress(OSError):  # then its files cannot be opened either, and say so
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._role, self._index = str(role), index
        self._clock = clock
        self._facts = _Files(folder, f"{role}-{index}", file_bytes)
        self._beats = _Files(folder, f"{role}-{index}.{BEATS}", file_bytes)
        self._num_lost = 0
        self._lock = threading.Lock()
        self.write(Opened(SCHEMA, os.getpid()))

    def write(self, kind: Kind, text: str = "") -> Event:
        """Add an event; return it in the form in which it is read. For any thread."""
        with self._lock:
            return self._write(kind, text)

    def _write(self, kind: Kind, text: str) -> Event:
        line = line_of(self._clock(), self._role, self._index, kind, text)
        try:
            # There may be room again. The gap is told before the next event.
            if self._num_lost:
                lost = EventsLost(self._num_lost)
                self._append(line_of(line["time"], self._role, self._index, lost), lost)
                self._num_lost = 0
            self._append(line, kind)
        except OSError as error:
            if not self._num_lost:
                log.warning("an event log cannot be written, events are lost: %s", error)
            self._num_lost += 1
        return line

    def _append(self, line: Event, kind: Kind) -> None:
        files = self._beats if kind.is_beat else self._facts
        files.append(encode(line))

    def close(self) -> None:
        """Close the files."""
        self._facts.close()
        self._beats.close()


class _Files:
    """Files that are written one after the other: NAME.jsonl, NAME.1.jsonl, NAME.2.jsonl, ...

    A file is only added to, and is never renamed, so a reader is never misled.
    """

    def __init__(self, folder: Path, name: str, file_bytes: int) -> None:
        self._folder, self._name, self._file_bytes = folder, name, file_bytes
        self._file: BinaryIO | None = None  # opened with the first line

    def append(self, encoded: bytes) -> None:
        """Add a line.

        Raises:
            OSError: The line cannot be added, and no part of it was; names the file.
        """
        try:
            self._write(encoded)
        except OSError as error:
            name = self._file.name if self._file is not None else self._name
            raise OSError(f"{name}: {error}") from error

    def _write(self, encoded: bytes) -> None:
        if self._file is None:
            self._file = self._open(max(self._numbers(), default=0))
        elif os.fstat(self._file.fileno()).st_size + len(encoded) > self._file_bytes:
            self._go_on()
        num_written = self._file.write(encoded)
        # A part of a line would join the next line to it, so it is cut off.
        if num_written != len(encoded):
            descriptor = self._file.fileno()
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - num_written)
            raise OSError("a line did not fit on the disk")

    def _go_on(self) -> None:
        assert self._file is not None
        number = max(self._numbers(), default=0) + 1
        # The next file is opened before the old one is closed: if the disk is full, the old one
        # stays.
        following = self._open(number)
        self._file.close()
        self._file = following
        for old in self._numbers():
            if old <= number - NUM_FILES:
                self._path(old).unlink(missing_ok=True)

    def _open(self, number: int) -> BinaryIO:
        # Unbuffered: each write is one system call that appends one line.
        file = self._path(number).open("a+b", buffering=0)
        size = file.seek(0, os.SEEK_END)
        if (end := _end_of_lines(file, size)) < size:
            file.truncate(end)  # else the torn line would join the next one
        return file

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}{f'.{number}' if number else ''}.jsonl"

    def paths(self) -> list[Path]:
        """Return the existing files, oldest first."""
        return [self._path(number) for number in sorted(self._numbers())]

    def _numbers(self) -> list[int]:
        """Return the numbers of the existing files."""
        is_its = re.compile(re.escape(self._name) + r"(?:\.(\d+))?\.jsonl").fullmatch
        names = [path.name for path in self._folder.iterdir()] if self._folder.exists() else []
        found = map(is_its, names)
        return [int(match[1] or 0) for match in found if match is not None]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _end_of_lines(file: BinaryIO, size: int) -> int:
    """Return where the last whole line ends; after it there is what a lost machine has left."""
    at = size
    while at > 0:
        start = max(0, at - _BLOCK_BYTES)
        file.seek(start)
        if (found := file.read(at - start).rfind(b"\n")) >= 0:
            return start + found + 1
        at = start
    return 0


def read_events(job_dir: Path) -> Iterator[Event]:
    """Yield the events of all processes of a job, oldest first, unknown kinds included.

    Raises:
        DataError: A line is not an event; names file and line.
    """
    files = sorted((job_dir / FOLDER).glob("*.jsonl"))
    yield from heapq.merge(*map(_read_file, files), key=lambda event: event["time"])


def newest(job_dir: Path, role: str, index: int, count: int) -> Iterable[Event]:
    """Return the last facts of the processes that had an index, oldest first.

    Raises:
        DataError: A line is not an event; names file and line.
    """
    files = _Files(job_dir / FOLDER, f"{role}-{index}", FILE_BYTES)
    events = (event for path in files.paths() for event in _read_file(path))
    return deque(events, maxlen=count)


def _read_file(path: Path) -> Iterator[Event]:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # it was too old
        for number, line in enumerate(file, start=1):
            # Lines are appended whole, so only the last line of a file can be cut off.
            if not line.endswith(b"\n"):
                return  # being written
            yield parse_event(line, f"{path}:{number}")


def is_of_beats(path: Path) -> bool:
    """Return whether a file has the reports of heartbeats, and no facts."""
    return f".{BEATS}." in path.name


def parse_event(line: bytes | str, where: str) -> Event:
    """Return the event of a line.

    Raises:
        DataError: The line is not an event; names `where`.
    """
    try:
        event: Event = json.loads(line)
        event["time"] + 0.0
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: expected an event as JSON, found {line!r}: {error}") from error
    return event
