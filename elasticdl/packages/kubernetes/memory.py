"""Computes the memory of the next process after a process has run out of memory."""

from __future__ import annotations

import math
from decimal import Decimal

from elasticdl.settings.resources import parse_quantity

_GROWTH = Decimal("1.5")
_MAX_GROWTH = 4
_MIB = 1 << 20


def grown(had: str, asked: str) -> str:
    """Return the memory of a process whose forerunner had too little: half as much again.

    Args:
        had: The memory limit of the forerunner, a quantity of Kubernetes.
        asked: The memory limit in the settings; no process gets more than four times as much.

    Returns:
        The memory in MiB; the same as `had` if the limit is reached.
    """
    most = parse_quantity(asked) * _MAX_GROWTH
    wanted = min(parse_quantity(had) * _GROWTH, most)
    return f"{math.ceil(max(wanted, parse_quantity(had)) / _MIB)}Mi"


def is_larger(quantity: str, than: str) -> bool:
    """Compare two quantities; "" is the smallest."""
    return bool(quantity) and (not than or parse_quantity(quantity) > parse_quantity(than))
