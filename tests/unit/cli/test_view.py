"""What a command that watches a job does with what it hears, or does not hear."""

import threading

from elasticdl.cli import view
from elasticdl.job.status import no_status


class LostJob:
    """Its processes are gone, and a call that was under way to its master never ends."""

    name, page, is_tied = "ctr", None, False

    def __init__(self, forever):
        self._forever = forever

    def connect(self, give_up_seconds):
        return self

    def watch(self, give_up_seconds):
        yield no_status("ctr", 1)
        self._forever.wait()

    def events(self, follow, since):
        return iter(())

    def close(self):
        pass

    def end(self, timeout_seconds):
        return no_status("ctr", 1)


class Silence:
    def show(self, status): ...

    def note(self, text): ...

    def tell(self, text): ...


def test_a_call_that_never_ends_does_not_hold_the_command(monkeypatch):
    monkeypatch.setattr(view, "_SILENCE_SECONDS", 0.2)
    forever = threading.Event()
    try:
        assert view.view(LostJob(forever), Silence(), 0.0).job_name == "ctr"
    finally:
        forever.set()
