"""A job as a trace: a span for the job, for each of its phases and for each of its processes.

It is pure, and the result does not depend on who adds the events. The identity of a span is made of
the job's identity and the span's own name. So a master that continues a job continues its trace.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from elasticdl.job import Event

_MOST_FACTS = 100  # of the span of the job; the newest ones


@dataclass(frozen=True)
class JobSpan:
    """Something that took time; times are seconds since 1970.

    error: The reason if it ended badly; empty if it did not.
    facts: What happened meanwhile, with its time.
    parent: The identity of the span that contains it; 0 if there is none.
    """

    id: int
    parent: int
    name: str
    began: float
    ended: float
    attributes: Mapping[str, str]
    error: str = ""
    facts: tuple[tuple[float, str, str], ...] = ()


class JobSpans:
    """The spans of a job, as its events are added in order of their times."""

    def __init__(self, job: str) -> None:
        """Begin with no spans; `job` is the job's identity, which never changes."""
        self._job = job
        self.trace_id = int.from_bytes(hashlib.sha256(job.encode()).digest()[:16]) or 1
        self._root = self._id_of("job", 0.0)
        self._began: float | None = None
        self._phase: tuple[str, float] | None = None
        self._processes: dict[str, float] = {}
        self._facts: deque[tuple[float, str, str]] = deque(maxlen=_MOST_FACTS)
        self._ended: list[JobSpan] = []

    def take_ended(self, since: float = 0.0) -> list[JobSpan]:
        """Return the spans that have ended since the last call, and not before a time."""
        ended, self._ended = self._ended, []
        return [span for span in ended if span.ended >= since]

    def add(self, event: Event) -> None:
        """Add an event."""
        time, name, text = float(event["time"]), event["event"], event.get("text", "")
        # The events come in the order of their times, so the first one begins the job.
        if self._began is None:
            self._began = time
        if text:
            self._facts.append((time, name, text))
        if name == "phase":
            self._end_phase(time)
            self._phase = (event["phase"], time)
        elif name == "registered":
            self._end_process(event["process"], time)
            self._processes[event["process"]] = time
        elif name in ("left", "lost"):
            self._end_process(event["process"], time, event["reason"], name == "lost")
        elif name == "ended":
            self._end_job(event["phase"], time, text)

    def _end_phase(self, time: float) -> None:
        if self._phase is not None:
            name, began = self._phase
            self._end(f"phase {name}", began, time)
        self._phase = None

    def _end_process(
        self, process: str, time: float, reason: str = "", is_lost: bool = False
    ) -> None:
        began = self._processes.pop(process, None)
        if began is not None:
            attributes = {"elasticdl.process": process, "elasticdl.reason": reason}
            self._end(process, began, time, attributes, error=reason if is_lost else "")

    def _end_job(self, phase: str, time: float, text: str) -> None:
        self._end_phase(time)
        for process in list(self._processes):
            self._end_process(process, time)
        assert self._began is not None, "it is the time of an event"
        error = "" if phase == "finished" else text or phase
        attributes, facts = {"elasticdl.phase": phase}, tuple(self._facts)
        self._ended.append(
            JobSpan(self._root, 0, "job", self._began, time, attributes, error, facts)
        )

    def _end(
        self,
        name: str,
        began: float,
        ended: float,
        attributes: Mapping[str, str] | None = None,
        error: str = "",
    ) -> None:
        span_id = self._id_of(name, began)
        self._ended.append(
            JobSpan(span_id, self._root, name, began, ended, attributes or {}, error)
        )

    def _id_of(self, name: str, began: float) -> int:
        words = f"{self._job}\n{name}\n{began!r}".encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:8]) or 1
