"""The page of a job as one file that needs nothing else: it can be mailed, and opened anywhere.

The browser runs what is in the file and nothing more: a policy in it names its scripts and styles
by their hashes, and allows no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_STYLE = re.compile(r'<link rel="stylesheet" href="([\w.]+)">')
_SCRIPT = re.compile(r'<script src="([\w.]+)"></script>')
_FIRST_SCRIPT = '<script src="uPlot.iife.min.js">'


def asset(name: str) -> str:
    """Return a file of the page."""
    return (files("elasticdl.packages.page") / "assets" / name).read_text("utf-8")


def html(board: Mapping[str, Any]) -> str:
    """Return the page with its data inside.

    Args:
        board: A whole history, as `history.board.board` returns it.
    """
    page = asset("index.html")
    styles, scripts = _STYLE.findall(page), _SCRIPT.findall(page)
    sources = {name: asset(name) for name in (*styles, *scripts)}
    # A browser runs only scripts with these hashes, so a name in the data can never run as code.
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_hashes(sources, styles)}; script-src {_hashes(sources, scripts)}"
    )
    # Without "<" no name in the data can end the element.
    data = json.dumps(board, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    held = f'<script type="application/json" id="job-data">{data}</script>\n'
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}', 1)
    page = _STYLE.sub(lambda match: f"<style>{sources[match[1]]}</style>", page)
    first, rest = page.split(_FIRST_SCRIPT, 1)
    rest = _SCRIPT.sub(lambda match: _script(sources[match[1]]), f"{_FIRST_SCRIPT}{rest}")
    return f"{first}{held}{rest}"


def _script(source: str) -> str:
    assert "</script" not in source
    return f"<script>{source}</script>"


def _hashes(sources: Mapping[str, str], names: list[str]) -> str:
    return " ".join(f"'sha256-{_digest(sources[name])}'" for name in names)


def _digest(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
