"""A journal in one SQLite file: the default for jobs whose master has a disk."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elasticdl.errors import StateError, UnusableStateError
from elasticdl.runtime.locks import lock_holders
from elasticdl.state.base import Fact, Snapshot
from elasticdl.state.encoding import dumps, encoded

log = logging.getLogger(__name__)

_APPLICATION_ID = 0x45444C4A  # "EDLJ" in the file's header
_FORMAT = 1
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
_MAY_PASS = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_BUSY,
    }
)
"""A write is repeated after these errors: a full disk, a disk that is mounted read-only, or another
process's lock on the file.
"""

_UNUSABLE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})

_LONG = 10_000  # items of a fact that is encoded in parts: other threads wait meanwhile

# One row a batch of facts: a batch is one transaction, and there or not there as a whole.
_TABLES = """
CREATE TABLE journal (number INTEGER PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE snapshot (number INTEGER PRIMARY KEY CHECK (number = 0), content TEXT NOT NULL);
"""


class SqliteState:
    """`elasticdl.state.base.State` in a SQLite file.

    The file has a write-ahead log with `synchronous=NORMAL`. Appended facts survive the death of
    the process, since the operating system has them. A write that fails because its disk is full,
    or does not answer, is repeated until it succeeds. A write does not wait for the disk. So a
    machine that loses power may lose the facts since `sync`, but the file stays consistent. On such
    a machine the job's processes are gone too.
    """

    def __init__(self, path: Path, patience_seconds: float = 0.0) -> None:
        """Open a journal, or create one.

        Args:
            path: The file.
            patience_seconds: How long to wait for a leaving master that still has the file open.

        Raises:
            StateError: The file is damaged, foreign, of another version, or in use.
        """
        self._path = path
        self._lock = threading.Lock()  # `close` comes while another thread may be writing
        self._is_closed = threading.Event()
        self.trouble = ""
        with self._errors("cannot be opened"):
            # No `isolation_level`: Python would begin transactions of its own.
            self._db = sqlite3.connect(
                path, timeout=1.0, isolation_level=None, check_same_thread=False
            )
        try:
            with self._errors("cannot be opened"):
                self._open_when_free(time.monotonic() + patience_seconds)
        except BaseException:
            self._db.close()
            raise

    def append(self, facts: Sequence[Fact]) -> None:
        """Write facts into the journal."""
        if not facts:
            return
        with self._errors("cannot be written"):
            is_long = any(type(v) is list and len(v) > _LONG for fact in facts for v in fact)
            text = "".join(encoded(list(facts))) if is_long else dumps(facts)
        self._write(lambda: self._db.execute("INSERT INTO journal (facts) VALUES (?)", (text,)))

    def load(self) -> tuple[Snapshot | None, list[Fact]]:
        """Return the last snapshot, if there is one, and the facts after it."""
        with self._lock, self._errors("cannot be read"):
            row = self._db.execute("SELECT content FROM snapshot").fetchone()
            snapshot = None if row is None else json.loads(row[0])
            batches = self._db.execute("SELECT facts FROM journal ORDER BY number")
            return snapshot, [fact for (facts,) in batches for fact in json.loads(facts)]

    def compact(self, snapshot: Snapshot) -> None:
        """Replace all facts by a snapshot which has the same effect."""
        content = "".join(encoded(snapshot))

        def replace() -> None:
            with self._transaction():
                self._db.execute(
                    "INSERT OR REPLACE INTO snapshot (number, content) VALUES (0, ?)", (content,)
                )
                self._db.execute("DELETE FROM journal")

        self._write(replace)

    def _write(self, work: Callable[[], object]) -> None:
        """Change the file as a whole or not at all; if its disk is full, wait until it is not."""
        pause_seconds = _FIRST_PAUSE_SECONDS
        with self._lock, self._errors("cannot be written"):
            while True:
                try:
                    work()
                except sqlite3.OperationalError as error:
                    code: int = getattr(error, "sqlite_errorcode", 0)
                    if (code & 0xFF) not in _MAY_PASS:  # the rest says which part of it
                        raise
                    remedy = _WAITS_FOR.get(code & 0xFF, "")
                    self.trouble = f"{self._path}: {error}{remedy}{self._holders(error)}"
                    if self._is_closed.wait(pause_seconds):
                        raise StateError(
                            f"the job's journal was closed before it was written: {self.trouble}"
                        ) from error
                    pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
                else:
                    self.trouble = ""
                    return

    def sync(self) -> None:
        """Bring the appended facts to the disk.

        They are in the write-ahead log, unless SQLite has synced it itself. The log is opened anew.
        The database file is never opened anew: closing it would end SQLite's lock on it.
        """
        log = self._path.with_name(f"{self._path.name}-wal")
        try:
            with log.open("rb") as file:
                os.fsync(file.fileno())
            # A new log file survives a power loss only if its folder is synced too.
            folder = os.open(log.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(f"{log}: the job's journal cannot be synced: {error}") from error

    def close(self) -> None:
        """Close the journal; another process may open it then."""
        self._is_closed.set()
        with self._lock, self._errors("cannot be closed"):
            self._db.close()

    def _open_when_free(self, deadline: float) -> None:
        was_told = False
        while True:
            try:
                self._open()
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() >= deadline:
                    raise
                if not was_told:
                    log.warning(
                        "the master before is still leaving, and this one waits for it: %s is open "
                        "in another process%s",
                        self._path,
                        self._holders(error),
                    )
                    was_told = True
                time.sleep(_FIRST_PAUSE_SECONDS)

    def _open(self) -> None:
        # Exclusive from the first access on: a second master must not write to the same job.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA synchronous=NORMAL")
        with self._transaction():
            self._create_or_check()
        self._db.execute("PRAGMA journal_mode=WAL")
        found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise UnusableStateError(
                f"{self._path}: the job's journal is damaged ({found}); restore the file, or "
                "start a new job from the last checkpoint (--checkpoint_dir_for_init)"
            )

    def _create_or_check(self) -> None:
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        is_new = not self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        if is_new and application == 0:
            for statement in _TABLES.strip().splitlines():
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version={_FORMAT}")
        elif application != _APPLICATION_ID:
            raise UnusableStateError(
                f"{self._path}: expected a job's journal, found another application's SQLite file"
            )
        elif version != _FORMAT:
            raise UnusableStateError(
                f"{self._path}: expected a journal of format {_FORMAT}, found {version}; "
                "resume the job with the elasticdl that started it"
            )

    def _holders(self, error: sqlite3.Error) -> str:
        """Return which processes lock the file, if the error is about a lock; else ""."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
            return ""
        others = [one for one in lock_holders(self._path) if one.pid != os.getpid()]
        return f" ({', '.join(map(str, others))})" if others else ""

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a disk that is full has ended it already
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
            is_unusable = code in _UNUSABLE or self._path.is_dir()
            raise (UnusableStateError if is_unusable else StateError)(
                f"{self._path}: the job's journal {what}: {error}{_remedy(error)}"
                f"{self._holders(error)}"
            ) from error
        except ValueError as error:  # from JSON
            raise UnusableStateError(f"{self._path}: the job's journal {what}: {error}") from error


_WAITS_FOR = {
    sqlite3.SQLITE_FULL: "; make room on its disk",
    sqlite3.SQLITE_READONLY: "; its disk can be read alone",
}


def _remedy(error: sqlite3.Error) -> str:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return {
        sqlite3.SQLITE_BUSY: "; another master has it open",
        sqlite3.SQLITE_NOTADB: "; expected a SQLite file that a master has written",
        sqlite3.SQLITE_FULL: "; make room on the disk and start the master again",
        sqlite3.SQLITE_CANTOPEN: "; does its folder exist, and may it be written to?",
    }.get(code, "")
