"""One more ps replica at a time, while they are busy or full, and not before a move has shown."""

import pytest

from elasticdl.errors import ConfigError
from elasticdl.master.moves.leading import MoveRefusedError, check_room
from elasticdl.master.parameters.autoscale import PAUSE_SECONDS, PsAutoscale


def test_a_busy_replica_is_relieved_one_at_a_time_and_only_after_a_pause():
    autoscale = PsAutoscale(most=3)

    def why(number, now, is_moving=False, is_busy=True, share=0.0):
        return autoscale.why_more(number, is_moving, is_busy, share, now)

    assert why(1, 10.0, is_busy=False) == ""
    assert "works nearly all of its time" in why(1, 11.0)
    assert why(1, 12.0) == ""  # it was asked for
    assert why(1, 200.0, is_moving=True) == ""
    assert why(2, 201.0 + PAUSE_SECONDS / 2) == ""  # what is known is of the move
    assert "take 55%" in why(2, 201.0 + PAUSE_SECONDS, is_busy=False, share=0.55)
    assert why(3, 1_000.0) == ""  # there are as many as there may be


def test_a_move_that_comes_to_nothing_is_asked_for_more_and_more_rarely():
    autoscale, asked = PsAutoscale(most=3), []
    for second in range(1, 1_000):
        if autoscale.why_more(1, False, True, 0.0, float(second)):
            asked.append(second)
    assert asked == [1, 61, 181, 421, 901]


def test_without_a_flag_nothing_moves_by_itself():
    assert PsAutoscale(most=0).why_more(1, False, True, 0.9, 10.0) == ""


def test_a_move_needs_the_room_of_what_a_replica_has_and_is_to_have():
    check_room([600, 600], 3, None)
    check_room([600, 600], 3, 1_000)
    with pytest.raises(MoveRefusedError, match=r"ps replica 1 holds 700 bytes .* about 433 more"):
        check_room([600, 700], 3, 1_000)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"ps_autoscale": 2, "num_ps": 2}, "expected more than --num_ps_pods=2"),
        ({"ps_autoscale": 4, "recovery_seconds": 0.0}, "--recovery_seconds=0"),
    ],
)
def test_what_cannot_move_is_refused_before_the_job_starts(master_kit, flags, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        master_kit.config(**{"num_ps": 1, **flags})
