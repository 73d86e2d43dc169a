"""Who is given the parameters before the first round, and who beside the rounds."""

import pytest

from elasticdl.packages.all_reduce.collective.transfer import (
    AT_ONCE_BYTES,
    LEAST_PIECE_BYTES,
    Layout,
    TransferWay,
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
        ([False, False], [7, 7], TransferWay.NOT),
        ([False, True], [7, -1], TransferWay.BESIDE),
        ([False, False, True, True], [7, 7, -1, -1], TransferWay.BESIDE),
        (
            [False, True, True],
            [7, 6, -1],
            TransferWay.AT_ONCE,
        ),  # one lost an update of the last world
    ],
)
def test_joiners_alone_do_not_stop_the_others(are_behind, positions, expected):
    assert way(are_behind, positions) is expected


@pytest.mark.parametrize(
    "reason", [{"num_numbers": SMALL}, {"has_trained": False}, {"is_deterministic": True}]
)
def test_where_nobody_is_stopped_for_long_the_parameters_are_given_at_once(reason):
    assert way([False, True], [7, -1], **reason) is TransferWay.AT_ONCE


def test_a_piece_takes_as_long_as_the_gradient_and_is_never_tiny():
    assert piece_bytes(10) == LEAST_PIECE_BYTES
    assert piece_bytes(25_000_000) == 50_000_000


@pytest.mark.parametrize("most_bytes", [1, 4, 12, 40, 1_000])
@pytest.mark.parametrize(
    "layout", [Layout(10, 3, 2), Layout(10, 0, 0), Layout(0, 4, 3), Layout(1, 1, 1)]
)
def test_parts_follow_each_other_to_the_end_and_have_their_slots(layout, most_bytes):
    start, total = 0, 0
    while start < layout.end:
        end, num_numbers = layout.next_part(start, most_bytes)
        assert start < end <= layout.end
        num_dense = min(end, layout.dense) - min(start, layout.dense)
        assert num_numbers == num_dense * (1 + layout.slots) + (end - start - num_dense)
        assert num_numbers <= max(most_bytes // 4, 1 + layout.slots)
        # Who is given so many numbers finds the same end.
        assert layout.next_part(start, 4 * num_numbers) == (end, num_numbers)
        start, total = end, total + num_numbers
    assert total == layout.dense * (1 + layout.slots) + layout.state
