"""Sums of metrics, which add up over workers."""

from __future__ import annotations

from elasticdl.job import MetricStates


def add(sums: MetricStates, states: MetricStates) -> MetricStates:
    """Return the sums with a worker's states added; those of other shapes are left out."""
    total = dict(sums)
    for name, arrays in states.items():
        known = total.get(name)
        if known is None:
            total[name] = arrays
        elif [a.shape for a in known] == [a.shape for a in arrays]:
            total[name] = [a + b for a, b in zip(known, arrays, strict=True)]
    return total
