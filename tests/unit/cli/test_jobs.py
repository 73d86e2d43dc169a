"""What commands say of a job that ends while it is asked something, or that lacks a log."""

import errno
import math
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from elasticdl.cli import jobs
from elasticdl.cli.jobs import ask, picture_now
from elasticdl.cli.main import run_command
from elasticdl.errors import LaunchError, UnavailableError
from elasticdl.job import Role
from elasticdl.job.status import no_status
from elasticdl.launchers import choose


class EndingJob:
    """A job whose master does not answer; `ends` says whether it has ended by then."""

    name = "jobs/clicks"

    def __init__(self, ends):
        self._ends = ends

    def connect(self, timeout_seconds):
        return self

    def close(self):
        pass

    def end(self, timeout_seconds):
        return no_status("clicks", 1) if self._ends else None


@pytest.mark.parametrize(
    ("ends", "words"),
    [(True, "the job jobs/clicks has ended"), (False, "the master did not answer")],
)
def test_a_job_that_has_ended_is_told_from_a_master_that_does_not_answer(ends, words):
    def question(client):
        raise UnavailableError("the master did not answer")

    with pytest.raises(UnavailableError, match=words):
        ask(EndingJob(ends), question)


class SilentJob(EndingJob):
    """A job whose master hangs."""

    def status(self, timeout_seconds):
        raise UnavailableError("the master did not answer for 5 s")

    def waiting(self):
        return ""


def test_a_job_whose_master_hangs_can_be_ended_without_it(monkeypatch, capsys):
    monkeypatch.setattr(choose, "find", lambda name: SilentJob(ends=False))
    assert run_command(["stop", "clicks"]) == 1
    said = capsys.readouterr().err
    assert "did not answer for 5 s; elasticdl stop --now jobs/clicks ends its processes" in said


class SuspendedJob(EndingJob):
    """A job whose master stands still: the cluster has suspended it."""

    def connect(self, timeout_seconds):
        raise UnavailableError("the master did not answer")

    def waiting(self):
        return "the master is SUSPENDED in Slurm"

    def before(self):
        return replace(no_status("clicks", 2), status="running", records_done=7_000)


def test_the_picture_of_a_suspended_master_is_the_last_one_that_it_has_written():
    found, goes_on = picture_now(SuspendedJob(ends=False), "jobs/clicks")
    assert goes_on
    assert (found.status, found.records_done) == ("pending", 7_000)
    assert found.message == "the master is SUSPENDED in Slurm"


class PendingWorkerJob(EndingJob):
    """A job with a log of its master and of a replica, and a worker that has not begun."""

    def processes(self):
        return [(Role.MASTER, 0), (Role.WORKER, 0), (Role.PS, 0)]

    def logs(self, role, index, follow):
        if role is Role.WORKER:
            raise LaunchError("worker 0 has not begun")
        yield f"the {role} runs"


@pytest.mark.parametrize("flags", [[], ["--follow"]])
def test_all_logs_are_printed_though_one_cannot_be_read(monkeypatch, capsys, flags):
    monkeypatch.setattr(choose, "find", lambda name: PendingWorkerJob(ends=True))
    assert run_command(["logs", "clicks", *flags]) == 0
    printed = capsys.readouterr()
    lines = ["master-0 | the master runs", "ps-0 | the ps runs"]
    assert sorted(printed.out.splitlines()) == lines
    assert printed.err == "worker-0: worker 0 has not begun\n"


@pytest.mark.parametrize("flags", [[], ["--follow"]])
def test_a_log_that_was_asked_for_and_cannot_be_read_is_an_error(monkeypatch, capsys, flags):
    monkeypatch.setattr(choose, "find", lambda name: PendingWorkerJob(ends=True))
    assert run_command(["logs", "clicks", "worker-0", "ps-0", *flags]) == 1
    assert "error: worker 0 has not begun" in capsys.readouterr().err


def test_logs_that_are_followed_are_read_as_fast_as_they_are_printed(monkeypatch):
    all_is_read = threading.Event()

    class LongJob(EndingJob):
        def logs(self, role, index, follow):
            yield from map(str, range(100))
            all_is_read.set()

    monkeypatch.setattr(jobs, "_WAITING_LINES", 10)
    lines = jobs._all_logs(LongJob(ends=True), [(Role.WORKER, 0)], follow=True)
    assert next(lines) == ("worker-0", "0")
    assert not all_is_read.wait(0.2)
    assert len(list(lines)) == 99


@pytest.mark.parametrize("words", [["status"], ["logs", "-f"], ["stop"], ["attach"], ["events"]])
def test_a_job_of_another_user_is_refused_in_words(monkeypatch, capsys, words):
    def find(name):
        raise PermissionError(errno.EACCES, "Permission denied", f"{name}/job.json")

    monkeypatch.setattr(choose, "find", find)
    assert run_command([*words, "/home/ann/jobs/a"]) == 1
    assert capsys.readouterr().err == "error: /home/ann/jobs/a/job.json: Permission denied\n"


def test_a_log_that_may_not_be_read_ends_the_command_in_words(monkeypatch, capsys):
    class ForeignJob(EndingJob):
        def processes(self):
            return [(Role.WORKER, 0)]

        def logs(self, role, index, follow):
            raise PermissionError(errno.EACCES, "Permission denied", "logs/worker-0.log")

    monkeypatch.setattr(choose, "find", lambda name: ForeignJob(ends=True))
    assert run_command(["logs", "clicks", "--follow"]) == 1
    assert capsys.readouterr().err == "error: logs/worker-0.log: Permission denied\n"


def test_events_are_json_though_a_metric_is_no_number(monkeypatch, capsys):
    event = {"time": 1.0, "event": "evaluation", "metrics": {"auc": math.nan, "loss": 0.5}}
    job = SimpleNamespace(events=lambda follow, with_beats: [event])
    monkeypatch.setattr(choose, "find", lambda name: job)
    assert run_command(["events", "clicks", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert '"auc": null, "loss": 0.5' in line
