"""The journal in a SQLite file, where its disk is full or its file is another's."""

import os
import subprocess
import sys
import threading
import time

import pytest

from elasticdl.errors import StateError
from elasticdl.state.sqlite import SqliteState

FACTS = [["fact", "x" * 50_000]]


def until(holds):
    deadline = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def state(tmp_path):
    state = SqliteState(tmp_path / "state.sqlite")
    yield state
    state.close()


def limit(state, num_pages):
    """Have the file no room for more; to SQLite that is a disk that is full."""
    state._db.execute(f"PRAGMA max_page_count={num_pages}")


@pytest.mark.parametrize("kind", ["append", "compact"])
def test_write_waits_for_room(state, kind):
    state.append([["before"]])
    limit(state, 1)
    work = (
        (lambda: state.append(FACTS)) if kind == "append" else (lambda: state.compact({"a": FACTS}))
    )
    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: state.trouble)
    assert state.trouble.endswith("state.sqlite: database or disk is full; make room on its disk")
    limit(state, 10_000)
    thread.join(100)
    assert state.trouble == ""
    snapshot, facts = state.load()
    assert (snapshot, facts) == (
        (None, [["before"], *FACTS]) if kind == "append" else ({"a": FACTS}, [])
    )


def test_journal_that_waits_for_room_can_be_closed(state):
    limit(state, 1)
    errors = []

    def work():
        try:
            state.append(FACTS)
        except StateError as error:
            errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: state.trouble)
    state.close()
    thread.join(100)
    (error,) = errors
    assert "was closed before it was written" in error


def test_sync_has_the_log_of_what_was_appended_on_the_disk(state, tmp_path, monkeypatch):
    state.append([["fact"]])
    synced, fsync = [], os.fsync

    def note(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    state.sync()
    assert synced == [str(tmp_path / "state.sqlite-wal"), str(tmp_path)]
    # Nor has that ended the lock, which keeps other processes out.
    open_it = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN')"
    open_it += ".connection.execute('SELECT * FROM journal')"
    other = subprocess.run(
        [sys.executable, "-c", open_it, str(tmp_path / "state.sqlite")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "database is locked" in other.stderr


HOLDER = """
import sys
from pathlib import Path
from elasticdl.state.sqlite import SqliteState
state = SqliteState(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
state.close()
"""


def test_the_next_master_waits_for_the_one_before_to_go(tmp_path, caplog):
    path = tmp_path / "state.sqlite"
    words = [sys.executable, "-c", HOLDER, str(path)]
    opened = []
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as before:
        assert before.stdout.readline() == "open\n"
        thread = threading.Thread(target=lambda: opened.append(SqliteState(path, 100.0)))
        thread.start()
        until(lambda: "the master before is still leaving" in caplog.text)
        assert not opened
        before.stdin.close()
        thread.join(100)
    (state,) = opened
    assert state.load() == (None, [])
    state.close()
