"""One worker looks at the data for the job; the others wait for it, but not for ever."""

from elasticdl.job import DataCheckTurn
from elasticdl.master.features.data_check import DataCheck


def test_the_first_worker_looks_and_the_others_wait_until_it_has_said_what_it_found():
    check = DataCheck()
    assert check.turn(3, is_holder_alive=False, has_begun=False) is DataCheckTurn.YOURS
    assert check.turn(3, is_holder_alive=True, has_begun=False) is DataCheckTurn.YOURS  # again
    assert check.turn(1, is_holder_alive=True, has_begun=False) is DataCheckTurn.WAIT
    assert check.done(1, ["not its turn"]) is False
    assert check.done(3, ["labels: 0 in 50 %"]) is True
    assert check.turn(1, is_holder_alive=True, has_begun=False) is DataCheckTurn.OVER
    assert check.lines == ("labels: 0 in 50 %",)


def test_nobody_looks_again_where_a_worker_died_of_it_or_the_job_has_begun():
    check = DataCheck()
    check.turn(0, is_holder_alive=False, has_begun=False)
    assert check.turn(1, is_holder_alive=False, has_begun=False) is DataCheckTurn.OVER
    assert check.done(0, ["late"]) is False
    assert DataCheck().turn(0, is_holder_alive=False, has_begun=True) is DataCheckTurn.OVER


def test_lines_are_bounded():
    check = DataCheck()
    check.turn(0, is_holder_alive=False, has_begun=False)
    check.done(0, ["x" * 5000] * 500)
    assert (len(check.lines), len(check.lines[0])) == (40, 1000)
