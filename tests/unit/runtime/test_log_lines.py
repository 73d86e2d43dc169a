"""What processes print: lines of text or JSON, in files of a limited size."""

import json
import logging
import subprocess
import sys

from elasticdl.job import Role
from elasticdl.launchers.process.logs import last_words, log_path
from elasticdl.observe.tail import Tail
from elasticdl.runtime.log_lines import JsonLines, as_text

PRINTS = """
import logging, os, sys
from pathlib import Path
from elasticdl.runtime.log_lines import log_as, rotate_if_full

folder, lines = Path(sys.argv[1]), int(sys.argv[2])
log_as("worker-3")
for number in range(lines):
    print(f"printed {number}", flush=True)
    os.write(2, f"by the framework {number}\\n".encode())
    logging.getLogger("x").error("DataError: record %d", number)
    if number % 10 == 9:
        rotate_if_full(folder, 1_500)
"""


def prints(folder, lines):
    """Run a process that prints, as a launcher starts it; return the name of its log."""
    log = log_path(folder, Role.WORKER, 3)
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as file:
        command = [sys.executable, "-c", PRINTS, str(log.parent), str(lines)]
        subprocess.run(command, stdout=file, stderr=file, check=True, timeout=200)
    return log


def test_log_that_is_full_goes_on_in_a_new_file_and_no_line_is_lost(tmp_path):
    log = prints(tmp_path, 45)
    old = log.with_name("worker-3.log.1")
    assert sorted(log.parent.iterdir()) == [log, old]
    assert old.stat().st_size > 1_500 > log.stat().st_size > 0
    both = (old.read_text() + log.read_text()).splitlines()
    printed = [line for line in both if line.startswith("printed")]
    written = [line for line in both if line.startswith("by the framework")]
    assert printed[-1] == "printed 44"
    numbers = [int(line.split()[-1]) for line in printed]
    assert numbers == list(range(20, 45))  # of three files the first one is gone
    assert len(written) == len(printed)


def test_short_log_stays_one_file(tmp_path):
    log = prints(tmp_path, 10)
    assert list(log.parent.iterdir()) == [log]


def test_output_that_is_no_log_of_the_job_is_left_alone(tmp_path):
    elsewhere = tmp_path / "mine.txt"
    with elsewhere.open("ab") as file:
        command = [sys.executable, "-c", PRINTS, str(tmp_path / "logs"), "50"]
        subprocess.run(command, stdout=file, stderr=file, check=True, timeout=200)
    assert list(tmp_path.iterdir()) == [elsewhere]


def test_last_words_are_found_in_the_file_before(tmp_path):
    log = prints(tmp_path, 20)
    assert log.stat().st_size == 0
    assert last_words(log) == "DataError: record 19"


def test_follower_reads_on_over_the_change_of_files(tmp_path):
    path = tmp_path / "ps-0.log"
    path.write_text("one\ntwo\n")
    tail = Tail(path)
    assert tail.lines() == ["one", "two"]
    with path.open("a") as file:
        file.write("three\n")
    path.replace(tmp_path / "ps-0.log.1")
    path.write_text("four\n")
    assert tail.lines() == ["three", "four"]
    assert tail.lines() == []
    assert Tail(path).lines() == ["one", "two", "three", "four"]


def test_line_of_json_has_what_the_message_was_given_and_reads_as_text():
    record = logging.makeLogRecord(
        {
            "name": "elasticdl.worker",
            "levelname": "ERROR",
            "msg": "task %d failed: <b>",
            "args": (7,),
            "task": 7,
        }
    )
    line = JsonLines("worker-3").format(record)
    words = json.loads(line)
    assert words.pop("time") > 0
    assert words == {
        "process": "worker-3",
        "level": "ERROR",
        "logger": "elasticdl.worker",
        "message": "task 7 failed: <b>",
        "task": 7,
    }
    assert as_text(line).endswith(" worker-3 ERROR task 7 failed: <b>")
    assert as_text('{"printed": "by a model"}') == '{"printed": "by a model"}'


def test_last_words_of_a_log_of_json_are_the_message(tmp_path):
    record = logging.makeLogRecord({"levelname": "ERROR", "msg": "DataError: no such file"})
    log = tmp_path / "worker-0.log"
    log.write_text(JsonLines("worker-0").format(record) + "\nand a line of a framework\n")
    assert last_words(log) == "DataError: no such file"
