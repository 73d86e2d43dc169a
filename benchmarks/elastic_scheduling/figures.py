"""The figures of the two experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticdl.observe.svg import box, line, svg, text

_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP = 60, 46, 760, 130, 52
_COLOURS = {"first": "#4c78a8", "second": "#f58518", "service": "#b279a2", "training": "#54a24b"}
_LEGENDS = {
    "first": "first job",
    "second": "second job",
    "service": "service of high priority",
    "training": "elastic job",
}
_TICKS = 6


def overlap(title: str, modes: Mapping[str, Mapping[str, Any]], units: int) -> str:
    """Return an SVG: who holds the units of the cluster over time, gang above elastic."""
    longest = max(mode["seconds"] for mode in modes.values())
    parts = [*_heading(title, ("first", "second"))]
    top = _TOP + 20
    for name, mode in modes.items():
        used = mode["mean utilisation, of pods that run"]
        label = f"{name}: {mode['seconds']:.0f} s, {used:.0%} of the cluster held on average"
        parts += _chart(label, top, mode["units held"], units, longest)
        top += _HEIGHT + _GAP
    return svg(parts, _LEFT + _WIDTH + 20, top)


def colocation(title: str, found: Mapping[str, Any], cpus: int) -> str:
    """Return an SVG: how service and job share the cluster over time."""
    used = found["mean utilisation, of pods that run"]
    parts = [*_heading(title, ("service", "training"))]
    label = f"{used:.1%} of the CPUs held on average"
    parts += _chart(label, _TOP + 20, found["CPUs held"], cpus, found["seconds"])
    return svg(parts, _LEFT + _WIDTH + 20, _TOP + 20 + _HEIGHT + _GAP)


def _heading(title: str, groups: Sequence[str]) -> Iterator[str]:
    yield text(10, 16, title, is_bold=True)
    for place, group in enumerate(groups):
        yield box(10 + 190 * place, 26, 12, 12, _COLOURS[group])
        yield text(27 + 190 * place, 36, _LEGENDS[group])


def _chart(
    label: str,
    top: int,
    held: Mapping[str, Sequence[Sequence[float]]],
    most: int,
    seconds: float,
) -> Iterator[str]:
    """Draw what each group holds, one upon the other, second by second."""
    yield text(_LEFT, top - 6, label)
    wide, high = _WIDTH / seconds, _HEIGHT / most
    names = list(held)
    for pieces in zip(*(held[name] for name in names), strict=True):
        below = 0.0
        for name, (second, cpus) in zip(names, pieces, strict=True):
            if cpus:
                y = top + _HEIGHT - (below + cpus) * high
                yield box(_LEFT + second * wide, y, wide + 0.2, cpus * high, _COLOURS[name])
            below += cpus
    bottom = top + _HEIGHT
    for cpus in (0, most // 2, most):
        y = bottom - cpus * high
        yield line(_LEFT, y, _LEFT + _WIDTH, y, "#999999")
        yield text(_LEFT - 24, round(y) + 4, str(cpus))
    for number in range(_TICKS + 1):
        second = seconds * number / _TICKS
        yield text(round(_LEFT + second * wide) - 8, bottom + 14, f"{second:.0f} s")
