"""The event log: one JSON object a line, a file for each process, read back as one history."""

from __future__ import annotations

import heapq
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elasticdl.errors import DataError

FOLDER = "events"

log = logging.getLogger(__name__)


class EventLog:
    """Adds events to `JOB_DIR/events/ROLE-INDEX.jsonl`.

    A line has `time` (seconds since 1970), `role`, `index`, `event`, and what the event has to
    say. `role` is an `elasticdl.job.Role`, or "supervisor" for the root of a local job. A line is
    written as a whole: a process that is killed leaves no torn one, but if the machine went down
    with it.

    A log that cannot be written (the disk is full) never stops the process that writes it: its log
    says so once, and when there is room again an event "events lost" says how many are missing.
    """

    def __init__(
        self, job_dir: Path, role: str, index: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the log of one process; events are added after those that are there."""
        folder = job_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._who = {"role": str(role), "index": index}
        self._clock = clock
        # Unbuffered: each write is one system call that appends one line.
        self._file = (folder / f"{role}-{index}.jsonl").open("ab", buffering=0)
        self._num_lost = 0

    def write(self, event: str, **fields: Any) -> None:
        """Add an event. `fields` are as JSON has them, and do not hide what every line has."""
        assert not fields.keys() & {"time", *self._who}
        try:
            if self._num_lost:
                self._append("events lost", num_lost=self._num_lost)
                self._num_lost = 0
            self._append(event, **fields)
        except OSError as error:
            if not self._num_lost:
                log.warning("%s cannot be written, events are lost: %s", self._file.name, error)
            self._num_lost += 1

    def _append(self, event: str, **fields: Any) -> None:
        line = {"time": self._clock(), **self._who, "event": event, **fields}
        encoded = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        num_written = self._file.write(encoded)
        if num_written != len(encoded):
            descriptor = self._file.fileno()
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - num_written)
            raise OSError("a line did not fit on the disk")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(job_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of all processes of a job, oldest first.

    Raises:
        DataError: A line is not an event; names file and line.
    """
    files = sorted((job_dir / FOLDER).glob("*.jsonl"))
    yield from heapq.merge(*map(_read_file, files), key=lambda event: event["time"])


def _read_file(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # being written
            yield parse_event(line, f"{path}:{number}")


def parse_event(line: bytes | str, where: str) -> dict[str, Any]:
    """Return the event of a line.

    Raises:
        DataError: It is none; names `where`.
    """
    try:
        event: dict[str, Any] = json.loads(line)
        event["time"] + 0.0
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: expected an event as JSON, found {line!r}: {error}") from error
    return event
