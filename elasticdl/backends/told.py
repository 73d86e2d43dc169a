"""What a backend tells the user of the job, beside its log: which way `feed` runs, and why."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

FEED_PATH = "feed_path"
"""Attribute of a log record that says so."""


@contextlib.contextmanager
def telling(tell: Callable[[str], object], below: int = logging.CRITICAL) -> Iterator[None]:
    """Call a function with each such line that is logged meanwhile, once for equal lines.

    Args:
        tell: The function.
        below: Lines of this level and above are left out.
    """
    handler = _Handler(tell)
    handler.addFilter(lambda record: record.levelno < below)
    logger = logging.getLogger(__package__)
    handlers: list[logging.Handler] = [handler]
    if not logger.hasHandlers() and logging.lastResort is not None:
        handlers.append(logging.lastResort)  # not used by itself where there is any other
    for one in handlers:
        logger.addHandler(one)
    if logger.level == logging.NOTSET and logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for one in handlers:
            logger.removeHandler(one)


class _Handler(logging.Handler):
    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if getattr(record, FEED_PATH, False) and text not in self._told:
            self._told.add(text)
            self._tell(text)
