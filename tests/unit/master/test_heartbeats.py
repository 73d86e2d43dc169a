"""How often processes report, and how long they may be silent."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.job import Role
from elasticdl.master.actions import Note
from elasticdl.master.heartbeats import CALLS_PER_SECOND, interval_seconds, timeout_seconds
from elasticdl.observe.kinds import HeartbeatInterval


@settings(deadline=None)
@given(num_members=st.integers(0, 100_000), least=st.floats(0.01, 60.0))
def test_all_heartbeats_together_stay_in_the_budget_and_are_not_rarer_than_they_must(
    num_members, least
):
    interval = interval_seconds(num_members, least)
    assert interval >= least
    assert num_members / interval <= CALLS_PER_SECOND * (1 + 1e-9)
    assert interval == least or num_members / interval > CALLS_PER_SECOND / 1.3


@pytest.mark.parametrize(
    ("num_members", "seconds"), [(1, 1.0), (200, 1.0), (201, 1.25), (1000, 5.96)]
)
def test_the_interval_grows_with_the_number_of_members(num_members, seconds):
    assert interval_seconds(num_members, 1.0) == pytest.approx(seconds, abs=0.01)


def test_silence_is_counted_from_when_a_heartbeat_was_due():
    assert timeout_seconds(30.0, 1.0, 1.0) == 30.0
    assert timeout_seconds(30.0, 1.0, 50.0) == 79.0
    assert timeout_seconds(30.0, 1.0, 0.0) == 30.0  # it has not said so yet


@pytest.fixture
def crowd(master_kit):
    play = master_kit.play(
        master_kit.config(num_workers=1, heartbeat_seconds=0.1, heartbeat_timeout_seconds=2.0)
    )
    play.core.begin(0.0)
    return play


def beat(play, worker_id, interval=0.0):
    return play.core.heartbeat(Role.WORKER, worker_id, "s", None, play.now, None, interval)


def lost(play):
    """Look for silent members as the master does, and return those that are given up."""
    tick = play.core.members.tick_seconds
    while play.core._next_tick <= play.now:
        play.core.tick(play.core._next_tick)
    assert tick < 1.0
    return [m.index for m in play.core.members if m.gone and m.role is Role.WORKER and m.session]


def test_members_are_told_a_longer_interval_as_more_of_them_come(crowd):
    crowd.register(0)
    assert beat(crowd, 0) == 0.1
    crowd.register(*range(1, 400))
    told = beat(crowd, 0, 0.1)
    assert told == interval_seconds(400, 0.1) > 2.0
    crowd.now = 1.0
    lost(crowd)
    (note,) = [n for n in crowd.do(Note) if isinstance(n.kind, HeartbeatInterval)]
    assert (note.kind.seconds, note.kind.num_members) == (told, 400)


def test_nobody_is_given_up_because_the_interval_grew(crowd):
    crowd.register(*range(600))
    told = beat(crowd, 0, 0.1)
    assert told > 2.0  # more than the time-out of a job of few
    crowd.now = told + 1.9
    assert 0 not in lost(crowd)
    crowd.now = told + 2.1
    assert 0 in lost(crowd)


def test_who_did_not_hear_that_the_interval_shrank_is_given_its_old_time(crowd):
    crowd.register(*range(600))
    told = beat(crowd, 0, 0.1)
    beat(crowd, 0, told)
    for member in list(crowd.core.members)[1:]:
        crowd.core.members.lose(member, "all others leave")
    assert beat(crowd, 0, told) == 0.1  # this answer is lost on its way
    crowd.now = told + 1.9
    assert 0 not in lost(crowd)
    assert beat(crowd, 0, 0.1) == 0.1  # it has heard of it
    crowd.now += 2.2
    assert 0 in lost(crowd)
