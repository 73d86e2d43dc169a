"""Makes texts from peers, exceptions and files safe to print.

A terminal obeys control characters: it moves, hides text, or answers as if the user had typed. A
new line in a message looks like another message. This module replaces both.
"""

from __future__ import annotations

import re

# C0 and C1 without tab and new line, marks that change the direction of writing, line separators
# other than the new line, and lone surrogates.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return a text in which each control character is written as in Python, such as \x1b."""
    return _CONTROLS.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""Return a text as one line, with each new line written as \n."""
    return printable(text).replace("\n", "\\n")


def _escaped(found: re.Match[str]) -> str:
    number = ord(found.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
