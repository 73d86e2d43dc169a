"""Reads the lines that `elasticdl train` prints about a job without a terminal."""

from __future__ import annotations

import re

DONE = r"\| [\d,]+ of [\d,]+ records"
"""The pattern of a line that says how many records are done."""


def records_done(line: str) -> int | None:
    """Return the number of done records in a line; None: it has no such number."""
    found = re.search(DONE, line)
    return int(found[0].split()[1].replace(",", "")) if found else None


def processes(workers: int, replicas: int = 0) -> str:
    """Return the pattern of a line with these numbers of living workers and ps replicas."""
    said = rf"\| {workers} worker{'s' * (workers != 1)}"
    return rf"{said}, {replicas} ps replica{'s' * (replicas != 1)}$" if replicas else said
