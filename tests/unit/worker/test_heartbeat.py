"""What a worker tells of itself, whatever is wrong around it."""

import contextlib
import logging
import threading

import pytest

from elasticdl.job import Progress, PsRoute, Role
from elasticdl.observe.events import EventLog
from elasticdl.worker.heartbeat import Heartbeat
from elasticdl.worker.route import Route


class NotingMaster:
    """Notes the beats and says what it was given to say."""

    def __init__(self, *answers):
        self.beats = []
        self._answers = list(answers)
        self.changed = threading.Condition()

    def heartbeat(self, role, index, progress=None, generation=-1):
        with self.changed:
            self.beats.append((role, index, progress, generation))
            self.changed.notify_all()
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


class MovesAtTheSecondTry:
    """A client of a ps replica."""

    def __init__(self):
        self.addresses = []

    def set_address(self, replica, address):
        self.addresses.append(address)
        if len(self.addresses) == 1:
            raise OSError("no such host")


def test_full_disk_does_not_silence_a_worker(tmp_path, caplog):
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "worker-3.jsonl").symlink_to("/dev/full")
    master = NotingMaster()
    with contextlib.closing(EventLog(tmp_path, Role.WORKER, 3)) as events:
        heartbeat = Heartbeat(master, 3, 1.0, events)
        heartbeat.beat()
        heartbeat.beat()
    assert master.beats == [(Role.WORKER, 3, Progress(), -1)] * 2
    (record,) = caplog.records
    assert "worker-3.jsonl cannot be written, events are lost" in record.getMessage()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("defect")])
def test_beats_go_on_after_any_error_and_the_log_says_it_once(error, caplog):
    master = NotingMaster(error, error)
    with Heartbeat(master, 0, 0.001), master.changed:
        assert master.changed.wait_for(lambda: len(master.beats) >= 4, timeout=30)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        f"a heartbeat failed, the next one is tried: {error}"
    ]


def test_progress_that_cannot_be_told_is_no_silence(caplog):
    master = NotingMaster()
    heartbeat = Heartbeat(master, 0, 1.0)
    answers = iter([RuntimeError("dictionary changed size"), Progress(num_records=4)])

    def progress():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    heartbeat.progress = progress
    heartbeat.beat()
    heartbeat.beat()
    assert [beat[2].num_records for beat in master.beats] == [4]
    assert "dictionary changed size" in caplog.text


def test_route_that_could_not_be_followed_is_asked_for_again(caplog):
    route = Route()
    client = MovesAtTheSecondTry()
    route.begin(client, 0)
    moved = PsRoute(1, ("host:1",))
    master = NotingMaster(moved, moved)
    heartbeat = Heartbeat(master, 0, 1.0, route=route)
    for _ in range(3):
        heartbeat.beat()
    assert client.addresses == ["host:1", "host:1"]
    told = [generation for *_, generation in master.beats]
    assert told[0] == 0
    assert told[1] not in (-1, 0, 1)  # what makes the master tell it again
    assert told[2] == 1
