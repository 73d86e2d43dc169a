"""Finds the last words of a process in the lines of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from elasticdl.runtime.log_lines import as_text
from elasticdl.runtime.process import BUILDS_FROM, IS_BUILT

_FATAL = "Fatal Python error: "  # the first line of what `faulthandler` prints
# The head of a line of `elasticdl.runtime.log_lines`: date, time, process, level.
_ERROR = re.compile(r"^\S+ \S+ \S+ ERROR ")


def last_words(lines: Iterable[str]) -> str:
    """Return the last error in a log, or its last line; "" if there is none.

    The time and the name are left out, because they differ between processes that fail for the same
    reason. If a worker ended while it built its model, the records of the build are named.
    """
    said = [as_text(line.strip()) for line in lines if line.strip()]
    return last_error(said[_last_build(said) or 0 :]) or of_a_build(said) or (said or [""])[-1]


def of_a_build(lines: Sequence[str]) -> str:
    """Return how a worker ended while it built its model, with the records; "" if it did not."""
    lines = [as_text(line) for line in lines]
    begun = _last_build(lines)
    if begun is None:
        return ""
    records = lines[begun].split(BUILDS_FROM)[1]
    fatal = [line for line in lines[begun:] if line.startswith(_FATAL)]
    return f"{(fatal or lines)[-1]} (while it built the model from records of {records})"


def last_error(lines: Sequence[str]) -> str:
    """Return the last error in a log; "" if there is none."""
    said = [as_text(line.strip()) for line in lines]
    errors = [line for line in said if _ERROR.match(line)]
    return _ERROR.sub("", errors[-1]) if errors else ""


def _last_build(lines: Sequence[str]) -> int | None:
    """Return the line that begins the last build of a model; None if the build was completed."""
    for number, line in reversed(list(enumerate(lines))):
        if line.endswith(IS_BUILT):
            return None
        if BUILDS_FROM in line:
            return number
    return None
