"""What a viewer says of a master that does not answer."""

from elasticdl.cli.view import FIRST_SECONDS, Silence

NOON = 43_200.0


def said(silence, seconds):
    """Return (second, words) of what is said in so many seconds without an answer."""
    words = [(n, silence.look(float(n), NOON + n)) for n in range(seconds + 1)]
    return [(n, text) for n, text in words if text]


def test_a_master_that_stands_still_is_told_after_ten_seconds_and_then_less_often():
    silence = Silence(heard=0.0)
    assert silence.answered(0.0) == ""
    told = said(silence, 600)
    assert [n for n, _ in told] == [10, 20, 40, 80, 160, 280, 400, 520]
    assert told[0][1].startswith("the master has not answered since ")
    assert "for 10 s; still trying, the job itself goes on" in told[0][1]
    assert silence.answered(601.0) == "the master answers again, after 601 s"
    assert silence.answered(602.0) == ""
    assert [n - 602 for n, _ in said_from(silence, 602, 30)] == [10, 20]


def said_from(silence, begin, seconds):
    return [(n, w) for n in range(begin, begin + seconds) if (w := silence.look(float(n), NOON))]


def test_one_that_has_not_begun_is_told_with_the_reason():
    silence = Silence(heard=0.0)
    silence.reason = "the job in x has no master that listens"
    assert said(silence, 10) == [
        (
            FIRST_SECONDS,
            "the master has not answered yet, for 10 s (the job in x has no master that listens); "
            "still trying",
        )
    ]
    assert silence.answered(11.0) == ""


def test_a_short_silence_is_no_news():
    silence = Silence(heard=0.0)
    silence.answered(0.0)
    assert said(silence, 9) == []
    assert silence.answered(9.5) == ""
