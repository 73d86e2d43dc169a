"""The logs of a local job: one file for each role and index, over all restarts."""

from __future__ import annotations

import re
from pathlib import Path

from elasticdl.job import Role
from elasticdl.launchers import last_words as words
from elasticdl.runtime.log_lines import BEFORE
from elasticdl.runtime.process import LOG_FOLDER, process_name

_TAIL_BYTES = 16 * 1024


def log_path(job_dir: Path, role: Role, index: int) -> Path:
    """Return the file that takes the output of a process."""
    return job_dir / LOG_FOLDER / f"{process_name(role, index)}.log"


def logged(job_dir: Path) -> list[tuple[Role, int]]:
    """Return the processes that have logs, the master first."""
    found = []
    for path in (job_dir / LOG_FOLDER).glob("*.log"):
        role, _, index = path.stem.partition("-")
        if role in tuple(Role) and (index.isdecimal() or path.stem == Role.MASTER):
            found.append((Role(role), int(index or 0)))
    return sorted(found, key=lambda process: (list(Role).index(process[0]), process[1]))


def last_words(path: Path) -> str:
    """Return the last error in a log, or its last line; "" if there is none."""
    return words.last_words(_tail(path, 0))


def of_a_build(path: Path) -> str:
    """Return how a worker ended while it built its model; "" if it did not."""
    return words.of_a_build(_tail(path, 0))


def last_error(path: Path, start: int) -> str:
    """Return the message of the last error after a position in a log; "" if there is none."""
    return re.sub(r"^\w+Error: ", "", words.last_error(_tail(path, start)))


def _before(path: Path) -> list[str]:
    """Return the last lines of the full log file before this one, if there is one."""
    return _tail(path.with_name(path.name + BEFORE), 0)


def _tail(path: Path, start: int) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = start if start <= size else 0  # another file than then
            file.seek(max(start, size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
        if size < _TAIL_BYTES and start == 0 and path.suffix != BEFORE:
            tail = "".join(f"{line}\n" for line in _before(path)) + tail
    except OSError:
        return []
    return [line.strip() for line in tail.splitlines() if line.strip()]
