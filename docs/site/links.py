"""The links of pages as the site needs them, and the site's menu.

A link to a file that is no page becomes its path, in code. The menu is made of `docs/README.md`.
"""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\((?!\w+:)([^)#\s]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`(?!\]))", re.M | re.S)

ANCHOR = re.compile(r'^<a id="([^"]+)"></a>\n', re.M)

ITEM = re.compile(r"^- \[([^\]\n]*)\]\(([^)#\s]+)\.md\)", re.M)
MADE_BY_THE_SITE = {
    "Write a model": ["../model_zoo/*/README"],
    "Reference": ["site/generated/commands", "site/api"],
}


def menu(text):
    """Yield each heading of the list of pages, and the entries below it, as a toctree has them."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        heading = part.partition("\n")[0]
        pages = [f"{words} <{page}>" for words, page in ITEM.findall(part)]
        yield heading, MADE_BY_THE_SITE.get(heading, []) + pages


def _toctrees(text):
    for heading, entries in menu(text):
        lines = "\n".join(entries)
        yield f"\n```{{toctree}}\n:caption: {heading}\n:hidden:\n:glob:\n\n{lines}\n```\n"


def rewrite(app, docname, source):
    """Write links out of the site as words and a path (Sphinx's event `source-read`).

    Anchors in HTML, which GitHub needs, become targets, which the site needs.
    """
    page = Path(app.srcdir) / app.env.doc2path(docname, base=False)
    parts = CODE.split(ANCHOR.sub(r"\n(\1)=\n", source[0]))
    # Every second part is code.
    parts[::2] = [LINK.sub(lambda found: _as_words(app, page, found), part) for part in parts[::2]]
    is_first = docname == app.config.root_doc
    source[0] = "".join([*parts, *(_toctrees(source[0]) if is_first else ())])


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
