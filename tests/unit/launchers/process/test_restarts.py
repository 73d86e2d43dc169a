"""When a master is started again: a budget that refills with time."""

import pytest

from elasticdl.launchers.process.restarts import (
    MOST_AT_ONCE,
    REFILL_SECONDS,
    Restarts,
    is_decided,
)
from elasticdl.runtime import process


def taken_at(times):
    """Return how many restarts at some times are granted, up to the first that is not."""
    restarts = Restarts()
    for number, now in enumerate(times):
        taken = restarts.take(now)
        if taken is None:
            return number
        restarts, _ = taken
    return len(times)


def test_a_master_that_ends_again_and_again_is_given_up():
    assert taken_at([float(n) for n in range(100)]) == MOST_AT_ONCE


def test_a_master_that_is_lost_now_and_then_is_started_again_for_ever():
    assert taken_at([n * REFILL_SECONDS for n in range(1000)]) == 1000


def test_what_was_used_up_comes_back_with_time_and_no_more_than_there_was():
    storm = [0.0] * MOST_AT_ONCE
    assert taken_at([*storm, REFILL_SECONDS - 1.0]) == MOST_AT_ONCE
    assert taken_at([*storm, REFILL_SECONDS]) == MOST_AT_ONCE + 1
    much_later = [1e6 * REFILL_SECONDS] * (MOST_AT_ONCE + 1)
    assert taken_at([*storm, *much_later]) == 2 * MOST_AT_ONCE


def test_a_clock_that_goes_back_gives_nothing():
    restarts, _ = Restarts(1.0, 50.0).take(10.0)
    assert restarts.take(10.0) is None


def test_pauses_grow_and_have_a_bound():
    restarts, pauses = Restarts(), []
    for _ in range(MOST_AT_ONCE):
        restarts, pause = restarts.take(0.0)
        pauses.append(pause)
    assert pauses[:5] == [0.0] * 5
    assert pauses == sorted(pauses)
    assert pauses[5] == 0.25
    assert pauses[-1] == 10.0


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (0, True),
        (1, True),
        (process.STOPPED_EXIT_CODE, True),
        (-9, False),
        (-11, False),
        (process.OWN_FAILURE_EXIT_CODE, False),
        (134, False),
    ],
)
def test_only_a_master_that_said_why_wanted_to_end(code, wanted):
    assert is_decided(code) is wanted
