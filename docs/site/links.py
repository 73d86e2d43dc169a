"""Links of a page that lead to a file which is no page: they become its path, in code."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\((?!\w+:)([^)#\s]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`(?!\]))", re.M | re.S)

ANCHOR = re.compile(r'^<a id="([^"]+)"></a>\n', re.M)


def rewrite(app, docname, source):
    """Write links out of the site as words and a path (Sphinx's event `source-read`).

    Anchors in HTML, which GitHub needs, become targets, which the site needs.
    """
    page = Path(app.srcdir) / app.env.doc2path(docname, base=False)
    parts = CODE.split(ANCHOR.sub(r"\n(\1)=\n", source[0]))
    # Every second part is code.
    parts[::2] = [LINK.sub(lambda found: _as_words(app, page, found), part) for part in parts[::2]]
    source[0] = "".join(parts)


def _as_words(app, page, found):
    target = (page.parent / found[2]).resolve()
    root = Path(app.srcdir).resolve()
    if not target.is_relative_to(root):
        return found[0]
    inside = target.relative_to(root).as_posix()
    is_page = inside.removesuffix(".md") in app.env.found_docs or target.suffix in (".png", ".svg")
    if is_page or not target.exists():  # what does not exist is a warning, and so an error
        return found[0]
    words = found[1]
    return words if words.strip("`") == inside else f"{words} (`{inside}`)"


def write_entrance(app, exception):
    """Write the `index.html` that leads to the first page (Sphinx's event `build-finished`)."""
    if exception is None and app.builder.name == "html":
        first = f"{app.config.root_doc}.html"
        (Path(app.outdir) / "index.html").write_text(
            "<!doctype html><meta charset=utf-8><title>elasticdl</title>"
            f'<meta http-equiv="refresh" content="0; url={first}">'
            f'<a href="{first}">elasticdl</a>\n'
        )
