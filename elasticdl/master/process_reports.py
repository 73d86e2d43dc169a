"""Reports of processes about themselves, for displays only: no decision depends on them."""

from __future__ import annotations

import time
from dataclasses import asdict

from elasticdl.job import Event, Progress, Role, Usage
from elasticdl.master.event_buffer import EventBuffer
from elasticdl.observe import kinds
from elasticdl.observe.anomalies import Anomalies
from elasticdl.observe.events import line_of
from elasticdl.observe.hot_keys import HotKeySums
from elasticdl.observe.page import JobPage
from elasticdl.observe.usage import kind_of


class ProcessReports:
    """Hands the reports to the parts that show them.

    events: the events that this master remembers.
    anomalies: looks for unusual events.
    hot_keys: counts keys since the master began.
    page: the page of the job, if it is served.
    """

    def __init__(self, memory_limit: int | None = None) -> None:
        """Begin to listen; `memory_limit`: bytes of rows that a ps replica may hold."""
        self.events = EventBuffer()
        self.anomalies = Anomalies(time.monotonic(), memory_limit)
        self.hot_keys = HotKeySums()
        self.page: JobPage | None = None

    def heartbeat(
        self, role: Role, index: int, progress: Progress | None, usage: Usage | None
    ) -> None:
        """Take in what a process said of itself."""
        now = time.time()
        self.anomalies.heard(role, index, progress, usage)
        if progress is not None:
            self.remember(line_of(now, role, index, kinds.WorkerProgress(**asdict(progress))))
        if usage is not None:
            self.hot_keys.add(usage.hot_keys)
            self.remember(line_of(now, role, index, kind_of(usage)))

    def remember(self, event: Event) -> None:
        """Keep an event, and show it on the page."""
        self.events.add(event)
        if self.page is not None:
            self.page.put(event)
