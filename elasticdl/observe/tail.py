"""Files that grow, read line by line."""

from __future__ import annotations

import os
from pathlib import Path

from elasticdl.job import Event
from elasticdl.observe.events import FOLDER, is_of_beats, parse_event
from elasticdl.runtime.log_lines import BEFORE


class Tail:
    """The lines of one file, in the order in which they are added."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """Read from a position."""
        self._path = path
        self._offset = offset
        self._inode = 0  # 0: nothing was read yet

    def lines(self, is_last: bool = False) -> list[str]:
        """Return the lines that were added since the last call.

        A line without its end is still being written; only the last call returns it.
        """
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                before = self._before(inode)
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        self._inode = inode
        # A part of a line is left in the file until the rest of it is there.
        whole = added if is_last else added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return (before + whole).decode(errors="replace").splitlines()

    def _before(self, inode: int) -> bytes:
        """Return the rest of the file that became full, if another file is there now, or at first.

        If two files became full between two calls, only the second one is still there.
        """
        if inode == self._inode or (not self._inode and self._offset):
            return b""
        try:
            with self._path.with_name(self._path.name + BEFORE).open("rb") as file:
                is_known = os.fstat(file.fileno()).st_ino == self._inode
                file.seek(self._offset if is_known else 0)
                left = file.read()
        except FileNotFoundError:
            left = b""
        self._offset = 0
        return left


class EventTail:
    """The events of all processes of a job from a time on, in the order in which they are added.

    Each file has a name that is used once, and is only added to.
    """

    def __init__(self, job_dir: Path, since: float, with_beats: bool = True) -> None:
        """Read the event logs of the job in a folder.

        Args:
            job_dir: The folder.
            since: The time of the first events, in seconds since 1970.
            with_beats: Whether to read the reports of heartbeats too.
        """
        self._folder = job_dir / FOLDER
        self._with_beats = with_beats
        self._since = since
        self._is_first = True  # what is added later is new, also where the clock was set back
        self._tails: dict[Path, Tail] = {}

    def events(self, is_last: bool = False) -> list[Event]:
        """Return the events that were added since the last call, oldest first.

        An event that is not whole is still being written, or its process died: it is left out.

        Raises:
            DataError: A line is not an event.
        """
        found = []
        for path in sorted(self._folder.glob("*.jsonl")):
            if not self._with_beats and is_of_beats(path):
                continue
            tail = self._tails.get(path)
            if tail is None:
                tail = self._tails[path] = Tail(path, self._start(path))
            found += [parse_event(line, str(path)) for line in tail.lines()]
        new = [event for event in found if not self._is_first or event["time"] >= self._since]
        self._is_first = False
        return sorted(new, key=lambda event: float(event["time"]))

    def _start(self, path: Path) -> int:
        """Return where to begin: a file that was not written to since then has nothing new."""
        if not self._is_first:
            return 0
        try:
            stat = path.stat()
        except FileNotFoundError:  # it was too old
            return 0
        # Reading the old files of a long job would take seconds.
        return stat.st_size if stat.st_mtime < self._since else 0
