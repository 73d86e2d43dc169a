import pytest

from elasticdl.errors import DataError
from elasticdl.job import Role
from elasticdl.observe.events import NUM_FILES, EventLog, newest, read_events
from elasticdl.observe.kind import SCHEMA
from elasticdl.observe.kinds import Opened, PhaseBegan, ProcessRuns, ProcessUsage, Resumed, typed
from elasticdl.observe.tail import EventTail

USAGE = ProcessUsage(0.5, "train", {"train": 1.5}, 1.0, 1_000_000, 10, 20)


def said(job_dir):
    """Return the events of a job but for those that a log begins with."""
    return [event for event in read_events(job_dir) if event["event"] != "opened"]


def test_events_of_all_processes_come_in_order_of_time(tmp_path):
    times = iter([0.0, 1.0, 3.0, 0.5, 2.0])
    master = EventLog(tmp_path, Role.MASTER, 0, clock=lambda: next(times))
    master.write(PhaseBegan("training"), "the job is training")
    master.write(PhaseBegan("evaluating"))
    worker = EventLog(tmp_path, Role.WORKER, 4, clock=lambda: next(times))
    worker.write(USAGE)
    of_master = {"role": "master", "index": 0, "event": "phase"}
    assert said(tmp_path) == [
        {"time": 1.0, **of_master, "phase": "training", "text": "the job is training"},
        {"time": 2.0, "role": "worker", "index": 4, "event": "usage", **USAGE.fields},
        {"time": 3.0, **of_master, "phase": "evaluating"},
    ]
    master.close()
    worker.close()


def test_log_is_continued_by_the_next_process_which_says_that_it_is_another(tmp_path):
    for number in range(2):
        log = EventLog(tmp_path, Role.MASTER, 0, clock=lambda number=number: float(number))
        log.close()
    first, second = read_events(tmp_path)
    assert (first["time"], second["time"]) == (0.0, 1.0)
    assert typed(first) == Opened(SCHEMA, first["pid"])


def test_line_that_is_being_written_is_left_out(tmp_path):
    log = EventLog(tmp_path, Role.MASTER, 0)
    log.write(Resumed())
    log.close()
    with (tmp_path / "events" / "master-0.jsonl").open("ab") as file:
        file.write(b'{"time": 1')
    assert [event["event"] for event in said(tmp_path)] == ["resumed"]


@pytest.mark.parametrize("torn", [b'{"time": 3.0, "ro', b"\0" * 100_000])
@pytest.mark.parametrize("num_whole", [0, 1])
def test_a_line_that_a_lost_machine_has_torn_is_cut_off(tmp_path, torn, num_whole):
    path = tmp_path / "events" / "master-0.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"time": 1.0, "event": "phase"}\n' * num_whole + torn)
    tail = EventTail(tmp_path, since=0.0)
    before = tail.events()
    log = EventLog(tmp_path, Role.MASTER, 0, clock=lambda: 4.0)
    log.write(PhaseBegan("training"))
    log.close()
    times = [1.0] * num_whole + [4.0, 4.0]
    assert [event["time"] for event in read_events(tmp_path)] == times
    assert [event["time"] for event in before + tail.events()] == times


def test_foreign_line_is_named(tmp_path):
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "worker-0.jsonl").write_text('{"time": 1.0, "event": "x"}\nhello\n')
    with pytest.raises(DataError, match=r"worker-0\.jsonl:2: expected an event as JSON"):
        list(read_events(tmp_path))


def test_a_kind_of_a_later_version_is_kept_and_its_new_fields_are_left_out(tmp_path):
    (tmp_path / "events").mkdir()
    unknown = '{"time":1.0,"role":"master","index":0,"event":"levitated","height":3}\n'
    known = '{"time":2.0,"role":"master","index":0,"event":"phase","phase":"x","more":1}\n'
    (tmp_path / "events" / "master-0.jsonl").write_text(unknown + known)
    levitated, phase = read_events(tmp_path)
    assert levitated["height"] == 3
    assert typed(levitated) is None
    assert typed(phase) == PhaseBegan("x")


def test_job_without_events_has_none(tmp_path):
    assert list(read_events(tmp_path)) == []
    assert list(newest(tmp_path, Role.MASTER, 0, 10)) == []


def test_full_disk_loses_events_and_says_how_many_when_there_is_room_again(tmp_path, caplog):
    log = EventLog(tmp_path, Role.MASTER, 0)
    has_room, log._facts._file = log._facts._file, open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    log.write(Resumed())
    log.write(Resumed())
    log._facts._file.close()
    log._facts._file = has_room
    log.write(PhaseBegan("training"))
    log.close()
    events = said(tmp_path)
    assert [event["event"] for event in events] == ["events lost", "phase"]
    assert events[0]["num_lost"] == 2
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
    log.write(Resumed())
    whole, log._facts._file = log._facts._file, FullAfterFive(log._facts._file)
    log.write(Resumed())
    log._facts._file = whole
    log.write(PhaseBegan("training"))
    log.close()
    names = [event["event"] for event in said(tmp_path)]
    assert names == ["resumed", "events lost", "phase"]


def test_a_log_of_weeks_takes_no_more_room_than_its_newest_files(tmp_path):
    log = EventLog(tmp_path, Role.WORKER, 0, file_bytes=1000)
    for _ in range(100):
        log.write(USAGE)
    log.close()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "events").iterdir()}
    beats = {name: size for name, size in sizes.items() if ".beats" in name}
    assert len(beats) == NUM_FILES
    assert max(sizes.values()) <= 1000
    assert sizes.keys() - beats.keys() == {"worker-0.jsonl"}  # the facts all stay


def test_the_next_process_goes_on_in_the_newest_file(tmp_path):
    for number in range(3):
        log = EventLog(tmp_path, Role.WORKER, 0, file_bytes=400)
        log.write(ProcessRuns(f"worker {number}"), "x" * 200)
        log.close()
    processes = [event["process"] for event in said(tmp_path)]
    assert processes == ["worker 0", "worker 1", "worker 2"]
    assert len(list((tmp_path / "events").iterdir())) > 1
    *_, last = newest(tmp_path, Role.WORKER, 0, 3)
    assert last["process"] == "worker 2"


def test_whoever_follows_sees_each_event_once_over_all_files(tmp_path):
    log = EventLog(tmp_path, Role.MASTER, 0, file_bytes=300)
    tail, seen = EventTail(tmp_path, since=0.0), []
    for number in range(40):
        log.write(PhaseBegan(str(number)))
        seen += [event["phase"] for event in tail.events() if event["event"] == "phase"]
    log.close()
    assert seen == [str(number) for number in range(40)]


def test_whoever_follows_sees_what_comes_after_the_clock_was_set_back(tmp_path):
    times = iter([5000.0, 5001.0, 1000.0, 1001.0])
    log = EventLog(tmp_path, Role.MASTER, 0, clock=lambda: next(times))
    log.write(PhaseBegan("before"))
    tail = EventTail(tmp_path, since=5000.5)
    seen = tail.events()
    log.write(PhaseBegan("after"))
    log.close()
    assert [event["phase"] for event in seen + tail.events()] == ["before", "after"]
