"""Draws a forecast: the speed over the number of workers, and what makes it faster."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from elasticdl.packages.simulate.cluster import Resource
from elasticdl.packages.simulate.forecast import Forecast


def svg(parts: Sequence[str], width: int, height: int) -> str:
    """Return a picture of parts on white."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def box(x: float, y: float, width: float, height: float, colour: str, hint: str = "") -> str:
    """Return a filled rectangle; a viewer shows the hint under the pointer."""
    inner = f"<title>{escape(hint)}</title>" if hint else ""
    return (
        f'<rect x="{x:.1f}" y="{_number(y)}" width="{width:.1f}" height="{_number(height)}" '
        f'fill="{colour}">{inner}</rect>'
    )


def text(x: float, y: float, words: str, is_bold: bool = False) -> str:
    """Return words that begin at a point."""
    weight = ' font-weight="bold"' if is_bold else ""
    return f'<text x="{x}" y="{y}"{weight}>{escape(words)}</text>'


def line(x: float, y: float, x2: float, y2: float, colour: str = "black") -> str:
    """Return a line from one point to another."""
    return (
        f'<line x1="{x:.1f}" y1="{_number(y)}" x2="{x2:.1f}" y2="{_number(y2)}" stroke="{colour}"/>'
    )


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}"


_WIDTH, _HEIGHT = 720, 300
_LEFT, _TOP, _WIDE, _HIGH = 70, 40, 330, 210
_BARS = 560
_SPEED, _IDEAL, _GAIN = "#1f77b4", "#aaaaaa", "#ff7f0e"


def picture(found: Forecast, points: Sequence[tuple[int, float]]) -> str:
    """Return an SVG.

    Args:
        found: The forecast to draw.
        points: Workers, with their records/s; the last point is that of the forecast.
    """
    cluster = found.cluster
    title = (
        f"{cluster.workers:,} workers, {cluster.ps:,} ps replicas: "
        f"{found.records_per_second:,.0f} records/s, efficiency {found.efficiency:.0%}, "
        f"bound by {found.bottleneck.value}"
    )
    parts = [text(12, 20, title, is_bold=True), *_curve(found, points), *_gains(found)]
    return svg(parts, _WIDTH, _HEIGHT)


def _curve(found: Forecast, points: Sequence[tuple[int, float]]) -> list[str]:
    ideal = found.alone * found.cluster.workers
    top, right = max(ideal, max(speed for _, speed in points)), found.cluster.workers
    bottom = _TOP + _HIGH

    def place(workers: int, speed: float) -> tuple[float, float]:
        return _LEFT + _WIDE * workers / right, bottom - _HIGH * speed / top

    parts = [
        line(_LEFT, bottom, _LEFT + _WIDE, bottom),
        line(_LEFT, _TOP, _LEFT, bottom),
        line(_LEFT, bottom, *place(right, ideal), _IDEAL),
        text(_LEFT, bottom + 30, "workers; grey: each as fast as one alone"),
    ]
    for share in (0.0, 0.5, 1.0):
        parts.append(text(4, round(bottom - _HIGH * share + 4), _short(top * share)))
        parts.append(text(round(_LEFT + _WIDE * share - 8), bottom + 14, f"{right * share:,.0f}"))
    before = (0, 0.0)
    for point in points:
        parts.append(line(*place(*before), *place(*point), _SPEED))
        x, y = place(*point)
        parts.append(box(x - 3, y - 3, 6, 6, _SPEED, f"{point[0]} workers: {point[1]:,.0f}/s"))
        before = point
    return parts


def _gains(found: Forecast) -> list[str]:
    parts = [text(430, _TOP + 4, "If it were twice as fast, the job would gain")]
    for place, (resource, gain) in enumerate(_ordered(found)):
        y = _TOP + 16 + 26 * place
        parts.append(text(430, y + 14, resource.value))
        width = 100 * min(1.0, max(0.0, gain - 1))
        parts.append(box(_BARS, y, max(width, 1), 18, _GAIN, f"{gain:.2f} times as fast"))
        parts.append(text(round(_BARS + width + 6), y + 14, f"{gain - 1:+.0%}"))
    return parts


def _ordered(found: Forecast) -> list[tuple[Resource, float]]:
    return sorted(found.gains.items(), key=lambda item: -item[1])


def _short(value: float) -> str:
    for least, unit in ((1e6, "M"), (1e3, "k")):
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:.3g}"
