"""What a master remembers of events, in a limited room."""

import json

import pytest

from elasticdl.master.event_buffer import EventBuffer
from elasticdl.observe.events import line_of
from elasticdl.observe.kinds import PhaseBegan, ProcessUsage

USAGE = ProcessUsage(0.5, "train", {"train": 1.5}, 1.0, 1_000_000, 10, 20)


def fact(number):
    return line_of(float(number), "master", 0, PhaseBegan(str(number)))


def beat(number):
    return line_of(float(number), "worker", 3, USAGE)


def read(events, limit, **how):
    """Return all events by pages."""
    found, offset, more = [], 0, True
    while more:
        page = events.page(offset, limit, **how)
        assert len(page.events) <= limit
        found += [json.loads(event.json) for event in page.events]
        offset, more = page.next_offset, page.has_more
    return found, offset


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_together_are_all_events_in_order(limit):
    events = EventBuffer()
    added = [fact(n) if n % 3 else beat(n) for n in range(10)]
    for event in added:
        events.add(event)
    found, offset = read(events, limit)
    assert found == added
    assert read(events, limit, with_beats=False)[0] == [fact(n) for n in range(10) if n % 3]
    events.add(fact(10))
    assert [event.time for event in events.page(offset).events] == [10.0]


def test_heartbeats_never_push_a_fact_out():
    events = EventBuffer(beat_bytes=2_000)
    events.add(fact(0))
    for number in range(1, 100):
        events.add(beat(number))
    found, _ = read(events, 10)
    assert found[0] == fact(0)
    assert found[-1] == beat(99)
    assert len(found) < 10


def test_whoever_comes_late_is_told_that_something_is_missing():
    events = EventBuffer(fact_bytes=1_000)
    assert not events.page(0).has_gap
    for number in range(50):
        events.add(fact(number))
    page = events.page(0)
    assert page.has_gap
    assert page.events[-1].number == 49
    assert not events.page(page.events[0].number).has_gap
    assert not events.page(page.next_offset).has_gap


def test_memory_is_bounded():
    events = EventBuffer(fact_bytes=10_000, beat_bytes=10_000)
    for number in range(1_000):
        events.add(fact(number))
        events.add(beat(number))
    found, _ = read(events, 1_000)
    assert sum(len(json.dumps(event)) for event in found) < 20_000
