"""What a person sees of a job."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from elasticdl.cli.display import (
    LINE_SECONDS,
    PROBLEM_SECONDS,
    Display,
)
from elasticdl.cli.pace import Pace
from elasticdl.job.status import BestEvaluation, EpochLedger, no_status
from scripts.job_lines import DONE, processes, records_done

RUNNING = dataclasses.replace(
    no_status("ads", 3),
    status="running",
    epoch=1,
    tasks_todo=7,
    tasks_doing=2,
    tasks_done=11,
    records_done=5_000,
    records_total=20_000,
    records_per_second=100.0,
    loss=0.43217,
    metrics={"auc": 0.7812},
    num_workers_alive=2,
    num_ps_alive=1,
    model_version=40,
    mean_staleness=1.25,
    max_staleness=4,
)


class Screen:
    """A display with a clock that a test moves."""

    def __init__(self, is_terminal=False, term="xterm", **options):
        self.now = 100.0
        self.file = io.StringIO()
        console = Console(
            file=self.file,
            width=100,
            force_terminal=is_terminal,
            color_system=None,
            _environ={"TERM": term},
        )
        self.display = Display(console=console, clock=lambda: self.now, **options)

    @property
    def lines(self):
        return self.file.getvalue().splitlines()


@pytest.fixture
def screen():
    return Screen()


def test_a_log_gets_one_line_with_all_that_matters(screen):
    screen.display.show(RUNNING)
    assert screen.lines == [
        "[0:00] running | epoch 2 of 3 | 5,000 of 20,000 records (25%) | 100 records/s | "
        "loss 0.43217 | validation auc 0.7812 | 2 workers, 1 ps replica"
    ]


@pytest.mark.parametrize(("rate", "words"), [(0.347, "0.35"), (9.96, "10"), (1234.5, "1,234")])
def test_a_slow_job_has_a_speed_too(screen, rate, words):
    status = dataclasses.replace(RUNNING, records_per_second=rate)
    screen.display.show(status)
    screen.display.finish(dataclasses.replace(status, status="finished"), {})
    assert f"| {words} records/s |" in screen.lines[0]
    assert any(f", {words} records/s" in line for line in screen.lines[1:])


def test_metrics_of_training_stand_beside_those_of_the_evaluation(screen):
    screen.display.show(
        dataclasses.replace(
            RUNNING,
            epoch_loss=0.5,
            train_metrics={"auc": 0.75},
            recent_train_metrics={"auc": 0.7},
            train_metrics_epoch=1,
            train_metrics_records=3_000,
            evaluated_records=1_000,
        )
    )
    assert (
        "loss 0.43217 (epoch 0.5) | training auc 0.7 (epoch 2: 0.75), 3,000 records measured | "
        "validation auc 0.7812, of 1,000 records"
    ) in screen.lines[0]


def test_a_log_gets_a_line_every_few_seconds_only(screen):
    for _ in range(10):
        screen.display.show(RUNNING)
    assert len(screen.lines) == 1
    screen.now += LINE_SECONDS
    screen.display.show(RUNNING)
    assert len(screen.lines) == 2
    assert screen.lines[1].startswith("[0:05] ")


def test_a_log_gets_a_line_at_once_when_the_status_changes(screen):
    screen.display.show(RUNNING)
    screen.display.show(dataclasses.replace(RUNNING, status="evaluating"))
    assert len(screen.lines) == 2


def test_one_process_has_no_workers_to_count():
    screen = Screen(has_processes=False)
    screen.display.show(RUNNING)
    assert "workers" not in screen.lines[0]


def test_what_is_loaded_is_said_in_place_of_a_speed_of_nothing():
    screen = Screen(loading="TensorFlow and the model", has_processes=False)
    screen.display.starts()
    screen.display.show(dataclasses.replace(RUNNING, records_done=0, records_per_second=0.0))
    assert screen.lines == [
        "[0:00] loading TensorFlow and the model",
        "[0:00] running | epoch 2 of 3 | 0 of 20,000 records (0%) | "
        "loading TensorFlow and the model",
    ]


def test_the_time_left_is_told_once_the_pace_is_steady():
    pace = Pace()
    for seconds, done in ((0.0, 0), (20.0, 10), (22.0, 30)):  # the first steps compile
        pace.note(seconds, done)
    assert pace.seconds_left(10_000) is None
    for second in range(23, 40):
        pace.note(float(second), 100 * (second - 22))
    assert pace.seconds_left(1_700) is None  # all is done
    assert pace.seconds_left(11_700) == pytest.approx(100, rel=0.15)
    pace.note(41.0, 1_000)  # some were lost
    assert pace.seconds_left(10_000) is None


def test_what_was_found_in_the_data_is_told_once_and_again_at_the_end(screen):
    found = ("labels: 0 in 50 %, 1 in 50 %", "warning: column 'a' differs")
    note = "the rate falls with each update"
    status = dataclasses.replace(RUNNING, data_check=(*found, f"model: {note}"))
    screen.display.show(status)
    screen.display.show(status)
    told = [line for line in screen.lines if "data: " in line or "model: " in line]
    assert told == [*(f"[0:00] data: {line}" for line in found), f"[0:00] model: {note}"]
    screen.display.finish(dataclasses.replace(RUNNING, status="finished"), {})
    assert screen.lines[-3:] == [*(f"data        {line}" for line in found), f"model       {note}"]


def test_a_finished_job_looks_finished(screen):
    status = dataclasses.replace(
        RUNNING, status="finished", records_done=20_000, seconds=61.0, max_staleness=0
    )
    screen.display.show(status)
    screen.display.finish(status, {})
    assert screen.lines[0].startswith("[0:00] finished | 20,000 of 20,000 records (100%) | 100 rec")
    assert screen.lines[1:] == [
        "ads: finished in 1:01",
        "validation  auc 0.7812",
        "loss        0.43217",
        "records     20,000 of 20,000, 100 records/s",
        "updates     40",
    ]


@pytest.mark.parametrize(
    ("checkpoint", "kept"),
    [(30, "kept in the checkpoint of version 30"), (None, "no checkpoint of it is written")],
)
def test_the_best_evaluation_and_a_model_that_overfits_are_shown(screen, checkpoint, kept):
    status = dataclasses.replace(
        RUNNING,
        best=BestEvaluation("auc", "max", 0.8, 30, num_epochs=1, checkpoint=checkpoint),
        overfitting="the model overfits: [auc]",
    )
    best = f"auc 0.8 after epoch 1, at update 30; {kept}"
    screen.display.finish(status, {})
    assert f"best        {best}" in screen.lines
    assert "warning     the model overfits: [auc]" in screen.lines
    terminal = Screen(is_terminal=True)
    with terminal.display:
        terminal.display.show(status)
        terminal.display._live.refresh()
    text = terminal.file.getvalue()
    assert best in text
    assert status.overfitting in text


def test_an_event_is_told_and_kept_with_its_time(screen):
    screen.now += 61.0
    screen.display.note("worker 1 is lost")
    assert screen.lines == ["[1:01] worker 1 is lost"]
    assert [(event.seconds, event.text) for event in screen.display.events] == [
        (61.0, "worker 1 is lost")
    ]


def test_what_a_running_job_has_to_say_becomes_an_event(screen):
    screen.display.show(RUNNING)
    screen.display.show(dataclasses.replace(RUNNING, message="task 7 is set aside"))
    screen.display.show(dataclasses.replace(RUNNING, message="task 7 is set aside"))
    assert [event.text for event in screen.display.events] == ["task 7 is set aside"]


def test_text_of_a_user_is_not_taken_for_markup(screen):
    screen.display.note("loss of [bold]records 1 to [/x]")
    assert screen.lines == ["[0:00] loss of [bold]records 1 to [/x]"]


def test_a_terminal_gets_a_panel():
    screen = Screen(is_terminal=True)
    with screen.display:
        screen.display.show(RUNNING)
        screen.display.note("worker 1 is lost")
        screen.display._live.refresh()
    text = screen.file.getvalue()
    for words in (
        "ads: running",
        "5,000 of 20,000 (25%), 100 records/s",
        "2 of 3",
        "7 to do, 2 under way, 11 done",
        "0.43217",
        "auc 0.7812",
        "2 workers, 1 ps replica",
        "40; a gradient was 1.2 updates late on average, 4 at most",
        "worker 1 is lost",
    ):
        assert words in text


def test_a_terminal_says_that_a_job_starts():
    screen = Screen(is_terminal=True)
    with screen.display:
        pass
    assert "starting" in screen.file.getvalue()


def test_a_terminal_that_cannot_redraw_gets_lines():
    screen = Screen(is_terminal=True, term="dumb")
    with screen.display:
        screen.display.show(RUNNING)
    assert len(screen.lines) == 1
    assert screen.lines[0].startswith("[0:00] running | ")


def ledger(num_epochs, **wrong):
    rows = [EpochLedger(n, 10, 10, 0, 0) for n in range(num_epochs)]
    for epoch, lost in wrong.items():
        number = int(epoch.removeprefix("lost_in_"))
        rows[number] = EpochLedger(number, 10, 10 - lost, 0, lost)
    return tuple(rows)


def epochs_shown(screen):
    cells = [line.split("│")[1].strip() for line in screen.lines if line.startswith("│")]
    return cells


def test_the_end_shows_the_ledger_and_where_things_are(screen, tmp_path):
    status = dataclasses.replace(RUNNING, status="finished", seconds=61.0, ledger=ledger(2))
    screen.display.finish(status, {"output": str(tmp_path / "model")})
    text = screen.file.getvalue()
    assert "ads: finished in 1:01" in text
    assert epochs_shown(screen) == ["1", "2", "all"]
    assert f"output          {tmp_path / 'model'}" in text


def test_the_ledger_says_how_many_examples_were_made_where_these_are_not_the_records(screen):
    rows = (EpochLedger(0, 10, 10, 0, 0), EpochLedger(1, 10, 10, 0, 0, 7))
    screen.display.finish(dataclasses.replace(RUNNING, status="finished", ledger=rows[:1]), {})
    assert "examples" not in screen.file.getvalue()
    screen.display.finish(dataclasses.replace(RUNNING, status="finished", ledger=rows), {})
    assert "examples" in screen.file.getvalue()
    assert screen.lines[-2].split("│")[6].strip() == "17"


def test_a_long_ledger_shows_every_epoch_that_is_not_exact(screen):
    status = dataclasses.replace(RUNNING, status="failed", ledger=ledger(100, lost_in_49=3))
    screen.display.finish(status, {})
    shown = epochs_shown(screen)
    assert shown[:10] == [str(n) for n in range(1, 11)]
    assert shown[10] == "50"
    assert shown[-1] == "all"
    assert len(shown) == 22


def test_skipped_minibatches_are_named(screen):
    status = dataclasses.replace(RUNNING, status="finished", skipped=("epoch 0, minibatch 3",))
    screen.display.finish(status, {})
    assert "skipped: epoch 0, minibatch 3" in screen.lines


def test_those_who_follow_the_lines_of_a_job_find_what_these_say():
    """Benchmarks and the jobs on the test cluster do, which most changes of words do not run."""
    screen = Screen()
    screen.display.show(RUNNING)
    assert [records_done(line) for line in screen.lines if re.search(DONE, line)] == [5_000]
    assert re.search(processes(2, 1), screen.lines[-1])
    screen.now += LINE_SECONDS
    screen.display.show(dataclasses.replace(RUNNING, num_workers_alive=1, num_ps_alive=2))
    assert re.search(processes(1, 2), screen.lines[-1])


def test_why_a_task_failed_is_printed_once_however_often_it_is_said(screen):
    words = "task 6 (records 7680 to 8960 of a.csv): no number: x1y"
    running = dataclasses.replace(RUNNING, message=f"1 tasks failed and were set aside: {words}")
    screen.display.show(RUNNING)
    for _ in range(4):
        screen.display.problem(words)
        screen.display.show(running)
    assert "x1y" not in str(screen.lines)  # the job may end of it
    screen.now += PROBLEM_SECONDS
    screen.display.show(running)
    screen.display.show(dataclasses.replace(running, status="failed"))
    assert str(screen.lines).count("x1y") == 1


def test_why_the_job_failed_is_left_to_the_error_of_the_command(screen):
    screen.display.problem("task 6: no number: x1y")
    screen.display.problem("task 7: away for a moment")
    failed = dataclasses.replace(
        RUNNING,
        status="failed",
        message="1 tasks failed and were set aside: task 6: no number: x1y",
    )
    screen.display.show(failed)
    screen.display.finish(failed, {})
    assert "x1y" not in str(screen.lines)
    assert "task 7: away for a moment" in str(screen.lines)
