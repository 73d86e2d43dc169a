"""What a process said last, in the lines of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from elasticdl.process import BUILDS_FROM, IS_BUILT

# The head of a line of `elasticdl.process`: date, time, process, level.
_ERROR = re.compile(r"^\S+ \S+ \S+ ERROR ")


def last_words(lines: Iterable[str]) -> str:
    """Return the last error in a log, or its last line; "" if there is none.

    Time and name are left out: they differ between processes that fail for the same reason. Of a
    worker that ended while it built its model, the records that it did it with are named.
    """
    said = [line.strip() for line in lines if line.strip()]
    begun = _last_build(said)
    error = last_error(said[begun or 0 :])
    if error or begun is None:
        return error or (said or [""])[-1]
    records = said[begun].split(BUILDS_FROM)[1]
    return f"{said[-1]} (while it built the model from records of {records})"


def last_error(lines: Sequence[str]) -> str:
    """Return the last error in a log; "" if there is none."""
    errors = [line.strip() for line in lines if _ERROR.match(line)]
    return _ERROR.sub("", errors[-1]) if errors else ""


def _last_build(lines: Sequence[str]) -> int | None:
    """Return the line with which the last build of a model began, if none says that it is built."""
    for number, line in reversed(list(enumerate(lines))):
        if line.endswith(IS_BUILT):
            return None
        if BUILDS_FROM in line:
            return number
    return None
