"""How much memory the next process gets after one has run out of it."""

from __future__ import annotations

import math
from decimal import Decimal

from elasticdl.settings.pods import parse_quantity

_GROWTH = Decimal("1.5")
_MAX_GROWTH = 4
_MIB = 1 << 20


def grown(had: str, asked: str) -> str:
    """Return what a process gets whose forerunner had too little: half as much again.

    Args:
        had: The limit of the one that ran out of memory, a quantity of Kubernetes.
        asked: The limit of the settings. No process gets more than four times as much.

    Returns:
        In MiB; as much as `had` at the limit.
    """
    most = parse_quantity(asked) * _MAX_GROWTH
    wanted = min(parse_quantity(had) * _GROWTH, most)
    return f"{math.ceil(max(wanted, parse_quantity(had)) / _MIB)}Mi"


def is_larger(quantity: str, than: str) -> bool:
    """Compare two quantities; "" is the smallest."""
    return bool(quantity) and (not than or parse_quantity(quantity) > parse_quantity(than))
