"""Records the stages of some steps of this worker, when `elasticdl profile` asks for it.

The request is a file in the job's folder. The worker looks at it with each heartbeat. While nothing
is recorded, it costs only this look, and one comparison for each stage.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from elasticdl.packages.page import own_profile
from elasticdl.runtime import process
from elasticdl.worker.spans import Span, Spans

LAST_STAGE = "compute"
"""The stage by which steps are counted."""

OWN = "framework"
"""The end of the name of the folder with the framework's own profile."""

_MOST_SPANS = 1_000_000

log = logging.getLogger(__name__)


def look_of(spans: Spans, job_dir: Path, name: str) -> Callable[[], None]:
    """Return what looks for requests to a worker; it is a `MakeProfiler` for workers."""
    return Profiler(spans, job_dir, name, own_profile.begin).look


class Profiler:
    """Looks for requests, and answers them; `look` is for one thread, the rest for any."""

    def __init__(
        self,
        spans: Spans,
        job_dir: Path,
        name: str,
        begin_own: Callable[[Path], Callable[[], None] | None],
    ) -> None:
        """Record the spans of a worker.

        Args:
            spans: Reports each span that has ended.
            job_dir: The folder of the job.
            name: The name of the process.
            begin_own: Begins the framework's own profile, with a folder for its files; returns the
                function that ends it, or None if there is none. The thread that computes calls
                both.
        """
        self._source = spans
        self._folder = job_dir / process.PROFILE_FOLDER
        self._name = name
        self._begin_own = begin_own
        self._end_own: Callable[[], None] | None = None
        self._wants_own = False
        self._id = ""
        self._steps_left = 0
        self._spans: list[tuple[str, int, str, float, float, int, int]] = []
        # From the clock of spans to seconds since 1970.
        self._offset = 0.0

    def look(self) -> None:
        """Begin a newly requested profile, and write the one that was recorded before."""
        if self._id and self._steps_left <= 0:
            self._write()
        try:
            request = json.loads((self._folder / process.PROFILE_REQUEST).read_text())
            wanted, steps = str(request["id"]), int(request["steps"])
            wants_own = bool(request.get("framework", False))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("a request for a profile cannot be read: %s", error)
            return
        # A request without steps is for the ps replicas: they must record before the workers ask
        # them.
        if steps == 0:
            return  # ps replicas are asked first
        if wanted != self._id and not (self._folder / f"{wanted}.{self._name}.json").exists():
            self._id, self._steps_left, self._spans = wanted, steps, []
            self._wants_own = wants_own
            self._offset = time.time() - time.perf_counter()
            self._source.recorder = self._record

    def _record(self, span: Span) -> None:
        thread, stage, place = threading.current_thread(), span.stage, span.place
        task = place.lease.task.id if place is not None else -1
        minibatch = place.minibatch if place is not None else -1
        ident = thread.native_id or 0
        self._spans.append((stage, ident, thread.name, span.began, span.ended, task, minibatch))
        is_full = len(self._spans) >= _MOST_SPANS
        if stage == LAST_STAGE:
            self._record_own(is_last=self._steps_left <= 1 or is_full)
            self._steps_left -= 1
        if self._steps_left <= 0 or (is_full and self._end_own is None):
            self._source.recorder = None
            self._steps_left = 0

    def _record_own(self, is_last: bool) -> None:
        """Begin the framework's profile after the first step, and end it after the last one."""
        try:
            if is_last and self._end_own is not None:
                end, self._end_own = self._end_own, None
                end()
            elif self._wants_own and not is_last:
                self._wants_own = False
                folder = self._folder / f"{self._id}.{self._name}.{OWN}"
                self._end_own = self._begin_own(folder)
        except Exception as error:  # whatever the framework raises: the job goes on
            log.warning("the framework's own profile failed: %s", error)

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
