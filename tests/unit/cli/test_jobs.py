"""What a command says of a job that ends while it is asked something."""

from dataclasses import replace

import pytest

from elasticdl.cli.jobs import ask, picture_now
from elasticdl.errors import UnavailableError
from elasticdl.job.status import no_status


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
