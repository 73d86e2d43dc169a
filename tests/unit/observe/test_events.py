import pytest

from elasticdl.errors import DataError
from elasticdl.job import Role
from elasticdl.observe.events import EventLog, read_events


def test_events_of_all_processes_come_in_order_of_time(tmp_path):
    times = iter([1.0, 3.0, 2.0])
    master = EventLog(tmp_path, Role.MASTER, 0, clock=lambda: next(times))
    master.write("phase", phase="training")
    master.write("phase", phase="finished")
    worker = EventLog(tmp_path, Role.WORKER, 4, clock=lambda: next(times))
    worker.write("train", seconds=0.5)
    assert list(read_events(tmp_path)) == [
        {"time": 1.0, "role": "master", "index": 0, "event": "phase", "phase": "training"},
        {"time": 2.0, "role": "worker", "index": 4, "event": "train", "seconds": 0.5},
        {"time": 3.0, "role": "master", "index": 0, "event": "phase", "phase": "finished"},
    ]
    master.close()
    worker.close()


def test_log_is_continued_by_the_next_process(tmp_path):
    for number in range(2):
        log = EventLog(tmp_path, Role.MASTER, 0, clock=lambda number=number: float(number))
        log.write("began")
        log.close()
    assert [event["time"] for event in read_events(tmp_path)] == [0.0, 1.0]


def test_line_that_is_being_written_is_left_out(tmp_path):
    log = EventLog(tmp_path, Role.MASTER, 0)
    log.write("began")
    log.close()
    with (tmp_path / "events" / "master-0.jsonl").open("ab") as file:
        file.write(b'{"time": 1')
    assert [event["event"] for event in read_events(tmp_path)] == ["began"]


def test_foreign_line_is_named(tmp_path):
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "worker-0.jsonl").write_text('{"time": 1.0, "event": "x"}\nhello\n')
    with pytest.raises(DataError, match=r"worker-0\.jsonl:2: expected an event as JSON"):
        list(read_events(tmp_path))


def test_job_without_events_has_none(tmp_path):
    assert list(read_events(tmp_path)) == []


def test_full_disk_loses_events_and_says_how_many_when_there_is_room_again(tmp_path, caplog):
    log = EventLog(tmp_path, Role.MASTER, 0)
    log.write("began")
    has_room, log._file = log._file, open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    log.write("lost")
    log.write("lost too")
    log._file.close()
    log._file = has_room
    log.write("goes on")
    log.close()
    events = list(read_events(tmp_path))
    assert [event["event"] for event in events] == ["began", "events lost", "goes on"]
    assert events[1]["num_lost"] == 2
    assert caplog.text.count("cannot be written") == 1


def test_line_that_fits_only_in_part_leaves_nothing_torn_behind(tmp_path):
    class FullAfterFive:
        """A file on a disk that has room for five bytes."""

        def __init__(self, file):
            self._file, self.name = file, file.name
            self.fileno, self.close = file.fileno, file.close

        def write(self, line):
            return self._file.write(line[:5])

    log = EventLog(tmp_path, Role.MASTER, 0)
    log.write("began")
    whole, log._file = log._file, FullAfterFive(log._file)
    log.write("does not fit")
    log._file = whole
    log.write("goes on")
    log.close()
    names = [event["event"] for event in read_events(tmp_path)]
    assert names == ["began", "events lost", "goes on"]
