"""What `elasticdl top` shows of a job whose master has not answered."""

from elasticdl.cli.main import run_command
from elasticdl.errors import UnavailableError
from elasticdl.job.status import no_status
from elasticdl.launchers import choose


class WaitingJob:
    """A job whose master waits; it is cancelled at a later look."""

    def __init__(self, most_looks):
        self._left = most_looks

    def connect(self, timeout_seconds):
        raise UnavailableError("the master is in Slurm's queue (Resources)")

    def end(self, timeout_seconds):
        self._left -= 1
        return None if self._left > 0 else no_status("clicks", 1)


def test_a_single_look_at_a_job_without_a_master_ends_and_says_why(monkeypatch, capsys):
    monkeypatch.setattr(choose, "find", lambda name: WaitingJob(1_000_000))
    assert run_command(["top", "clicks", "--once"]) == 1
    assert capsys.readouterr().err == "error: the master is in Slurm's queue (Resources)\n"


def test_the_display_says_why_there_is_no_answer(monkeypatch, capsys):
    monkeypatch.setattr(choose, "find", lambda name: WaitingJob(2))
    assert run_command(["top", "clicks"]) == 0
    said = capsys.readouterr().out
    assert "no answer yet: the master is in Slurm's queue (Resources)" in said
    assert "the job has ended" in said
    monkeypatch.setattr(choose, "find", lambda name: WaitingJob(1))
    assert run_command(["top", "clicks"]) == 0
    assert capsys.readouterr().out == "the job has ended; elasticdl status tells how\n"
