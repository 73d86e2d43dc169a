"""Who is given the parameters before the first round, and who beside the rounds."""

import pytest

from elasticdl.collective.giving import (
    AT_ONCE_BYTES,
    LEAST_PIECE_BYTES,
    MOST_BACKLOG_BYTES,
    Way,
    most_backlog,
    piece_bytes,
    way_of_giving,
)

LARGE, SMALL = AT_ONCE_BYTES // 4 + 1, AT_ONCE_BYTES // 4


def way(are_behind, positions, num_numbers=LARGE, has_trained=True, is_deterministic=False):
    return way_of_giving(
        are_behind,
        positions,
        num_numbers,
        has_trained=has_trained,
        is_deterministic=is_deterministic,
    )


@pytest.mark.parametrize(
    ("are_behind", "positions", "expected"),
    [
        ([False, False], [7, 7], Way.NOT),
        ([False, True], [7, -1], Way.BESIDE),
        ([False, False, True, True], [7, 7, -1, -1], Way.BESIDE),
        ([False, True, True], [7, 6, -1], Way.AT_ONCE),  # one lost an update of the last world
    ],
)
def test_joiners_alone_do_not_stop_the_others(are_behind, positions, expected):
    assert way(are_behind, positions) is expected


@pytest.mark.parametrize(
    "reason", [{"num_numbers": SMALL}, {"has_trained": False}, {"is_deterministic": True}]
)
def test_where_nobody_is_stopped_for_long_the_parameters_are_given_at_once(reason):
    assert way([False, True], [7, -1], **reason) is Way.AT_ONCE


def test_a_piece_takes_as_long_as_the_gradient_and_is_never_tiny():
    assert piece_bytes(10) == LEAST_PIECE_BYTES
    assert piece_bytes(25_000_000) == 50_000_000  # two bytes travel in each number


def test_a_joiner_keeps_a_limited_number_of_gradients():
    assert most_backlog(25_000_000) == MOST_BACKLOG_BYTES // 100_000_000
    assert most_backlog(10**9) == 16
