"""The logs of a local job: one file for each role and index, over all incarnations."""

from __future__ import annotations

import re
from pathlib import Path

from elasticdl.job import Role
from elasticdl.launchers import last_words as words
from elasticdl.process import process_name

FOLDER = "logs"

_TAIL_BYTES = 16 * 1024


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
    """Return the last error in a log, or its last line; "" if there is none."""
    return words.last_words(_tail(path, 0))


def of_a_build(path: Path) -> str:
    """Return how a worker ended while it built its model; "" if it did not."""
    return words.of_a_build(_tail(path, 0))


def last_error(path: Path, start: int) -> str:
    """Return the message of the last error in a log from a position on; "" if there is none."""
    return re.sub(r"^\w+Error: ", "", words.last_error(_tail(path, start)))


def _tail(path: Path, start: int) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in tail.splitlines() if line.strip()]
