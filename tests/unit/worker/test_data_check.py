"""How a look at the data ends, and what the master hears of it."""

from types import SimpleNamespace

import pytest

from elasticdl.backends.base import CallbackNeeds
from elasticdl.config import JobConfig
from elasticdl.data.base import Metadata
from elasticdl.errors import DataError
from elasticdl.job import DataCheckTurn
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from elasticdl.worker import data_check
from elasticdl.worker.worker_process import check_callbacks


class Master:
    """Gives the one worker its turn, and keeps what it is told."""

    told = None

    def __init__(self, turn=DataCheckTurn.YOURS):
        self.turn = turn

    def data_check_turn(self, worker_id):
        return self.turn

    def data_checked(self, worker_id, lines, error=""):
        self.told = list(lines), error


@pytest.fixture
def look(monkeypatch):
    def look(error):
        def raising(*_):
            raise error

        monkeypatch.setattr(data_check.registry, "brought", lambda kind: {kind: raising})
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


def test_what_is_otherwise_in_the_job_of_a_script_is_told_by_one_worker():
    master = Master()
    data_check.tell_notes(master, 0, ["StepLR counts updates"])
    assert master.told == (["model: StepLR counts updates"], "")
    other = Master(DataCheckTurn.OVER)
    data_check.tell_notes(other, 1, ["StepLR counts updates"])
    assert other.told is None


@pytest.mark.parametrize(
    ("strategy", "validation_data", "evaluation_steps", "is_told"),
    [
        ("ParameterServerStrategy", "", None, True),
        ("ParameterServerStrategy", "valid.csv", 100, True),
        ("ParameterServerStrategy", "valid.csv", None, False),
        ("Local", "", None, False),
    ],
)
def test_callbacks_that_act_some_tasks_late_are_told(
    strategy, validation_data, evaluation_steps, is_told
):
    config = JobConfig(
        command="train",
        model={"model_zoo": ".", "model_def": "a.b.forward"},
        data={"training_data": "train.csv", "validation_data": validation_data},
        training={"distribution_strategy": strategy},
        evaluation={"evaluation_steps": evaluation_steps},
    )
    told = SimpleNamespace(notes=[])
    told.tell = told.notes.append
    check_callbacks(config, CallbackNeeds(""), told)
    assert len(told.notes) == is_told
    assert all("what they decide there comes some tasks late" in note for note in told.notes)


def test_a_feed_that_asks_for_the_columns_with_each_record_fills_no_memory():
    noted = data_check.NotedMetadata.copy_of(Metadata(("a", "b"), {}))
    for _ in range(10):
        assert noted.column_names == ("a", "b")
    assert noted.was_asked == ["column_names"]
