"""Parts of a picture: boxes, lines and words of SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape


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
