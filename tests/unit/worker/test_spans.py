"""What follows from a span: seconds, what is under way, labels, and where a suspect is."""

from dataclasses import replace

import pytest

from elasticdl.job import Label, Lease, Position, Shard, Task, TaskKind
from elasticdl.observe.labels import LabelClock
from elasticdl.worker.activity import Activity
from elasticdl.worker.spans import Place, Spans

LEASE = Lease(Task(7, TaskKind.TRAINING, Shard("a.recordio", 100, 200), epoch=1), 2)
PLACE = Place(LEASE, 3, 10)


class Time:
    """A clock that is set."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def made(clock=lambda: 0.0, announce=lambda position: None):
    labels = LabelClock(clock=clock, seconds_before=0.0)
    return Spans(Activity(labels), announce, clock)


def test_stage_is_under_way_until_it_returns_or_raises():
    spans = made(Time())
    with spans.span("feed", PLACE):
        assert [w.stage for w in spans.under_way()] == ["feed"]
    assert spans.under_way() == []
    with pytest.raises(ValueError, match="bad"), spans.span("feed", PLACE):
        raise ValueError("bad")
    assert spans.under_way() == []


def test_stage_that_waits_for_others_is_not_under_way_and_begins_anew_afterwards():
    time = Time()
    spans = made(time)
    with spans.span("feed", PLACE):
        time.now = 100.0
        with spans.waiting("feed"):
            time.now = 500.0
            assert spans.under_way() == []
        (found,) = spans.under_way()
        assert found.since == 500.0


def test_first_calls_are_those_of_a_stage_and_of_each_size():
    time = Time()
    spans = made(time)

    def call(num_records, seconds):
        with spans.span("compute", Place(LEASE, 0, num_records)):
            (found,) = spans.under_way()
            time.now += seconds
        return found.is_first, found.longest

    first = [call(10, 60.0) for _ in range(3)]
    assert first == [(True, 0.0)] * 3
    assert call(10, 2.0) == (False, 0.0)
    assert call(7, 60.0) == (True, 2.0)
    assert call(7, 1.0) == (False, 2.0)


def test_seconds_are_those_of_spans_that_returned_and_each_is_told_to_the_recorder():
    time, told = Time(), []
    spans = made(time)
    spans.recorder = told.append
    with spans.span("pull", PLACE):
        time.now += 2.0
    with spans.span("pull") as span:
        time.now += 1.0
    with pytest.raises(ValueError, match="bad"), spans.span("pull"):
        raise ValueError("bad")
    assert (spans.seconds(), spans.spent("pull", "push"), span.seconds) == ({"pull": 3.0}, 3.0, 1.0)
    assert [(one.place, one.began, one.ended) for one in told] == [
        (PLACE, 0.0, 2.0),
        (None, 2.0, 3.0),
    ]


def test_spans_say_what_the_time_of_the_process_goes_into():
    labels = LabelClock(clock=lambda: 0.0, seconds_before=0.0)
    spans = Spans(Activity(labels), announce=lambda position: None)
    seen = []
    with spans.span("lease"), spans.span("compute wait"):
        seen.append(labels.label)
    with spans.span("feed", PLACE):
        seen.append(labels.label)
    with spans.span("staleness wait"):
        seen.append(labels.label)
    assert seen == [Label.IDLE, Label.WAIT_FOR_DATA, Label.WAIT_FOR_PARAMETERS]


def test_stage_of_a_suspect_is_announced_before_it_begins():
    announced = []
    spans = made(announce=announced.append)
    with spans.span("ids", replace(PLACE, lease=replace(LEASE, is_suspect=True))):
        assert announced == [Position(7, 2, 3, "ids")]
    with spans.span("pull", PLACE):
        assert len(announced) == 1
