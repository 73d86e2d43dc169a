"""The messages of docs/troubleshooting.md are those that the program prints."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.M)
LONG_ENOUGH = 12  # letters of a text that are not filled in; shorter ones would fit anything


def pattern_of(node):
    """Return the pattern of a string or f-string of the source, a group for each fixed part."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    fixed = [part.value if isinstance(part, ast.Constant) else None for part in parts]
    if sum(len(text) for text in fixed if text is not None) < LONG_ENOUGH:
        return None
    return re.compile("".join(".+?" if text is None else f"({re.escape(text)})" for text in fixed))


def patterns():
    for path in (ROOT / "elasticdl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if (is_text or isinstance(node, ast.JoinedStr)) and (pattern := pattern_of(node)):
                yield pattern


PATTERNS = list(patterns())


def share_of_the_source(message):
    """Return the part of a message whose letters stand in texts of the source that fit it."""
    known = set()
    for pattern in PATTERNS:
        if found := pattern.search(message):
            for group in range(1, pattern.groups + 1):
                known |= set(range(*found.span(group)))
    return len(known) / len(message)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_is_in_the_program(message):
    # The rest are names and numbers; the command that installs has a test of its own.
    assert share_of_the_source(message.partition(" pip install")[0]) >= 0.4


def test_there_are_twenty_messages_and_each_has_a_remedy():
    assert len(MESSAGES) == len(set(MESSAGES)) == 20
    for part in PAGE.split("\n### ")[1:]:
        _, remedy = part.split("\n\n", 1)
        assert len(remedy.split("\n## ")[0].split()) >= 10


def test_words_that_no_message_has_are_found():
    assert share_of_the_source("the lamp of replica 7 is not charged; charge it before a job") < 0.2
    for number, ours, theirs in ((7, "is new or empty", "is empty"), (14, "must be", "are to be")):
        changed = MESSAGES[number].replace(ours, theirs)
        assert share_of_the_source(changed) < share_of_the_source(MESSAGES[number]) - 0.2
