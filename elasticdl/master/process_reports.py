"""Reports of processes about themselves, for displays only: no decision depends on them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from elasticdl.job import Event, HotKeys, Progress, Role, Usage
from elasticdl.master.event_buffer import EventBuffer
from elasticdl.observe import kinds
from elasticdl.observe.adviser import Adviser
from elasticdl.observe.events import line_of
from elasticdl.observe.page import JobPage
from elasticdl.observe.usage import kind_of

_MOST_TABLES = 100
_MOST_KEYS = 64  # of a table; of more, the rarest are forgotten
_MOST_TOLD = 5


class HotKeySums:
    """The workers' reports about their hottest keys; each has the news since the last one."""

    def __init__(self) -> None:
        self._num_ids: Counter[str] = Counter()
        self._counts: dict[str, Counter[int]] = {}

    def add(self, found: Iterable[HotKeys]) -> None:
        """Add one worker's report."""
        for hot in found:
            if hot.table not in self._counts and len(self._counts) >= _MOST_TABLES:
                continue
            counts = self._counts.setdefault(hot.table, Counter())
            self._num_ids[hot.table] += hot.num_ids
            counts.update(dict(hot.keys))
            # A key that is really hot stays among the most common ones of each report.
            if len(counts) > _MOST_KEYS:
                self._counts[hot.table] = Counter(dict(counts.most_common(_MOST_KEYS)))

    def shares(self) -> dict[str, Sequence[tuple[int, float]]]:
        """Return by table the hottest keys, each with its share of the counted ids."""
        return {
            table: [(key, n / self._num_ids[table]) for key, n in counts.most_common(_MOST_TOLD)]
            for table, counts in self._counts.items()
        }


class ProcessReports:
    """Hands the reports to the parts that show them.

    events: the events that this master remembers.
    adviser: looks for what is unusual.
    hot_keys: counts keys since the master began.
    page: the page of the job, if it is served.
    """

    def __init__(self, adviser: Adviser) -> None:
        """Begin to listen."""
        self.events = EventBuffer()
        self.adviser = adviser
        self.hot_keys = HotKeySums()
        self.page: JobPage | None = None

    def heartbeat(
        self, role: Role, index: int, progress: Progress | None, usage: Usage | None
    ) -> None:
        """Take in what a process said of itself."""
        now = time.time()
        self.adviser.heard(role, index, progress, usage)
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
