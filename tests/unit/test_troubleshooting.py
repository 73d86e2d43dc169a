"""The messages of docs/troubleshooting.md are those that the program prints."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.M)
LONG_ENOUGH = 12  # letters of a text that are not filled in; shorter ones would fit anything


def parts_of(node):
    """Return the fixed parts of a string or f-string; None is what is filled in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return [part.value if isinstance(part, ast.Constant) else None for part in parts]


def texts():
    """Yield the strings and f-strings of the source that are long enough, as their parts."""
    for path in (ROOT / "elasticdl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text or isinstance(node, ast.JoinedStr):
                parts = parts_of(node)
                if sum(len(part) for part in parts if part is not None) >= LONG_ENOUGH:
                    yield parts


@pytest.fixture(scope="module")
def share_of_the_source():
    """Return what tells the part of a message whose letters stand in texts that fit it."""
    source = list(texts())

    def share(message):
        known = set()
        for parts in source:
            if not all(part is None or part in message for part in parts):
                continue
            pattern = "".join(".+?" if part is None else f"({re.escape(part)})" for part in parts)
            if found := re.search(pattern, message):
                for group in range(1, len(found.groups()) + 1):
                    known |= set(range(*found.span(group)))
        return len(known) / len(message)

    return share


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_is_in_the_program(message, share_of_the_source):
    # The rest are names and numbers; the command that installs has a test of its own.
    assert share_of_the_source(message.partition(" pip install")[0]) >= 0.4


def test_there_are_twenty_messages_and_each_has_a_remedy():
    assert len(MESSAGES) == len(set(MESSAGES)) == 20
    for part in PAGE.split("\n### ")[1:]:
        _, remedy = part.split("\n\n", 1)
        assert len(remedy.split("\n## ")[0].split()) >= 10


def test_words_that_no_message_has_are_found(share_of_the_source):
    assert share_of_the_source("the lamp of replica 7 is not charged; charge it before a job") < 0.2
    for number, ours, theirs in ((7, "is new or empty", "is empty"), (14, "must be", "are to be")):
        changed = MESSAGES[number].replace(ours, theirs)
        assert share_of_the_source(changed) < share_of_the_source(MESSAGES[number]) - 0.2
