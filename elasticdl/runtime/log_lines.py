"""Log lines of processes on stderr: text or JSON, in files of a limited size."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from elasticdl.runtime.printable import printable
from elasticdl.settings.reader_params import without_login

Format = Literal["text", "json"]

BEFORE = ".1"
"""Ending of the file with older lines of a log."""

_HEAD = re.compile(r"\s*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\s*\{")  # a line of ours, or JSON
_OUTPUTS = (1, 2)  # descriptors of stdout and stderr
_OF_EACH_RECORD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_rotating = threading.Lock()


def log_as(name: str, kind: Format = "text") -> None:
    """Send log messages to stderr, each with the time and the name of the process."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    text = TextLines(
        f"%(asctime)s.%(msecs)03d {name} %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines(name) if kind == "json" else text)
    logging.captureWarnings(True)


class TextLines(logging.Formatter):
    """Lines of text. Text of a peer or an exception cannot imitate a log line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a message."""
        first, *rest = printable(without_login(super().format(record))).split("\n")
        return "\n".join([first, *(f"| {line}" if _HEAD.match(line) else line for line in rest)])


class Sparingly(logging.Filter):
    """Limits the lines of a logger in a period, so that strangers cannot fill the log."""

    def __init__(
        self, lines: int = 20, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to count."""
        super().__init__()
        self._lines, self._seconds, self._clock = lines, seconds, clock
        self._since, self._count = clock(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written. The first line of a period says how many were left out."""
        now = self._clock()
        if now - self._since >= self._seconds:
            left_out = max(0, self._count - self._lines)
            self._since, self._count = now, 0
            if left_out:
                record.msg = f"{record.getMessage()} ({left_out} more such lines were left out)"
                record.args = ()
        self._count += 1
        return self._count <= self._lines


def outlast_full_disks() -> None:
    """Let code that prints go on if the disk of this process' output is full.

    Output that does not fit is lost. A lost log line is better than a failed task.
    """
    for name, output in zip(("stdout", "stderr"), _OUTPUTS, strict=True):
        before = getattr(sys, name)
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(output).st_mode) and before is not None:
                before.flush()  # lines in the old buffer come before all later ones
                given = {"encoding": before.encoding, "errors": before.errors}
                raw: Any = _Lossy(output, "w", closefd=False)
                setattr(sys, name, io.TextIOWrapper(raw, write_through=True, **given))


class _Lossy(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
                raise
            return memoryview(data).nbytes  # as if written: the buffer must not keep the lost text


class JsonLines(logging.Formatter):
    """One JSON object a line; each item of a message's `extra` is a field."""

    def __init__(self, process: str) -> None:
        """Write lines of a process."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        words: dict[str, Any] = {
            "time": round(record.created, 3),
            "process": self._process,
            "level": record.levelname,
            "logger": record.name,
            "message": without_login(record.getMessage()),
        }
        if record.exc_info:
            words["traceback"] = without_login(self.formatException(record.exc_info))
        given = {name: value for name, value in vars(record).items() if name not in _OF_EACH_RECORD}
        return json.dumps({**given, **words}, default=str)


def as_text(line: str) -> str:
    """Return a line of `JsonLines` as a line of text; other lines stay as they are."""
    if not line.startswith("{"):
        return line
    try:
        words = json.loads(line)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(words["time"]))
        return f"{when} {words['process']} {words['level']} {words['message']}"
    except (ValueError, KeyError, TypeError):
        return line  # the user's code prints objects too


def rotate_if_full(folder: Path, most_bytes: int) -> None:
    """Begin a new file for the output of this process if its file in the folder is too long.

    The old file is renamed and replaces an older one. Children of this process go on writing to
    the old file. The check is cheap, since each heartbeat makes it.
    """
    with contextlib.suppress(OSError), _rotating:
        found = os.fstat(_OUTPUTS[-1])
        if not stat.S_ISREG(found.st_mode) or found.st_size <= most_bytes:
            return
        path = Path(os.readlink(f"/proc/self/fd/{_OUTPUTS[-1]}"))
        # The user may have sent the output elsewhere, and only logs of the job are ours to rename.
        if path.parent != folder.resolve() or not os.path.samestat(path.stat(), found):
            return
        path.replace(path.with_name(path.name + BEFORE))
        new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, stat.S_IMODE(found.st_mode))
        for output in _OUTPUTS:
            if os.path.samestat(os.fstat(output), found):
                os.dup2(new, output)
        os.close(new)
