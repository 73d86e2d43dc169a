"""The root of a job whose master cannot be started any more."""

import contextlib
import json

import pytest

from elasticdl.launchers.process import children, restarts
from elasticdl.launchers.process import supervisor as room
from elasticdl.launchers.process.folder import END_FILE
from elasticdl.launchers.process.restarts import Restarts
from elasticdl.launchers.process.supervisor import Supervisor
from elasticdl.launchers.signals import Signals

PID = 1 << 30  # no process has it


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A root that may start its master anew twice, and has no child of its own to end."""
    monkeypatch.setattr(children, "become_subreaper", lambda: None)
    monkeypatch.setattr(children, "reap", lambda: ({PID: -9}, False))
    monkeypatch.setattr(restarts, "_LONGEST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(room, "Restarts", lambda at: Restarts(2.0, at))
    with Signals() as signals:
        yield Supervisor(tmp_path, signals)


class PlayedMaster:
    """A master that was killed."""

    pid, returncode = PID, None


def test_a_master_that_cannot_be_started_again_fails_the_job_in_words(root, tmp_path, monkeypatch):
    masters = iter([PlayedMaster()])

    def spawn(*words):
        with contextlib.suppress(StopIteration):
            return next(masters)
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(children, "spawn", spawn)
    root.start()
    end = root.run()
    assert end.status == "failed"
    assert end.message.startswith("the master: cannot start ")
    assert end.message.endswith("Resource temporarily unavailable, after 2 restarts")
    assert json.loads((tmp_path / END_FILE).read_text())["message"] == end.message
