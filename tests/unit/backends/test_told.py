"""What a backend says of a job reaches whoever reads, however logging is set up."""

import logging

from elasticdl.backends.told import FEED_PATH, telling

logger = logging.getLogger("elasticdl.backends.keras.feed.ways")


def unconfigured(monkeypatch):
    """Have logging as it is in a command: nobody has added a handler. To be called in a test."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def test_a_warning_is_printed_where_logging_is_not_configured(monkeypatch, capsys):
    unconfigured(monkeypatch)
    told = []
    with telling(told.append, below=logging.WARNING):
        logger.warning("feed runs unvectorised", extra={FEED_PATH: True})
        logger.info("feed runs vectorised", extra={FEED_PATH: True})
        logger.warning("something else")
    assert capsys.readouterr().err == "feed runs unvectorised\nsomething else\n"
    assert told == ["feed runs vectorised"]
    assert logging.getLogger("elasticdl.backends").handlers == []


def test_equal_lines_are_told_once(monkeypatch):
    unconfigured(monkeypatch)
    told = []
    with telling(told.append):
        for _ in range(2):
            logger.warning("feed runs unvectorised", extra={FEED_PATH: True})
    assert told == ["feed runs unvectorised"]
