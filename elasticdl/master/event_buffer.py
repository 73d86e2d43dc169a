"""The events that a master remembers, for those who have no files of the job to read.

It has its own, and what processes say of themselves with each heartbeat. Both are bounded in bytes,
apart from each other: heartbeats never push a fact out.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from elasticdl.job import Event
from elasticdl.observe.events import encode
from elasticdl.observe.kinds import all_kinds

FACT_BYTES = 16 << 20
BEAT_BYTES = 16 << 20
PAGE = 1_000
"""The largest number of events of a page."""

_OVERHEAD_BYTES = 150  # memory of a short string and of its holder


@dataclass(frozen=True, slots=True)
class EventMemory:
    """An event by its number, as JSON."""

    number: int
    time: float
    json: str


@dataclass(frozen=True, slots=True)
class Page:
    """Events that follow each other; see `GetEventsResponse` in the `.proto`."""

    events: list[EventMemory]
    next_offset: int
    has_more: bool
    has_gap: bool


class EventBuffer:
    """The newest events of a job, numbered from 0 in the order in which the master had them."""

    def __init__(self, fact_bytes: int = FACT_BYTES, beat_bytes: int = BEAT_BYTES) -> None:
        """Begin empty; the newest facts and beats are kept, up to these numbers of bytes."""
        self.log = uuid.uuid4().hex
        """An identity, which tells the numbers of this master from the numbers of another one."""
        self._facts = _Line(fact_bytes)
        self._beats = _Line(beat_bytes)
        self._next = 0

    def add(self, event: Event) -> None:
        """Remember an event."""
        kind = all_kinds().get(event["event"])
        # Beats are many. They have a line of their own, so that they push no facts out.
        line = self._beats if kind is not None and kind.is_beat else self._facts
        text = encode(event)[:-1].decode()
        line.add(EventMemory(self._next, event["time"], text))
        self._next += 1

    def page(self, offset: int, limit: int = PAGE, with_beats: bool = True) -> Page:
        """Return events from a number on, in order."""
        limit = min(limit, PAGE) if limit > 0 else PAGE
        lines = (self._facts, self._beats) if with_beats else (self._facts,)
        found = sorted(
            # One more than the limit shows whether there is another page.
            (event for line in lines for event in line.first_from(offset, limit + 1)),
            key=lambda event: event.number,
        )
        has_gap = any(line.has_forgotten(offset) for line in lines)
        if len(found) <= limit:
            return Page(found, self._next, has_more=False, has_gap=has_gap)
        return Page(found[:limit], found[limit].number, has_more=True, has_gap=has_gap)


class _Line:
    """Events of one sort."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._events: deque[EventMemory] = deque()
        self._last_forgotten = -1

    def add(self, event: EventMemory) -> None:
        self._events.append(event)
        self._bytes += len(event.json) + _OVERHEAD_BYTES
        while self._bytes > self._max_bytes and len(self._events) > 1:
            old = self._events.popleft()
            self._bytes -= len(old.json) + _OVERHEAD_BYTES
            self._last_forgotten = old.number

    def has_forgotten(self, offset: int) -> bool:
        """Whether an event at this number or a later one is no longer there."""
        return self._last_forgotten >= offset

    def first_from(self, offset: int, count: int) -> Iterable[EventMemory]:
        """Return the first events from a number on."""
        if not self._events or offset > self._events[-1].number:
            return ()
        if offset <= self._events[0].number:
            return list(islice(self._events, count))
        # A reader that follows the events is near the end, so the search begins there.
        found: deque[EventMemory] = deque()
        for event in reversed(self._events):
            if event.number < offset:
                break
            found.appendleft(event)
        return list(islice(found, count))
