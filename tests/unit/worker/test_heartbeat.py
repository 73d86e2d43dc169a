"""What a worker tells of itself, whatever is wrong around it."""

import contextlib
import logging
import threading

import pytest

from elasticdl.job import HeartbeatAnswer, HotKeys, Label, Progress, PsRoute, Role
from elasticdl.observe.events import EventLog, read_events
from elasticdl.observe.labels import LabelClock
from elasticdl.rpc.messages import USAGE
from elasticdl.worker.heartbeat import Heartbeat
from elasticdl.worker.route import Route


class NotingMaster:
    """Notes the beats and says what it was given to say."""

    def __init__(self, *answers):
        self.beats, self.intervals, self.usages = [], [], []
        self._answers = list(answers)
        self.changed = threading.Condition()

    def heartbeat(self, role, index, progress, generation, usage, interval_seconds):
        with self.changed:
            self.beats.append((role, index, progress, generation))
            self.intervals.append(interval_seconds)
            self.usages.append(usage)
            self.changed.notify_all()
        answer = self._answers.pop(0) if self._answers else HeartbeatAnswer(0.0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class MovesAtTheSecondTry:
    """A client of a ps replica."""

    def __init__(self):
        self.addresses = []

    def set_addresses(self, layout, addresses):
        self.addresses += addresses
        if len(self.addresses) == 1:
            raise OSError("no such host")


def test_full_disk_does_not_silence_a_worker(tmp_path, caplog):
    (tmp_path / "events").mkdir()
    for name in ("worker-3.jsonl", "worker-3.beats.jsonl"):
        (tmp_path / "events" / name).symlink_to("/dev/full")
    master = NotingMaster()
    with contextlib.closing(EventLog(tmp_path, Role.WORKER, 3)) as events:
        heartbeat = Heartbeat(master, 3, 1.0, events)
        heartbeat.beat()
        heartbeat.beat()
    assert master.beats == [(Role.WORKER, 3, Progress(), -1)] * 2
    (record,) = caplog.records
    assert "cannot be written, events are lost: " in record.getMessage()
    assert "worker-3.jsonl: [Errno 28]" in record.getMessage()


def test_the_master_sets_the_interval_and_hears_which_one_is_kept():
    master = NotingMaster(HeartbeatAnswer(5.0), HeartbeatAnswer(0.0))
    heartbeat = Heartbeat(master, 3, 1.0)
    for _ in range(3):
        heartbeat.beat()
    assert master.intervals == [1.0, 5.0, 5.0]


def test_each_beat_says_where_the_time_went_and_the_log_has_it_up_to_the_end(tmp_path):
    now = [100.0]
    labels = LabelClock(clock=lambda: now[0], seconds_before=2.0, wall_clock=lambda: 1000.0)
    master = NotingMaster()
    with contextlib.closing(EventLog(tmp_path, Role.WORKER, 3)) as events:
        heartbeat = Heartbeat(master, 3, 60.0, events, labels=labels, traffic=lambda: (7, 8))
        with heartbeat:
            now[0] += 3.0
            labels.enter(Label.TRAIN)
            now[0] += 4.0
            heartbeat.beat()
            now[0] += 1.0
    (usage,) = master.usages
    assert (usage.began, usage.label, usage.label_seconds) == (
        998.0,
        Label.TRAIN,
        {"starting": 5.0, "train": 4.0},
    )
    assert (usage.bytes_sent, usage.bytes_received) == (7, 8)
    assert usage.resident_bytes > 1_000_000
    last = [event for event in read_events(tmp_path) if event["event"] == "usage"][-1]
    assert last["label_seconds"] == {"starting": 5.0, "train": 5.0}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("defect")])
def test_beats_go_on_after_any_error_and_the_log_says_it_once(error, caplog):
    master = NotingMaster(error, error)
    with Heartbeat(master, 0, 0.001), master.changed:
        assert master.changed.wait_for(lambda: len(master.beats) >= 4, timeout=100)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        f"a heartbeat failed, the next one is tried: {error}"
    ]


def test_a_master_that_is_away_again_is_told_again(caplog):
    away = OSError("no answer")
    heartbeat = Heartbeat(NotingMaster(away, HeartbeatAnswer(0.0), away, away), 0, 1.0)
    for _ in range(4):
        heartbeat.beat()
    assert len(caplog.records) == 2


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
    moved = HeartbeatAnswer(0.0, PsRoute(1, ("host:1",)))
    master = NotingMaster(moved, moved)
    heartbeat = Heartbeat(master, 0, 1.0, route=route)
    for _ in range(3):
        heartbeat.beat()
    assert client.addresses == ["host:1", "host:1"]
    told = [generation for *_, generation in master.beats]
    assert told[0] == 0
    assert told[1] not in (-1, 0, 1)  # what makes the master tell it again
    assert told[2] == 1


def test_hot_keys_are_told_now_and_then_and_a_usage_carries_them():
    asked = []

    def take():
        asked.append(True)
        return [("user", 100, [(-7, 40)])]

    master = NotingMaster()
    heartbeat = Heartbeat(master, 3, 1.0, take_hot_keys=take)
    heartbeat.beat()
    heartbeat.beat()
    assert len(asked) == 1  # the second beat follows at once
    assert [usage.hot_keys for usage in master.usages] == [(HotKeys("user", 100, ((-7, 40),)),), ()]
    sent = USAGE.unpack(USAGE.pack(master.usages[0]))
    assert sent == master.usages[0]
    assert sent.host
