"""Reads lengths of time in flags: 30s, 5m, 1h."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_in(text: str) -> float | None:
    """Return a length of time in seconds; None if the text is not one."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text.strip(), re.ASCII)
    return float(found.group(1)) * _UNITS[found.group(2)] if found else None
