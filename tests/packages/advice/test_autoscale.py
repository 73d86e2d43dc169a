"""One more ps replica at a time, while they are busy or full, and not before a move has shown."""

from elasticdl.packages.advice.autoscale import PAUSE_SECONDS, PsAutoscale


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
