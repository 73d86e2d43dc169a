"""Records the stages of some steps of this worker, when `elasticdl profile` asks for it.

The request is a file in the job's folder, at which the worker looks with each heartbeat. While
nothing is recorded, that and one comparison for each stage is all it costs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

from elasticdl import process
from elasticdl.worker.stages import Place, StageClock

LAST_STAGE = "compute"
"""Steps are counted by it."""

_MOST_SPANS = 1_000_000

log = logging.getLogger(__name__)


class Profiler:
    """Looks for requests, and answers them; `look` is for one thread, the rest for any."""

    def __init__(self, stages: StageClock, job_dir: Path, name: str) -> None:
        """Record the stages of a clock; `name` is that of the process."""
        self._stages = stages
        self._folder = job_dir / process.PROFILE_FOLDER
        self._name = name
        self._id = ""
        self._steps_left = 0
        self._spans: list[tuple[str, int, str, float, float, int, int]] = []
        # From the clock of stages to seconds since 1970.
        self._offset = 0.0

    def look(self) -> None:
        """Begin with a new request, and write what was recorded for the one before."""
        if self._id and self._steps_left <= 0:
            self._write()
        try:
            request = json.loads((self._folder / process.PROFILE_REQUEST).read_text())
            wanted, steps = str(request["id"]), int(request["steps"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("a request for a profile cannot be read: %s", error)
            return
        if wanted != self._id and not (self._folder / f"{wanted}.{self._name}.json").exists():
            self._id, self._steps_left, self._spans = wanted, steps, []
            self._offset = time.time() - time.perf_counter()
            self._stages.recorder = self._record

    def _record(self, stage: str, began: float, ended: float, place: Place | None) -> None:
        thread = threading.current_thread()
        task = place.lease.task.id if place is not None else -1
        minibatch = place.minibatch if place is not None else -1
        ident = thread.native_id or 0
        self._spans.append((stage, ident, thread.name, began, ended, task, minibatch))
        if stage == LAST_STAGE:
            self._steps_left -= 1
        if self._steps_left <= 0 or len(self._spans) >= _MOST_SPANS:
            self._steps_left = 0
            self._stages.recorder = None

    def _write(self) -> None:
        spans = [
            {
                "stage": stage,
                "thread": ident,
                "thread_name": name,
                "began": began + self._offset,
                "ended": ended + self._offset,
                "task": task,
                "minibatch": minibatch,
            }
            for stage, ident, name, began, ended, task, minibatch in self._spans
        ]
        path = self._folder / f"{self._id}.{self._name}.json"
        try:
            process.write_whole(path, json.dumps({"process": self._name, "spans": spans}))
        except OSError as error:
            log.warning("a profile cannot be written: %s", error)
        self._id, self._spans = "", []
