"""What a command says of a job that ends while it is asked something."""

import pytest

from elasticdl.cli.jobs import ask
from elasticdl.errors import UnavailableError
from elasticdl.job import no_status


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
