"""What the lines say that `elasticdl train` prints of a job where nobody sees a terminal."""

from __future__ import annotations

import re

DONE = r"\| [\d,]+ of [\d,]+ records"
"""The pattern of a line that says how many records are done."""


def records_done(line: str) -> int | None:
    """Return how many records a line says are done; None: it says nothing of that."""
    found = re.search(DONE, line)
    return int(found[0].split()[1].replace(",", "")) if found else None


def processes(workers: int, replicas: int = 0) -> str:
    """Return the pattern of a line with so many workers and ps replicas that are alive."""
    said = rf"\| {workers} worker{'s' * (workers != 1)}"
    return rf"{said}, {replicas} ps replica{'s' * (replicas != 1)}$" if replicas else said
