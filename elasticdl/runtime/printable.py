"""Words of others, made fit to be printed: a peer, an exception or a file may say anything.

A terminal obeys control characters (it moves, hides, or answers as if the user had typed), and a
new line in a message looks like another message. Here is what both are turned into.
"""

from __future__ import annotations

import re

# C0 and C1 but for the tabulator and the new line, marks that turn the direction of writing,
# separators of lines that are no new line, and halves of characters.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return a text without control characters: each is written as in Python, such as \x1b."""
    return _CONTROLS.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""Return a text of others as one line; a new line is written as \n."""
    return printable(text).replace("\n", "\\n")


def _escaped(found: re.Match[str]) -> str:
    number = ord(found.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
