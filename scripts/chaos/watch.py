"""Follows a job: the share of trained records from its status, and its phase from its event log.

A short phase may end before the next status, since these are 100 ms apart. It always has an event.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.errors import UnavailableError
from elasticdl.job import Role
from elasticdl.job.status import JobStatus
from elasticdl.master.phases import Phase
from elasticdl.observe.events import BEATS, FOLDER
from elasticdl.observe.tail import Tail
from elasticdl.rpc.client import JobClient
from elasticdl.runtime.process import process_name

_LOOK_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Moment:
    """The progress of a job: the share of trained records, and its phase."""

    share: float
    phase: Phase


class EventTail:
    """Reads the events of one process of a job as they are written."""

    def __init__(self, job_dir: Path, role: Role, index: int = 0) -> None:
        folder, name = job_dir / FOLDER, f"{role}-{index}"
        self._tails = [Tail(folder / f"{name}.jsonl"), Tail(folder / f"{name}.{BEATS}.jsonl")]
        self.events: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Return the new events."""
        new = [json.loads(line) for tail in self._tails for line in tail.lines()]
        self.events += new
        return new

    def wait_for(self, is_it: Callable[[dict[str, Any]], bool], seconds: float) -> bool:
        """Wait for an event; return whether it has come."""
        deadline = time.monotonic() + seconds
        while not any(map(is_it, self.events)):
            if time.monotonic() > deadline:
                return False
            if not self.read():
                time.sleep(_LOOK_SECONDS)
        return True


def log_path(job_dir: Path, index: int) -> Path:
    """Return the log file of a worker that was started by hand."""
    return job_dir / "logs" / f"{process_name(Role.WORKER, index)}.log"


def follow(job: subprocess.Popen[bytes], master: JobClient, tail: EventTail) -> Iterator[Moment]:
    """Yield the progress of the job after each change, until its end."""
    pictures: queue.SimpleQueue[JobStatus | None] = queue.SimpleQueue()
    threading.Thread(target=_watch, args=(master, pictures.put), daemon=True).start()
    share, phase = 0.0, Phase.PENDING
    yield Moment(share, phase)
    while True:
        try:
            picture = pictures.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            if job.poll() is not None:
                return  # its last master ended before it was asked
        else:
            if picture is None:
                return
            share = picture.records_done / max(picture.records_total, 1)
            yield Moment(share, phase)
        for event in tail.read():
            if event["event"] in ("phase", "ended"):
                phase = Phase(event["phase"])
                yield Moment(share, phase)


def _watch(master: JobClient, put: Callable[[JobStatus | None], None]) -> None:
    with contextlib.suppress(UnavailableError):
        for picture in master.watch():
            put(picture)
    put(None)
