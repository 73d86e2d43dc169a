"""What `elasticdl.state.base.State` promises, for every implementation of it."""

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from elasticdl.errors import StateError
from elasticdl.state.memory import MemoryState
from elasticdl.state.sqlite import SqliteState


class Memory:
    def __init__(self, _folder):
        self._state = MemoryState()

    def open(self):
        return self._state


class Sqlite:
    def __init__(self, folder):
        self._path = folder / "state.sqlite"

    def open(self):
        return SqliteState(self._path)


@pytest.fixture(params=[Memory, Sqlite])
def place(request, tmp_path):
    return request.param(tmp_path)


def test_new_journal_is_empty(place):
    assert place.open().load() == (None, [])


def test_facts_come_back_in_order(place):
    state = place.open()
    state.append([["a", 1], ["b", "two"]])
    state.append([])
    state.append([["c", None, [1, 2], {"x": 0.5}]])
    assert state.load() == (None, [["a", 1], ["b", "two"], ["c", None, [1, 2], {"x": 0.5}]])


def test_facts_outlive_the_master(place):
    first = place.open()
    first.append([["a", 1]])
    first.compact({"sum": 1})
    first.append([["b", 2]])
    first.close()
    assert place.open().load() == ({"sum": 1}, [["b", 2]])


def test_snapshot_replaces_what_was_written(place):
    state = place.open()
    state.append([["a", 1]])
    state.compact({"n": 1})
    state.append([["a", 2]])
    state.compact({"n": 2})
    assert state.load() == ({"n": 2}, [])


def test_numbers_come_back_bit_for_bit(place):
    numbers = [0.1 + 0.2, 1e-320, math.pi, 2**62, -0.0]
    state = place.open()
    state.append([["numbers", *numbers]])
    (_, found) = state.load()
    assert [repr(n) for n in found[0][1:]] == [repr(n) for n in numbers]


def test_what_json_cannot_hold_is_refused(tmp_path):
    state = SqliteState(tmp_path / "state.sqlite")
    with pytest.raises((StateError, TypeError)):
        state.append([["object", object()]])
    assert state.load() == (None, [])


def test_second_master_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    first = SqliteState(path)
    code = (
        "import sys, sqlite3; from pathlib import Path\n"
        "from elasticdl.state.sqlite import SqliteState\n"
        "from elasticdl.errors import StateError\n"
        "try: SqliteState(Path(sys.argv[1]))\n"
        "except StateError as error: print(error); sys.exit(3)\n"
    )
    second = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    first.close()
    assert second.returncode == 3, second.stderr
    assert "another master has it open" in second.stdout


def test_appended_facts_survive_kill_9(tmp_path):
    path = tmp_path / "state.sqlite"
    code = (
        "import sys; from pathlib import Path\n"
        "from elasticdl.state.sqlite import SqliteState\n"
        "state = SqliteState(Path(sys.argv[1]))\n"
        "n = 0\n"
        "while True:\n"
        "    state.append([['n', n], ['twice', n]])\n"
        "    print(n, flush=True)\n"
        "    n += 1\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    with writer:
        for line in writer.stdout:
            if int(line) == 200:
                os.kill(writer.pid, signal.SIGKILL)
                break
        acknowledged = [200, *map(int, writer.stdout)][-1]
    snapshot, facts = SqliteState(path).load()
    assert snapshot is None
    assert len(facts) >= 2 * (acknowledged + 1)
    assert facts == [fact for n in range(len(facts) // 2) for fact in (["n", n], ["twice", n])]


def test_foreign_file_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"label,feature\n" * 1000)
    with pytest.raises(StateError, match=r"state\.sqlite.*expected a SQLite file"):
        SqliteState(path)
    assert path.read_bytes() == b"label,feature\n" * 1000


def test_other_applications_database_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(StateError, match="another application's"):
        SqliteState(path)


def test_journal_of_another_format_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    SqliteState(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StateError, match="format 1, found 99"):
        SqliteState(path)


def test_damaged_journal_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    state = SqliteState(path)
    state.append([["fact", "x" * 1000]] * 100)
    state.close()
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = os.urandom(64)
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"state\.sqlite"):
        SqliteState(path).load()


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(StateError, match="does its folder exist"):
        SqliteState(tmp_path / "nowhere" / "state.sqlite")


def test_journal_is_plain_json_for_a_human(tmp_path):
    path = tmp_path / "state.sqlite"
    state = SqliteState(path)
    state.append([["lease", 1]])
    state.close()
    with sqlite3.connect(path) as db:
        (text,) = db.execute("SELECT facts FROM journal").fetchone()
    db.close()
    assert json.loads(text) == [["lease", 1]]
