"""What `elasticdl.state.base.State` promises, for every implementation of it."""

import contextlib
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid

import pytest

from elasticdl.errors import StateError, UnusableStateError
from elasticdl.state.memory import MemoryState
from elasticdl.state.sqlite import SqliteState


class Memory:
    def __init__(self, _folder):
        self._state = MemoryState()

    def open(self):
        return self._state


class Sqlite:
    """`code` opens the journal in another process, given `arguments`."""

    code = (
        "from elasticdl.state.sqlite import SqliteState\n"
        "from pathlib import Path\n"
        "state = SqliteState(Path(sys.argv[1]))\n"
    )

    def __init__(self, folder):
        self.path = folder / "state.sqlite"
        self.arguments = [str(self.path)]

    def open(self):
        return SqliteState(self.path)


class Etcd:
    code = (
        "from elasticdl.packages.etcd.journal import EtcdState\n"
        "state = EtcdState([sys.argv[1]], sys.argv[2], lease_seconds=5)\n"
    )

    def __init__(self, server):
        self.server = server
        self.prefix = f"jobs/{uuid.uuid4().hex}"
        self.arguments = [server.endpoint, self.prefix]

    def open(self):
        from elasticdl.packages.etcd.journal import EtcdState

        return EtcdState([self.server.endpoint], self.prefix, lease_seconds=5)


KINDS = ["memory", "sqlite", pytest.param("etcd", marks=pytest.mark.etcd)]
DURABLE = KINDS[1:]


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    match request.param:
        case "memory":
            yield Memory(tmp_path)
        case "sqlite":
            yield Sqlite(tmp_path)
        case "etcd":
            yield Etcd(request.getfixturevalue("etcd_server"))


@pytest.fixture
def opened(place):
    """Open the journal, and let go of it at the end."""
    states = []

    def open_place():
        states.append(place.open())
        return states[-1]

    yield open_place
    for state in states:
        state.close()


@contextlib.contextmanager
def started(place, code, *more):
    """Run code in another process, with `state` open; it is gone when the context ends."""
    command = [sys.executable, "-c", f"import sys\n{place.code}{code}", *place.arguments, *more]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_new_journal_is_empty(opened):
    assert opened().load() == (None, [])


def test_facts_come_back_in_order(opened):
    state = opened()
    state.append([["a", 1], ["b", "two"]])
    state.append([])
    state.append([["c", None, [1, 2], {"x": 0.5}]])
    assert state.load() == (None, [["a", 1], ["b", "two"], ["c", None, [1, 2], {"x": 0.5}]])


def test_facts_outlive_the_master(opened):
    first = opened()
    first.append([["a", 1]])
    first.compact({"sum": 1})
    first.append([["b", 2]])
    first.close()
    assert opened().load() == ({"sum": 1}, [["b", 2]])


def test_snapshot_replaces_what_was_written(opened):
    state = opened()
    state.append([["a", 1]])
    state.compact({"n": 1})
    state.append([["a", 2]])
    state.compact({"n": 2})
    assert state.load() == ({"n": 2}, [])


def test_numbers_come_back_bit_for_bit(opened):
    numbers = [0.1 + 0.2, 1e-320, math.pi, 2**62, -0.0]
    state = opened()
    state.append([["numbers", *numbers]])
    (_, found) = state.load()
    assert [repr(n) for n in found[0][1:]] == [repr(n) for n in numbers]


def test_facts_of_any_size_come_back(opened):
    large = [["large", "x" * 3_000_000], ["many", list(range(300_000))], ["small"]]
    state = opened()
    state.append([["before"]])
    state.append(large)
    state.append([["after"]])
    assert state.load() == (None, [["before"], *large, ["after"]])
    state.compact({"large": large})
    state.append([["since"]])
    state.compact({"larger": large * 2})
    assert state.load() == ({"larger": large * 2}, [])


def test_many_batches_are_replaced_by_a_snapshot(opened):
    state = opened()
    for number in range(250):
        state.append([["n", number]])
    assert state.load()[1] == [["n", number] for number in range(250)]
    state.compact({"n": 250})
    state.append([["n", 250]])
    state.close()
    assert opened().load() == ({"n": 250}, [["n", 250]])


@pytest.mark.parametrize("place", DURABLE, indirect=True)
def test_what_json_cannot_hold_is_refused(opened):
    state = opened()
    with pytest.raises((StateError, TypeError)):
        state.append([["object", object()]])
    assert state.load() == (None, [])


@pytest.mark.parametrize("place", DURABLE, indirect=True)
def test_second_master_is_refused(place):
    first = place.open()
    with started(place, "") as second:
        _, problem = second.communicate(timeout=200)
    first.close()
    assert second.returncode != 0
    assert "another master has it open" in problem


@pytest.mark.parametrize("place", DURABLE, indirect=True)
def test_appended_facts_survive_kill_9(place):
    code = (
        "n = 0\n"
        "while True:\n"
        "    state.append([['n', n], ['twice', n]])\n"
        "    print(n, flush=True)\n"
        "    n += 1\n"
    )
    with started(place, code) as writer:
        for line in writer.stdout:
            if int(line) == 200:
                os.kill(writer.pid, signal.SIGKILL)
                break
        acknowledged = [200, *map(int, writer.stdout)][-1]
    state = place.open()
    snapshot, facts = state.load()
    state.close()
    assert snapshot is None
    assert len(facts) >= 2 * (acknowledged + 1)
    assert facts == [fact for n in range(len(facts) // 2) for fact in (["n", n], ["twice", n])]


@pytest.mark.parametrize("place", DURABLE, indirect=True)
@pytest.mark.parametrize("kill_after_seconds", [0.0, 0.03, 0.3])
def test_snapshot_is_there_whole_or_not_at_all(place, kill_after_seconds):
    # Each snapshot says how many facts it stands for; the facts since go on from there.
    code = (
        "snapshot, facts = state.load()\n"
        "n = (snapshot['n'] if snapshot else 0) + len(facts)\n"
        "ballast = list(range(400_000))\n"
        "while True:\n"
        "    for _ in range(3):\n"
        "        n += 1\n"
        "        state.append([['n', n]])\n"
        "    print(n, flush=True)\n"
        "    state.compact({'n': n, 'ballast': ballast})\n"
    )
    for _ in range(2):
        with started(place, code) as writer:
            acknowledged = int(writer.stdout.readline())
            acknowledged = int(writer.stdout.readline())
            time.sleep(kill_after_seconds)  # any moment will do
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged = [acknowledged, *map(int, writer.stdout)][-1]
        state = place.open()
        snapshot, facts = state.load()
        state.close()
        assert len(snapshot["ballast"]) == 400_000
        numbers = [number for _, number in facts]
        assert numbers == list(range(snapshot["n"] + 1, snapshot["n"] + 1 + len(facts)))
        assert snapshot["n"] + len(facts) >= acknowledged


@pytest.mark.parametrize("place", DURABLE, indirect=True)
def test_journal_may_be_closed_during_a_call(place):
    state = place.open()
    ended = threading.Event()

    def write():
        try:
            while True:
                state.append([["n"]])
        except StateError:
            ended.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    state.close()
    assert ended.wait(30)
    writer.join()


def test_foreign_file_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"label,feature\n" * 1000)
    with pytest.raises(UnusableStateError, match=r"state\.sqlite.*expected a SQLite file"):
        SqliteState(path)
    assert path.read_bytes() == b"label,feature\n" * 1000


def test_other_applications_database_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(UnusableStateError, match="another application's"):
        SqliteState(path)


def test_journal_of_another_format_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    SqliteState(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(UnusableStateError, match="format 1, found 99"):
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
