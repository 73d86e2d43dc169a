"""How a look at the data ends, and what the master hears of it."""

from types import SimpleNamespace

import pytest

from elasticdl.errors import DataError
from elasticdl.job import DataCheckTurn
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from elasticdl.worker import data_check


class Master:
    """Gives the one worker its turn, and keeps what it is told."""

    told = None

    def data_check_turn(self, worker_id):
        return DataCheckTurn.YOURS

    def data_checked(self, worker_id, lines, error=""):
        self.told = list(lines), error


@pytest.fixture
def look(monkeypatch):
    def look(error):
        def raising(*_):
            raise error

        monkeypatch.setattr(data_check, "look_at_data", raising)
        master = Master()
        try:
            data_check.check_data(None, SimpleNamespace(notes=[]), None, None, {}, master, 0)
        except BaseException as raised:
            return master.told, raised
        return master.told, None

    return look


@pytest.mark.parametrize(
    "error", [ValueError("the truth value\nis ambiguous"), KeyError("x"), MemoryError(), SystemExit]
)
def test_a_look_that_fails_by_its_own_fault_is_one_line_and_the_job_goes_on(look, error):
    (lines, refusal), raised = look(error)
    assert raised is None
    assert refusal == ""
    (line,) = lines
    assert line.startswith("warning: nothing is said of the data: the look at it failed at ")
    assert "\n" not in line


def test_what_the_look_refuses_ends_the_job(look):
    error = DataError("the labels are all NaN")
    assert look(error) == (([], "the labels are all NaN"), error)


def test_a_worker_that_is_asked_to_end_while_it_looks_ends(look):
    stop = SystemExit(STOPPED_EXIT_CODE)
    assert look(stop) == (None, stop)
