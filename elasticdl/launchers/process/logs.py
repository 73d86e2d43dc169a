"""The logs of a local job: one file for each role and index, over all incarnations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from elasticdl.job import Role
from elasticdl.process import BUILDS_FROM, IS_BUILT, process_name

FOLDER = "logs"

_TAIL_BYTES = 16 * 1024
# The head of a line of `elasticdl.process`: date, time, process, level.
_ERROR = re.compile(r"^\S+ \S+ \S+ ERROR ")


def log_path(job_dir: Path, role: Role, index: int) -> Path:
    """Return the file that takes the output of a process."""
    return job_dir / FOLDER / f"{process_name(role, index)}.log"


def logged(job_dir: Path) -> list[tuple[Role, int]]:
    """Return the processes that have logs, the master first."""
    found = []
    for path in (job_dir / FOLDER).glob("*.log"):
        role, _, index = path.stem.partition("-")
        if role in tuple(Role) and (index.isdecimal() or path.stem == Role.MASTER):
            found.append((Role(role), int(index or 0)))
    return sorted(found, key=lambda process: (list(Role).index(process[0]), process[1]))


def last_words(path: Path) -> str:
    """Return the last error in a log, or its last line; "" if there is none.

    Time and name are left out: they differ between processes that fail for the same reason. Of a
    worker that ended while it built its model, the records that it did it with are named.
    """
    lines = _tail(path, 0)
    begun = _last_build(lines)
    error = _last_error(lines[begun or 0 :])
    if error or begun is None:
        return error or (lines or [""])[-1]
    records = lines[begun].split(BUILDS_FROM)[1]
    return f"{lines[-1]} (while it built the model from records of {records})"


def _last_build(lines: Sequence[str]) -> int | None:
    """Return the line with which the last build of a model began, if none says that it is built."""
    for number, line in reversed(list(enumerate(lines))):
        if line.endswith(IS_BUILT):
            return None
        if BUILDS_FROM in line:
            return number
    return None


def last_error(path: Path, start: int) -> str:
    """Return the message of the last error in a log from a position on; "" if there is none."""
    return re.sub(r"^\w+Error: ", "", _last_error(_tail(path, start)))


def _tail(path: Path, start: int) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in tail.splitlines() if line.strip()]


def _last_error(lines: Sequence[str]) -> str:
    errors = [line for line in lines if _ERROR.match(line)]
    return _ERROR.sub("", errors[-1]) if errors else ""
