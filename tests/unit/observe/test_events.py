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
