"""How the end of a master waits for those who draw its job."""

import asyncio
import threading

from elasticdl.cli.flags import build_config
from elasticdl.master import reporter
from elasticdl.master.reporter import MasterTrackers


class SlowTracker:
    """Answers when it is let."""

    flag = "--slow"

    def __init__(self):
        self.may_end = threading.Event()
        self.seconds = None

    def close(self, seconds):
        self.seconds = seconds
        assert self.may_end.wait(20)


def made():
    words = {"model_def": "zoo.forward", "training_data": "data"}
    words["distribution_strategy"] = "ParameterServerStrategy"
    return MasterTrackers(build_config("train", words), "job-1", None)


def test_the_loop_goes_on_while_the_last_numbers_are_taken_and_the_wait_is_told(monkeypatch):
    monkeypatch.setattr(reporter, "_SILENT_SECONDS", 0.0)
    slow, notes = SlowTracker(), []
    drawn = made()
    drawn.all.append(slow)

    def tell(note):  # the loop has gone on, so it can let the tracker end
        notes.append(note.text)
        slow.may_end.set()

    asyncio.run(asyncio.wait_for(drawn.close(has_job_ended=True, tell=tell), 20))
    assert notes == ["waiting up to 60 s until --slow has the last numbers"]
    assert slow.seconds == 60


def test_a_master_that_another_one_follows_waits_for_less():
    slow = SlowTracker()
    slow.may_end.set()
    drawn = made()
    drawn.all.append(slow)
    asyncio.run(drawn.close(has_job_ended=False, tell=lambda note: None))
    assert slow.seconds == 10
